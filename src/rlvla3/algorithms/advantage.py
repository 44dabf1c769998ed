"""Advantages over action chunks: GAE, V-trace, returns, and members of a group against each other.

Sources: GAE (arXiv 1506.02438); V-trace (1802.01561); group-relative advantages (2402.03300); leave one out
(2402.14740). One time step here is one chunk: γ and λ are for each chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def vtrace(
    reward: Tensor,
    value: Tensor,
    bootstrap_value: Tensor,
    length: Tensor,
    terminated: Tensor,
    log_weight: Tensor,
    *,
    gamma: float,
    trace_lambda: float,
    weight_limit: float,
) -> tuple[Tensor, Tensor]:
    """V-trace targets and policy advantages of padded trajectories that an earlier policy acted.

    With ρ_t = min(π/π_behaviour, limit), c_t = λ·min(π/π_behaviour, 1) and δ_t = ρ_t·(r_t + γ·V_{t+1} − V_t):
    v_t = V_t + δ_t + γ·c_t·(v_{t+1} − V_{t+1}), and the advantage ρ_t·(r_t + γ·v_{t+1} − V_t). After the last
    chunk V and v are 0 where the task terminated, ``bootstrap_value`` where it was cut. Without lag and
    with λ = 1 the targets are the returns of GAE with λ = 1.

    Args:
        reward, value, bootstrap_value, length, terminated: as for ``generalised_advantage``.
        log_weight: log π − log π_behaviour of each chunk [N, T].
        gamma: discount of one chunk.
        trace_lambda: λ.
        weight_limit: bound of ρ.

    Returns:
        Advantages and value targets, both [N, T], 0 on padding.
    """
    _check(reward, value, bootstrap_value, length, terminated)
    if log_weight.shape != reward.shape:
        raise ValueError(f"log_weight must be [N, T] = {tuple(reward.shape)}, got {tuple(log_weight.shape)}")
    chunks = reward.shape[1]
    mask = valid_mask(length, chunks)
    zero = torch.zeros((), dtype=reward.dtype, device=reward.device)
    weight = torch.where(mask, log_weight, zero).exp()
    rho, trace = weight.clamp(max=weight_limit), trace_lambda * weight.clamp(max=1.0)
    after = torch.where(terminated, zero, bootstrap_value)
    advantages, targets = torch.zeros_like(reward), torch.zeros_like(reward)
    target = excess = torch.zeros_like(after)
    for t in range(chunks - 1, -1, -1):
        last = length == t + 1
        following = after if t + 1 == chunks else torch.where(last, after, value[:, t + 1])
        target = torch.where(last, after, target)
        advantages[:, t] = rho[:, t] * (reward[:, t] + gamma * target - value[:, t])
        delta = rho[:, t] * (reward[:, t] + gamma * following - value[:, t])
        excess = torch.where(mask[:, t], delta + gamma * trace[:, t] * torch.where(last, zero, excess), zero)
        target = torch.where(mask[:, t], value[:, t] + excess, zero)
        targets[:, t] = target
    return torch.where(mask, advantages, zero), targets


def discounted_returns(reward: Tensor, length: Tensor, *, gamma: float) -> Tensor:
    """Σ_k γ^k·r_{t+k} of each chunk [N, T], 0 on padding; nothing is bootstrapped.

    Args:
        reward: chunk rewards [N, T].
        length: valid chunks [N].
        gamma: discount of one chunk.
    """
    if reward.ndim != 2 or length.shape != reward.shape[:1]:
        raise ValueError(
            f"reward must be [N, T] and length [N], got {tuple(reward.shape)}, {tuple(length.shape)}"
        )
    mask = valid_mask(length, reward.shape[1])
    kept = torch.where(mask, reward, torch.zeros_like(reward))
    returns = torch.zeros_like(reward)
    running = torch.zeros_like(reward[:, 0])
    for t in range(reward.shape[1] - 1, -1, -1):
        running = kept[:, t] + gamma * running
        returns[:, t] = running
    return returns


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Of the group that each trajectory belongs to, [N] float64 each."""

    mean: Tensor
    std: Tensor
    """Population deviation; exactly 0 where all scores are equal."""
    size: Tensor
    """Members."""


def group_statistics(score: Tensor, group: Tensor) -> GroupStatistics:
    """Mean, deviation and size of every trajectory's group.

    Args:
        score: [N].
        group: group number of each [N] integer.

    Raises:
        ValueError: shapes differ.
    """
    if score.ndim != 1 or score.shape != group.shape:
        raise ValueError(f"score and group must be [N], got {tuple(score.shape)}, {tuple(group.shape)}")
    score = score.double()
    _, index = torch.unique(group, return_inverse=True)
    zeros = torch.zeros(int(index.max()) + 1 if len(index) else 0, dtype=score.dtype)
    size = zeros.index_add(0, index, torch.ones_like(score))
    mean = (zeros.index_add(0, index, score) / size)[index]
    square = zeros.index_add(0, index, (score - mean) ** 2)
    # The mean of equal numbers is another number, by rounding.
    lowest, highest = (
        zeros.scatter_reduce(0, index, score, way, include_self=False) for way in ("amin", "amax")
    )
    equal = (lowest == highest)[index]
    return GroupStatistics(
        mean=torch.where(equal, score, mean),
        std=torch.where(equal, torch.zeros_like(score), (square / size).sqrt()[index]),
        size=size[index],
    )


def group_relative(score: Tensor, group: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """(score − mean) / (deviation + ε) within each group [N] (GRPO); 0 in a group of equal scores."""
    found = group_statistics(score, group)
    return ((score.double() - found.mean) / (found.std + epsilon)).to(score.dtype)


def leave_one_out(score: Tensor, group: Tensor) -> Tensor:
    """score − mean of the other members [N] (RLOO), which is G/(G − 1)·(score − mean).

    Raises:
        ValueError: a group has one member.
    """
    found = group_statistics(score, group)
    if bool((found.size < 2).any()):
        raise ValueError("a group needs at least 2 members to leave one out")
    return (found.size / (found.size - 1.0) * (score.double() - found.mean)).to(score.dtype)


def _check(reward: Tensor, value: Tensor, bootstrap: Tensor, length: Tensor, terminated: Tensor) -> None:
    if reward.ndim != 2 or value.shape != reward.shape:
        raise ValueError(
            f"reward and value must both be [N, T], got {tuple(reward.shape)}, {tuple(value.shape)}"
        )
    for name, tensor in (("bootstrap_value", bootstrap), ("length", length), ("terminated", terminated)):
        if tensor.shape != reward.shape[:1]:
            raise ValueError(f"{name} must be [N] = [{reward.shape[0]}], got {tuple(tensor.shape)}")
