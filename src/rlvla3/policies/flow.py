"""Reinforcement-learning mathematics of flow-matching policies, in float32, outside any network.

Convention (π0): t = 1 is noise, t = 0 is data, x_t = t·ε + (1 − t)·a, velocity v = ε − a. The grid
is t_i = 1 − i/N, a step goes from t = t_i to s = t_{i+1}, with d = 1/N. Estimates of the two ends
are â = x − v·t and ê = x + v·(1 − t). A policy with the mirrored convention (τ = 1 − t, velocity
a − ε) calls these functions with t = 1 − τ and −v.

Sources: Flow-GRPO (arXiv 2505.05470) for the flow-SDE, ReinFlow (arXiv 2505.22094) for sampling
with a probability at each denoise step, coefficient-preserving sampling for CPS.

Letters: B batch, N denoise steps, H horizon (actions a network predicts), C executed actions of
them, D the network's action width (padded), A real action dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Method = Literal["sde", "cps"]
"""How the one stochastic step of a sample is made."""
Reduce = Literal["sum", "mean"]
RatioLevel = Literal["chunk_level", "action_level", "token_level"]
"""Elements that share one importance ratio: the chunk, one action, or one number."""

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def stochastic_choices(method: Method, steps: int) -> int:
    """Number of denoise steps that can be the stochastic one (the last CPS step has std 0)."""
    if method == "cps":
        return max(steps - 1, 1)
    return steps


def times(index: Tensor, steps: int) -> Tensor:
    """Flow time t_i = 1 − i/N of integer step indices, float32."""
    return 1.0 - index.to(torch.float32) / steps


def ode_mean(x: Tensor, velocity: Tensor, steps: int) -> Tensor:
    """Next x of the deterministic step, x − v·d."""
    return x - velocity / steps


def transition(
    method: Method, x: Tensor, velocity: Tensor, index: Tensor, steps: int, noise_level: float
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of x_{i+1} given x_i for a stochastic step.

    flow-SDE: mean (1 − s)·â + (s − σ²d/(2t))·ê, std σ·√d with σ = η·√(t/(1 − t)); at t = 1 the
    denominator takes t_1. CPS: mean (1 − s)·â + s·cos(πη/2)·ê, std s·sin(πη/2).

    Args:
        method: ``sde`` or ``cps``.
        x: [B, H, D] at step ``index``.
        velocity: [B, H, D] there.
        index: denoise step of each sample, integer [B].
        steps: N.
        noise_level: η.

    Returns:
        mean [B, H, D] and std [B, 1, 1], float32.
    """
    _check_transition(x, velocity, index)
    x, velocity = x.float(), velocity.float()
    t = times(index, steps)[:, None, None]
    s = times(index + 1, steps)[:, None, None]
    data = x - velocity * t
    noise = x + velocity * (1.0 - t)
    if method == "cps":
        angle = 0.5 * math.pi * noise_level
        return (1.0 - s) * data + s * math.cos(angle) * noise, s * math.sin(angle)
    step = 1.0 / steps
    denominator = torch.where(index[:, None, None] == 0, torch.full_like(t, step), 1.0 - t)
    variance = noise_level**2 * t / denominator * step
    mean = (1.0 - s) * data + (s - variance / (2.0 * t)) * noise
    return mean, variance.sqrt()


def _check_transition(x: Tensor, velocity: Tensor, index: Tensor) -> None:
    if x.ndim != 3 or x.shape != velocity.shape or index.shape != x.shape[:1]:
        raise ValueError(
            f"transition needs x and velocity [B, H, D] and index [B], got {tuple(x.shape)}, "
            f"{tuple(velocity.shape)} and {tuple(index.shape)}"
        )


def gaussian_log_prob(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log density of each element; elements with std 0 are deterministic and contribute 0."""
    std = std.expand_as(mean)
    random = std > 0
    safe = torch.where(random, std, torch.ones_like(std))
    log_prob = -safe.log() - _HALF_LOG_2PI - 0.5 * ((value - mean) / safe) ** 2
    return torch.where(random, log_prob, torch.zeros_like(log_prob))


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

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample's reduced log-prob."""
        full = (self.chunk, self.action_dim)
        return full[: {"chunk_level": 0, "action_level": 1, "token_level": 2}[self.level]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What one sampled denoise chain leaves: its end and its one stochastic step k."""

    final: Tensor
    """x_N [B, H, D], the normalised action chunk."""
    chain_from: Tensor
    """x_k [B, H, D]."""
    chain_to: Tensor
    """x_{k+1} [B, H, D]."""
    velocity: Tensor
    """v(x_k, t_k) [B, H, D]."""


def sample(
    velocity: Callable[[Tensor, Tensor], Tensor],
    initial: Tensor,
    step_noise: Tensor,
    index: Tensor,
    *,
    method: Method,
    steps: int,
    noise_level: float,
    explore: bool,
) -> Chain:
    """Integrate the flow from noise to an action chunk.

    Each sample takes its own stochastic step ``index`` and N − 1 deterministic ones;
    ``explore=False`` takes N deterministic ones from the same initial noise.

    Args:
        velocity: (x [B, H, D], t [B]) → v [B, H, D].
        initial: x_0 [B, H, D].
        step_noise: standard normal [B, H, D] used at the stochastic step.
        index: stochastic step of each sample, int64 [B].
        method: of the stochastic step.
        steps: N.
        noise_level: η.
        explore: whether the stochastic step is stochastic.
    """
    x = initial
    kept: tuple[Tensor, Tensor, Tensor] = (torch.empty_like(x), torch.empty_like(x), torch.empty_like(x))
    for i in range(steps):
        at = torch.full_like(index, i)
        v = velocity(x, times(at, steps))
        following = ode_mean(x, v, steps)
        chosen = (index == i)[:, None, None]
        if explore:
            mean, std = transition(method, x, v, at, steps, noise_level)
            following = torch.where(chosen, mean + std * step_noise, following)
        kept = (
            torch.where(chosen, x, kept[0]),
            torch.where(chosen, following, kept[1]),
            torch.where(chosen, v, kept[2]),
        )
        x = following
    return Chain(final=x, chain_from=kept[0], chain_to=kept[1], velocity=kept[2])


def imitation_pair(actions: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Flow-matching training pair: x_t = t·ε + (1 − t)·a and its target velocity ε − a.

    Args:
        actions: normalised [..., H, D].
        noise: standard normal of the same shape.
        time: t of each chunk [...].
    """
    t = time[..., None, None]
    return t * noise + (1.0 - t) * actions, noise - actions
