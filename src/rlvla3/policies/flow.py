"""Reinforcement-learning mathematics of flow-matching policies, in float32, outside any network.

Convention (π0): t = 1 is noise, t = 0 is data, x_t = t·ε + (1 − t)·a, velocity v = ε − a. The grid
is t_i = 1 − i/N, a step goes from t = t_i to s = t_{i+1}, with d = 1/N. Estimates of the two ends
are â = x − v·t and ê = x + v·(1 − t). A policy with the mirrored convention (τ = 1 − t, velocity
a − ε) calls these functions with t = 1 − τ and −v.

Sources: Flow-GRPO (arXiv 2505.05470) for the flow-SDE, coefficients-preserving sampling (arXiv
2509.05952) for CPS, ReinFlow (arXiv 2505.22094) for the learned noise at every step (``noise``).

Letters: B batch, N denoise steps, W consecutive steps of them that are stochastic, H horizon (actions
a network predicts), C executed actions of them, D the network's action width (padded), A real action
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Method = Literal["sde", "cps", "noise"]
"""How a stochastic step is made: flow-SDE, coefficients-preserving, or with a learned deviation."""
Reduce = Literal["sum", "mean"]
RatioLevel = Literal["chunk_level", "action_level", "token_level"]
"""Elements that share one importance ratio: the chunk, one action, or one number."""

Prediction = tuple[Tensor, Tensor | None]
"""What a network says of x at t: velocity [..., H, D], and for ``noise`` what ``learned_std`` takes."""

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def times(index: Tensor, steps: int) -> Tensor:
    """Flow time t_i = 1 − i/N of integer step indices, float32."""
    return 1.0 - index.to(torch.float32) / steps


def ode_mean(x: Tensor, velocity: Tensor, steps: int) -> Tensor:
    """Next x of the deterministic step, x − v·d."""
    return x - velocity / steps


def transition(
    method: Method, x: Tensor, velocity: Tensor, index: Tensor, steps: int, noise_level: float
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of x_{i+1} given x_i for a stochastic step of a given size.

    flow-SDE: mean (1 − s)·â + (s − σ²d/(2t))·ê, std σ·√d with σ = η·√(t/(1 − t)); at t = 1 the
    denominator takes t_1. CPS: mean (1 − s)·â + s·cos(πη/2)·ê, std s·sin(πη/2).

    Args:
        method: ``sde`` or ``cps``.
        x: [..., H, D] at step ``index``.
        velocity: [..., H, D] there.
        index: denoise step of each x, integer [...].
        steps: N.
        noise_level: η.

    Returns:
        mean [..., H, D] and std [..., 1, 1], float32.
    """
    _check_transition(x, velocity, index)
    x, velocity = x.float(), velocity.float()
    t = times(index, steps)[..., None, None]
    s = times(index + 1, steps)[..., None, None]
    data = x - velocity * t
    noise = x + velocity * (1.0 - t)
    if method == "cps":
        angle = 0.5 * math.pi * noise_level
        return (1.0 - s) * data + s * math.cos(angle) * noise, s * math.sin(angle)
    step = 1.0 / steps
    denominator = torch.where(index[..., None, None] == 0, torch.full_like(t, step), 1.0 - t)
    variance = noise_level**2 * t / denominator * step
    mean = (1.0 - s) * data + (s - variance / (2.0 * t)) * noise
    return mean, variance.sqrt()


def _check_transition(x: Tensor, velocity: Tensor, index: Tensor) -> None:
    if x.ndim < 3 or x.shape != velocity.shape or index.shape != x.shape[:-2]:
        raise ValueError(
            f"transition needs x and velocity [..., H, D] and index [...], got {tuple(x.shape)}, "
            f"{tuple(velocity.shape)} and {tuple(index.shape)}"
        )


def learned_std(raw: Tensor, low: float, high: float) -> Tensor:
    """Standard deviation in (low, high) of a noise net's unbounded output, elementwise, float32.

    tanh(raw) is mapped linearly to the log-variance, −1 to log low² and 1 to log high²; raw 0 gives the
    geometric mean of the bounds.
    """
    share = 0.5 * (raw.float().tanh() + 1.0)
    log_variance = 2.0 * math.log(low) + share * 2.0 * math.log(high / low)
    return (0.5 * log_variance).exp()


def gaussian_log_prob(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log density of each element; elements with std 0 are deterministic and contribute 0."""
    std = std.expand_as(mean)
    random = std > 0
    safe = torch.where(random, std, torch.ones_like(std))
    log_prob = -safe.log() - _HALF_LOG_2PI - 0.5 * ((value - mean) / safe) ** 2
    return torch.where(random, log_prob, torch.zeros_like(log_prob))


def gaussian_entropy(std: Tensor) -> Tensor:
    """½·log(2πe·std²) of each element."""
    return _HALF_LOG_2PI + 0.5 + std.log()


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Which denoise steps of a sample are stochastic, how, and how their log-probs are joined."""

    method: Method
    steps: int
    """N."""
    window: int
    """W: consecutive stochastic steps; the others are steps of the ODE."""
    noise_level: float
    """η (``sde``, ``cps``)."""
    noise_std: tuple[float, float]
    """Bounds of the learned deviation (``noise``)."""
    include_prior: bool
    """Whether log N(x_0; 0, I) counts where every step is stochastic. It cancels in ratios."""
    denoise_reduce: Reduce

    @property
    def starts(self) -> int:
        """Number of steps that a window may begin with; the last CPS step, with std 0, is left to the ODE
        where the window leaves room."""
        random = self.steps - 1 if self.method == "cps" else self.steps
        return max(random - self.window + 1, 1)

    @property
    def has_prior(self) -> bool:
        """Whether a log-prob includes the initial noise."""
        return self.include_prior and self.window == self.steps

    def transition(self, x: Tensor, prediction: Prediction, index: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [..., H, D] and std [..., H, D] or [..., 1, 1] of x_{i+1} given x_i [..., H, D], i =
        ``index`` [...]; float32."""
        velocity, raw = prediction
        if self.method != "noise":
            return transition(self.method, x, velocity, index, self.steps, self.noise_level)
        if raw is None:
            raise ValueError("method noise needs the noise net's output")
        return ode_mean(x.float(), velocity.float(), self.steps), learned_std(raw, *self.noise_std)

    def log_prob(self, chain: Tensor, prediction: Prediction, start: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy of each element of a chain.

        Args:
            chain: x_start … x_{start + W} [B, W + 1, H, D].
            prediction: the network's of the first W of them.
            start: first stochastic step, integer [B].

        Returns:
            Both [B, H, D], joined over the steps by ``denoise_reduce``. The entropy is that of the
            learned deviations; for given ones it is a constant, and zero is returned.
        """
        mean, std = self.transition(chain[:, :-1], prediction, self.indices(start))
        log_prob = gaussian_log_prob(chain[:, 1:], mean, std)
        learned = self.method == "noise"
        entropy = gaussian_entropy(std) if learned else torch.zeros_like(log_prob)
        if self.has_prior:
            first, one = chain[:, :1], torch.ones_like(chain[:, :1])
            prior = gaussian_log_prob(first, torch.zeros_like(first), one)
            log_prob = torch.cat((prior, log_prob), dim=1)
            entropy = torch.cat((gaussian_entropy(one) if learned else torch.zeros_like(one), entropy), dim=1)
        if self.denoise_reduce == "sum":
            return log_prob.sum(1), entropy.sum(1)
        return log_prob.mean(1), entropy.mean(1)

    def indices(self, start: Tensor) -> Tensor:
        """The W stochastic steps [B, W] of windows that begin with ``start`` [B]."""
        return start[:, None] + torch.arange(self.window, device=start.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """How the log-probs of a chunk's elements become the log-probs that are compared."""

    chunk: int
    """C: the first C of the H predicted actions are executed; the others do not count."""
    action_dim: int
    """A: the first A of the D network dimensions are real; padding does not count."""
    level: RatioLevel
    chunk_reduce: Reduce
    dim_reduce: Reduce

    def __call__(self, log_prob: Tensor) -> Tensor:
        """[B, H, D] element log-probs → [B], [B, C] or [B, C, A] by ``level``."""
        log_prob = log_prob[:, : self.chunk, : self.action_dim]
        if self.level == "token_level":
            return log_prob
        log_prob = log_prob.sum(2) if self.dim_reduce == "sum" else log_prob.mean(2)
        if self.level == "action_level":
            return log_prob
        return log_prob.sum(1) if self.chunk_reduce == "sum" else log_prob.mean(1)

    def of_chunk(self, values: Tensor) -> Tensor:
        """[B, H, D] → [B], as log-probs of ``chunk_level`` are reduced, whatever the level."""
        return replace(self, level="chunk_level")(values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's reduced log-prob."""
        full = (self.chunk, self.action_dim)
        return full[: {"chunk_level": 0, "action_level": 1, "token_level": 2}[self.level]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What one sampled denoise chain leaves: its end and its stochastic steps."""

    final: Tensor
    """x_N [B, H, D], the normalised action chunk."""
    points: Tensor
    """x_start … x_{start + W} [B, W + 1, H, D]."""
    prediction: Prediction
    """The network's at the first W of them, [B, W, H, D]."""


def sample(
    network: Callable[[Tensor, Tensor], Prediction],
    initial: Tensor,
    step_noise: Tensor,
    start: Tensor,
    law: Law,
    *,
    explore: bool,
) -> Chain:
    """Integrate the flow from noise to an action chunk.

    Each sample takes W stochastic steps from its own ``start`` and N − W of the ODE;
    ``explore=False`` takes N of the ODE from the same initial noise.

    Args:
        network: (x [B, H, D], t [B]) → its prediction.
        initial: x_0 [B, H, D].
        step_noise: standard normal [B, W, H, D] used at the stochastic steps.
        start: first stochastic step of each sample, int64 [B].
        law: of the stochastic steps.
        explore: whether these are stochastic.
    """
    x = initial
    points, velocities, raws = [x], [], []
    for i in range(law.steps):
        at = torch.full_like(start, i)
        prediction = network(x, times(at, law.steps))
        following = ode_mean(x, prediction[0].float(), law.steps)
        if explore:
            mean, std = law.transition(x, prediction, at)
            place = i - start
            noise = _at(step_noise, place.clamp(0, law.window - 1)[:, None])[:, 0]
            inside = ((place >= 0) & (place < law.window))[:, None, None]
            following = torch.where(inside, mean + std * noise, following)
        points.append(x := following)
        velocities.append(prediction[0])
        raws.append(prediction[1])
    steps = law.indices(start)
    raw = None if raws[0] is None else _at(torch.stack([r for r in raws if r is not None], 1), steps)
    return Chain(
        final=x,
        points=_at(torch.stack(points, 1), torch.cat((steps, steps[:, -1:] + 1), dim=1)),
        prediction=(_at(torch.stack(velocities, 1), steps), raw),
    )


def _at(values: Tensor, index: Tensor) -> Tensor:
    """[B, N, ...] at each sample's own indices [B, K] → [B, K, ...]."""
    return values[torch.arange(len(values), device=values.device)[:, None], index]


def imitation_pair(actions: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Flow-matching training pair: x_t = t·ε + (1 − t)·a and its target velocity ε − a.

    Args:
        actions: normalised [..., H, D].
        noise: standard normal of the same shape.
        time: t of each chunk [...].
    """
    t = time[..., None, None]
    return t * noise + (1.0 - t) * actions, noise - actions
