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
    proximal_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float,
    log_ratio_limit: float,
    weight_limit: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's pessimistic clipped loss around a proximal policy, a mean over unmasked elements.

    With r = π/π_proximal and w = min(π_proximal/π_behaviour, weight_limit) an element's loss is
    −w · min(r·A, clip(r)·A): the trust region does not depend on how old the data are (decoupled PPO,
    arXiv 2110.00641). Where both policies are one, w = 1 and this is PPO.

    Args:
        log_prob: [B, ...] with gradient, at any ratio level.
        behaviour_log_prob: of the same shape.
        proximal_log_prob: of the same shape.
        advantage: [B]; every element of a chunk has the chunk's advantage.
        mask: [B] bool.
        clip_low: ratios below 1 − clip_low gain nothing.
        clip_high: ratios above 1 + clip_high gain nothing.
        dual_clip: bound (> 1) on the loss of a negative advantage; 0 switches it off.
        log_ratio_limit: bound of both log-ratios.
        weight_limit: bound of w.

    Returns:
        The loss and, detached, of the behaviour policy: ``kl`` (the non-negative estimate
        E[ρ − 1 − log ρ]) and ``ratio_mean`` of ρ = π/π_behaviour; of the proximal one: ``clip_fraction``
        (r outside the trust region), ``weight_mean`` and ``weight_max`` of w.
    """
    shapes = log_prob.shape, behaviour_log_prob.shape, proximal_log_prob.shape
    if len(set(shapes)) > 1 or advantage.shape != log_prob.shape[:1]:
        raise ValueError(
            f"log_prob {tuple(shapes[0])}, behaviour {tuple(shapes[1])}, proximal {tuple(shapes[2])} and "
            f"advantage {tuple(advantage.shape)} must be [B, ...], the same, the same, and [B]"
        )
    if mask.shape != advantage.shape:
        raise ValueError(f"mask {tuple(mask.shape)} must be [B] = {tuple(advantage.shape)}")
    wide = (-1, *(1,) * (log_prob.ndim - 1))
    advantage = torch.where(mask, advantage, torch.zeros_like(advantage)).view(wide).expand_as(log_prob)
    mask = mask.view(wide).expand_as(log_prob)
    ratio = importance_ratio(log_prob, proximal_log_prob, mask, log_ratio_limit)
    weight = importance_ratio(proximal_log_prob, behaviour_log_prob, mask, log_ratio_limit)
    weight = weight.detach().clamp(max=weight_limit)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(-ratio * advantage, -clipped * advantage)
    if dual_clip:
        loss = torch.where(advantage < 0, torch.minimum(loss, -dual_clip * advantage), loss)
    with torch.no_grad():
        outside = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
        whole = importance_ratio(log_prob, behaviour_log_prob, mask, log_ratio_limit)
        metrics = {
            "kl": masked_mean(whole - 1.0 - whole.log(), mask),
            "clip_fraction": masked_mean(outside.to(ratio.dtype), mask),
            "ratio_mean": masked_mean(whole, mask),
            "weight_mean": masked_mean(weight, mask),
            "weight_max": torch.where(mask, weight, torch.zeros_like(weight)).max(),
        }
    return masked_mean(weight * loss, mask), metrics


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
