"""Losses of single chunks: the clipped policy gradient, its off-policy corrections, KL, the value loss.

Letters: B chunks; log-probs [B, ...] at any ratio level. Every function returns one number for each
chunk, the mean of its unmasked elements; the learner weighs and adds them, so that micro-batches and
ranks of any size give the full batch's gradient. Masked elements may hold NaN or any number: they are
replaced before they are used, so loss and gradient do not change by a bit.

Sources: PPO (arXiv 1707.06347); dual clip (1912.09729); decoupled PPO (2110.00641); V-trace and truncated
importance weights (1802.01561); Gaussian trust weight (GIPO, 2603.03955); KL estimators
(J. Schulman, Approximating KL divergence, 2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from rlvla3.algorithms.api import Figures

Correction = Literal["none", "decoupled", "truncated_is", "gaussian"]
Estimator = Literal["k1", "k2", "k3"]


def chunk_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the unmasked elements of each chunk, [B, ...] → [B]; 0 where there is none."""
    kept = torch.where(mask, values, torch.zeros_like(values))
    if kept.ndim == 1:
        return kept
    return kept.flatten(1).sum(1) / mask.flatten(1).sum(1).clamp(min=1)


def log_ratio(log_prob: Tensor, other: Tensor, mask: Tensor, limit: float) -> Tensor:
    """log_prob − other held in [−limit, limit]; 0 where masked.

    Outside the limit the gradient is 0, so that one broken sample cannot overflow the update.
    """
    zero = torch.zeros_like(log_prob)
    gap = torch.where(mask, log_prob, zero) - torch.where(mask, other, zero)
    return gap.clamp(-limit, limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The log-probs of chunks and what weighs them, checked."""

    log_prob: Tensor
    """[B, ...] with gradient."""
    behaviour: Tensor
    proximal: Tensor
    mask: Tensor
    """Bool, of the same shape."""
    advantage: Tensor
    """[B]; every element of a chunk has the chunk's advantage."""
    limit: float
    """Bound of every log-ratio."""

    def __post_init__(self) -> None:
        shapes = [tuple(t.shape) for t in (self.log_prob, self.behaviour, self.proximal, self.mask)]
        if len(set(shapes)) > 1 or self.advantage.shape != self.log_prob.shape[:1]:
            raise ValueError(
                f"log_prob {shapes[0]}, behaviour {shapes[1]}, proximal {shapes[2]}, mask {shapes[3]} and "
                f"advantage {tuple(self.advantage.shape)} must be [B, ...], three times the same, and [B]"
            )

    @property
    def wide_advantage(self) -> Tensor:
        """[B, ...]; 0 where masked."""
        wide = (-1, *(1,) * (self.log_prob.ndim - 1))
        return torch.where(self.mask, self.advantage.view(wide), torch.zeros_like(self.log_prob))

    def ratio(self) -> Tensor:
        """π/π_behaviour."""
        return log_ratio(self.log_prob, self.behaviour, self.mask, self.limit).exp()

    def proximal_ratio(self) -> Tensor:
        """π/π_proximal."""
        return log_ratio(self.log_prob, self.proximal, self.mask, self.limit).exp()

    def weight(self) -> Tensor:
        """π_proximal/π_behaviour, without gradient."""
        return log_ratio(self.proximal, self.behaviour, self.mask, self.limit).exp().detach()

    def mean(self, values: Tensor) -> Tensor:
        """Mean over each chunk's unmasked elements [B]."""
        return chunk_mean(values, self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A trust region of ratios."""

    low: float
    """Ratios below 1 − low gain nothing."""
    high: float
    """Ratios above 1 + high gain nothing."""
    dual: float
    """Bound (> 1) on the loss of a negative advantage, in units of the advantage; 0: off."""

    def loss(self, ratio: Tensor, advantage: Tensor) -> Tensor:
        """max(−r·A, −clip(r)·A), of each element."""
        clipped = ratio.clamp(1.0 - self.low, 1.0 + self.high)
        loss = torch.maximum(-ratio * advantage, -clipped * advantage)
        if self.dual:
            loss = torch.where(advantage < 0, torch.minimum(loss, -self.dual * advantage), loss)
        return loss

    def outside(self, ratio: Tensor) -> Tensor:
        """1 where a ratio lies outside, else 0."""
        return ((ratio < 1.0 - self.low) | (ratio > 1.0 + self.high)).to(ratio.dtype)


def clipped_loss(elements: Elements, clip: Clip, weight_limit: float) -> tuple[Tensor, Figures]:
    """PPO's pessimistic clipped loss around a proximal policy.

    With r = π/π_proximal and w = min(π_proximal/π_behaviour, weight_limit) an element's loss is
    w · max(−r·A, −clip(r)·A): the trust region does not depend on how old the data are (decoupled PPO).
    Where both policies are one, w = 1 and this is PPO.

    Returns:
        The loss [B], and ``clip_fraction``, ``weight_mean``, ``weight_max`` [B].
    """
    ratio = elements.proximal_ratio()
    weight = elements.weight().clamp(max=weight_limit)
    loss = weight * clip.loss(ratio, elements.wide_advantage)
    return elements.mean(loss), _figures(elements, clip.outside(ratio.detach()), weight)


def truncated_loss(elements: Elements, weight_limit: float) -> tuple[Tensor, Figures]:
    """The policy gradient with truncated importance weights: ∇ = −min(ρ, limit)·A·∇log π, ρ = π/π_behaviour.

    The weight has no gradient, so no element is ever without one, however old it is.
    ``clip_fraction``: elements whose weight was truncated.
    """
    ratio = elements.ratio()
    weight = ratio.detach().clamp(max=weight_limit)
    # ρ/ρ is 1 and its gradient ∇log π: the loss then reads as the weighted advantage.
    loss = -weight * elements.wide_advantage * (ratio / ratio.detach())
    truncated = (ratio.detach() > weight_limit).to(ratio.dtype)
    return elements.mean(loss), _figures(elements, truncated, weight)


def gaussian_loss(elements: Elements, width: float) -> tuple[Tensor, Figures]:
    """A Gaussian trust weight in place of the clip: loss −ω·ρ·A with ω = exp(−(log ρ)²/(2·width²)).

    ρ = π/π_behaviour; ω has no gradient. The weight falls smoothly on both sides, and ω·ρ never exceeds
    exp(width²/2). ``clip_fraction``: elements that keep less than half of their weight.
    """
    ratio = elements.ratio()
    trust = (-0.5 * (ratio.detach().log() / width) ** 2).exp()
    loss = -trust * ratio * elements.wide_advantage
    damped = (trust < 0.5).to(ratio.dtype)
    return elements.mean(loss), _figures(elements, damped, trust * ratio.detach())


def _figures(elements: Elements, outside: Tensor, weight: Tensor) -> Figures:
    kept = torch.where(elements.mask, weight, torch.zeros_like(weight))
    return {
        "clip_fraction": elements.mean(outside),
        "weight_mean": elements.mean(weight),
        "weight_max": kept.reshape(len(kept), -1).amax(1),
    }


@torch.no_grad()
def ratio_figures(elements: Elements) -> Figures:
    """How far the present policy is from the one that acted, whatever the loss: ``ratio_mean`` of
    ρ = π/π_behaviour, ``ratio_square`` of ρ² (their quotient is the effective sample size) and ``kl``, the
    non-negative estimate E[ρ − 1 − log ρ] of KL(π_behaviour ‖ π); each [B]."""
    log = log_ratio(elements.log_prob, elements.behaviour, elements.mask, elements.limit)
    ratio = log.exp()
    return {
        "kl": elements.mean(ratio - 1.0 - log),
        "ratio_mean": elements.mean(ratio),
        "ratio_square": elements.mean(ratio**2),
    }


def reference_kl(
    log_prob: Tensor, reference: Tensor, mask: Tensor, estimator: Estimator, limit: float
) -> Tensor:
    """Estimate of KL(π ‖ π_reference) from samples of π, [B], with x = log π − log π_reference.

    k1 = x (unbiased, may be negative), k2 = x²/2 (biased, little variance), k3 = e^−x − 1 + x (unbiased,
    never negative). As losses, over samples of π: k1 has a gradient of mean 0 and belongs into the reward
    instead; k2 descends KL(π ‖ π_reference), k3 KL(π_reference ‖ π).
    """
    gap = log_ratio(log_prob, reference, mask, limit)
    if estimator == "k1":
        return chunk_mean(gap, mask)
    if estimator == "k2":
        return chunk_mean(0.5 * gap**2, mask)
    return chunk_mean((-gap).exp() - 1.0 + gap, mask)


def value_loss(
    value: Tensor, behaviour_value: Tensor, returns: Tensor, *, clip: float, huber_delta: float
) -> Tensor:
    """Huber loss of values against returns [B].

    Args:
        value: [B] with gradient.
        behaviour_value: [B].
        returns: [B].
        clip: the value may gain nothing by moving further than this from the behaviour value
            (the larger of both losses counts); 0 switches it off.
        huber_delta: errors beyond it count linearly.
    """
    if not value.shape == behaviour_value.shape == returns.shape or value.ndim != 1:
        raise ValueError(
            f"value, behaviour_value and returns must be [B], got {tuple(value.shape)}, "
            f"{tuple(behaviour_value.shape)}, {tuple(returns.shape)}"
        )
    loss = huber_loss(value, returns, reduction="none", delta=huber_delta)
    if clip:
        near = behaviour_value + (value - behaviour_value).clamp(-clip, clip)
        loss = torch.maximum(loss, huber_loss(near, returns, reduction="none", delta=huber_delta))
    return loss
