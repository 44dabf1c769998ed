"""The clipped policy-gradient loss and the value loss.

Sources: PPO (arXiv 1707.06347); dual clip (arXiv 1912.09729). Masked positions may hold NaN or
any number: they are replaced before they are used, so loss and gradient do not change by a bit.
"""

from __future__ import annotations

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over unmasked positions; 0 where none is. Masked values get no gradient."""
    kept = torch.where(mask, values, torch.zeros_like(values))
    return kept.sum() / mask.sum().clamp(min=1)


def importance_ratio(log_prob: Tensor, behaviour: Tensor, mask: Tensor, limit: float) -> Tensor:
    """exp(log_prob − behaviour) with the log-ratio held in [−limit, limit]; 1 where masked.

    Outside the limit the gradient is 0, so that one broken sample cannot overflow the update.
    """
    zero = torch.zeros_like(log_prob)
    log_ratio = torch.where(mask, log_prob, zero) - torch.where(mask, behaviour, zero)
    return log_ratio.clamp(-limit, limit).exp()


def clipped_policy_loss(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    log_ratio_limit: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's pessimistic clipped loss, a mean over unmasked elements.

    Args:
        log_prob: [B, ...] with gradient, at any ratio level.
        behaviour_log_prob: of the same shape.
        advantage: [B]; every element of a chunk has the chunk's advantage.
        mask: [B] bool.
        clip_low: ratios below 1 − clip_low gain nothing.
        clip_high: ratios above 1 + clip_high gain nothing.
        dual_clip: bound (> 1) on the loss of a negative advantage; 0 switches it off.
        log_ratio_limit: bound of the log-ratio.

    Returns:
        The loss and detached ``kl`` (the non-negative estimate E[r − 1 − log r]),
        ``clip_fraction`` and ``ratio_mean``.
    """
    if log_prob.shape != behaviour_log_prob.shape or advantage.shape != log_prob.shape[:1]:
        raise ValueError(
            f"log_prob {tuple(log_prob.shape)}, behaviour {tuple(behaviour_log_prob.shape)} and advantage "
            f"{tuple(advantage.shape)} must be [B, ...], the same, and [B]"
        )
    if mask.shape != advantage.shape:
        raise ValueError(f"mask {tuple(mask.shape)} must be [B] = {tuple(advantage.shape)}")
    wide = (-1, *(1,) * (log_prob.ndim - 1))
    advantage = torch.where(mask, advantage, torch.zeros_like(advantage)).view(wide).expand_as(log_prob)
    mask = mask.view(wide).expand_as(log_prob)
    ratio = importance_ratio(log_prob, behaviour_log_prob, mask, log_ratio_limit)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-ratio * advantage, -clipped * advantage)
    if dual_clip:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)
    with torch.no_grad():
        outside = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
        metrics = {
            "kl": masked_mean(ratio - 1.0 - ratio.log(), mask),
            "clip_fraction": masked_mean(outside.to(ratio.dtype), mask),
            "ratio_mean": masked_mean(ratio, mask),
        }
    return masked_mean(loss, mask), metrics


def value_loss(
    value: Tensor, behaviour_value: Tensor, returns: Tensor, mask: Tensor, *, clip: float, huber_delta: float
) -> Tensor:
    """Huber loss of values against returns, a mean over unmasked chunks.

    Args:
        value: [B] with gradient.
        behaviour_value: [B].
        returns: [B].
        mask: [B] bool.
        clip: the value may gain nothing by moving further than this from the behaviour value
            (the larger of both losses counts); 0 switches it off.
        huber_delta: errors beyond it count linearly.
    """
    if not value.shape == behaviour_value.shape == returns.shape == mask.shape or value.ndim != 1:
        raise ValueError(
            f"value, behaviour_value, returns and mask must be [B], got {tuple(value.shape)}, "
            f"{tuple(behaviour_value.shape)}, {tuple(returns.shape)}, {tuple(mask.shape)}"
        )
    zero = torch.zeros_like(value)
    value, behaviour_value, returns = (
        torch.where(mask, tensor, zero) for tensor in (value, behaviour_value, returns)
    )
    loss = torch.nn.functional.huber_loss(value, returns, reduction="none", delta=huber_delta)
    if clip:
        near = behaviour_value + (value - behaviour_value).clamp(-clip, clip)
        held = torch.nn.functional.huber_loss(near, returns, reduction="none", delta=huber_delta)
        loss = torch.maximum(loss, held)
    return masked_mean(loss, mask)
