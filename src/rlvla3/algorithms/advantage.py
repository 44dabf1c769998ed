"""Generalised advantage estimation over action chunks.

Source: Schulman et al., High-dimensional continuous control using generalised advantage
estimation (arXiv 1506.02438). One time step here is one chunk: γ and λ are for each chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor


def chunk_rewards(reward: Tensor, sub_steps: Tensor) -> Tensor:
    """Sum of the executed sub-step rewards of each chunk.

    Args:
        reward: [..., C]; anything from ``sub_steps`` on.
        sub_steps: executed sub-steps [...] integer.

    Returns:
        [...] of the dtype of ``reward``.
    """
    if reward.shape[:-1] != sub_steps.shape:
        raise ValueError(
            f"reward {tuple(reward.shape)} needs sub_steps {tuple(reward.shape[:-1])}, "
            f"got {tuple(sub_steps.shape)}"
        )
    executed = torch.arange(reward.shape[-1], device=reward.device) < sub_steps[..., None]
    return torch.where(executed, reward, torch.zeros_like(reward)).sum(-1)


def valid_mask(length: Tensor, chunks: int) -> Tensor:
    """[N, T] bool: positions before each trajectory's length."""
    return torch.arange(chunks, device=length.device) < length[:, None]


def generalised_advantage(
    reward: Tensor,
    value: Tensor,
    bootstrap_value: Tensor,
    length: Tensor,
    terminated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of padded trajectories.

    δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γλ·A_{t+1}, with V after the last chunk 0 where the
    task terminated and ``bootstrap_value`` where it was cut (time limit or end of a segment).

    Args:
        reward: chunk rewards [N, T].
        value: V(s_t) [N, T].
        bootstrap_value: V of the observation after the last chunk [N].
        length: valid chunks [N], at least 1.
        terminated: [N] bool.
        gamma: discount of one chunk.
        gae_lambda: λ.

    Returns:
        Advantages and returns (advantage + value), both [N, T], 0 on padding.
    """
    _check(reward, value, bootstrap_value, length, terminated)
    chunks = reward.shape[1]
    mask = valid_mask(length, chunks)
    zero = torch.zeros((), dtype=reward.dtype, device=reward.device)
    after = torch.where(terminated, zero, bootstrap_value)
    advantages = torch.zeros_like(reward)
    running = torch.zeros_like(after)
    for t in range(chunks - 1, -1, -1):
        following = after if t + 1 == chunks else torch.where(length == t + 1, after, value[:, t + 1])
        delta = reward[:, t] + gamma * following - value[:, t]
        running = torch.where(mask[:, t], delta + gamma * gae_lambda * running, zero)
        advantages[:, t] = running
    return advantages, torch.where(mask, advantages + value, zero)


def _check(reward: Tensor, value: Tensor, bootstrap: Tensor, length: Tensor, terminated: Tensor) -> None:
    if reward.ndim != 2 or value.shape != reward.shape:
        raise ValueError(
            f"reward and value must both be [N, T], got {tuple(reward.shape)}, {tuple(value.shape)}"
        )
    for name, tensor in (("bootstrap_value", bootstrap), ("length", length), ("terminated", terminated)):
        if tensor.shape != reward.shape[:1]:
            raise ValueError(f"{name} must be [N] = [{reward.shape[0]}], got {tuple(tensor.shape)}")
