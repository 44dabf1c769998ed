"""Normalisation of advantages, by the batch or by statistics frozen from earlier updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of advantages."""

    mean: float
    std: float


def statistics(advantage: Tensor, mask: Tensor) -> Statistics:
    """Mean and population deviation of the unmasked advantages.

    Args:
        advantage: any shape; masked positions may hold anything.
        mask: bool of the same shape, at least one true.
    """
    if advantage.shape != mask.shape:
        raise ValueError(
            f"mask {tuple(mask.shape)} must have the shape of advantage {tuple(advantage.shape)}"
        )
    values = advantage[mask].double()
    if values.numel() == 0:
        raise ValueError("no unmasked advantage to take statistics of")
    return Statistics(mean=float(values.mean()), std=float(values.std(correction=0)))


def normalise(advantage: Tensor, given: Statistics) -> Tensor:
    """(advantage − mean) / std; equal advantages (std 0) become 0, not NaN."""
    return (advantage - given.mean) / (given.std + _EPSILON)


def blend(old: Statistics | None, new: Statistics, keep: float) -> Statistics:
    """Running statistics for streaming: ``keep`` of the old ones (all of the new at first).

    The second moment is blended, so that a shift of the mean between updates counts as spread.
    """
    if old is None:
        return new
    mean = keep * old.mean + (1.0 - keep) * new.mean
    second = keep * (old.std**2 + old.mean**2) + (1.0 - keep) * (new.std**2 + new.mean**2)
    return Statistics(mean=mean, std=max(second - mean**2, 0.0) ** 0.5)


def explained_variance(value: Tensor, returns: Tensor) -> float:
    """1 − Var(returns − value) / Var(returns); 0 where returns do not vary. Both [B]."""
    if value.shape != returns.shape:
        raise ValueError(f"value {tuple(value.shape)} and returns {tuple(returns.shape)} differ in shape")
    spread = torch.var(returns.double(), correction=0)
    if float(spread) == 0.0:
        return 0.0
    return float(1.0 - torch.var(returns.double() - value.double(), correction=0) / spread)
