"""Normalisation of advantages, by the batch or by statistics frozen from earlier updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

EPSILON = 1e-8
"""Added to the deviation, so that equal advantages become 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of advantages."""

    mean: float
    std: float


Sum = Callable[[Sequence[float]], Sequence[float]]
"""Sums numbers over all who hold a part of the batch."""


def alone(values: Sequence[float]) -> Sequence[float]:
    """The ``Sum`` of one who holds the whole batch."""
    return values


def statistics(values: Tensor, total: Sum = alone) -> Statistics:
    """Mean and population deviation of numbers that may be spread over several holders.

    Args:
        values: of this holder, any shape.
        total: sums over all holders; each must ask.

    Raises:
        ValueError: nobody holds any.
    """
    own = values.double()
    count, whole = total([float(own.numel()), float(own.sum())])
    if not count:
        raise ValueError("no numbers to take statistics of")
    mean = whole / count
    (square,) = total([float(((own - mean) ** 2).sum())])
    return Statistics(mean=mean, std=math.sqrt(square / count) if square >= 0 else math.nan)


def normalise(advantage: Tensor, given: Statistics) -> Tensor:
    """(advantage − mean) / std; equal advantages (std 0) become 0, not NaN."""
    return (advantage - given.mean) / (given.std + EPSILON)


def blend(old: Statistics | None, new: Statistics, keep: float) -> Statistics:
    """Running statistics for streaming: ``keep`` of the old ones (all of the new at first).

    The second moment is blended, so that a shift of the mean between updates counts as spread.
    """
    if old is None:
        return new
    mean = keep * old.mean + (1.0 - keep) * new.mean
    second = keep * (old.std**2 + old.mean**2) + (1.0 - keep) * (new.std**2 + new.mean**2)
    return Statistics(mean=mean, std=max(second - mean**2, 0.0) ** 0.5)


def explained_variance(value: Tensor, returns: Tensor, total: Sum = alone) -> float:
    """1 − Var(returns − value) / Var(returns); 0 where returns do not vary. Both [B] of this holder."""
    if value.shape != returns.shape:
        raise ValueError(f"value {tuple(value.shape)} and returns {tuple(returns.shape)} differ in shape")
    spread, error = statistics(returns, total).std, statistics(returns.double() - value.double(), total).std
    return 1.0 - (error / spread) ** 2 if spread else 0.0
