"""Numbers an update reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rlvla3.learner.ranks import Ranks
from rlvla3.messages import Trajectory

_SQUARE = "ratio_square"


class Means:
    """Running means by name over chunks, trajectories or steps; names ending in ``_max`` keep the maximum."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._sizes: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def add(self, metrics: Mapping[str, float], size: float = 1.0) -> None:
        """Add metrics that are means over ``size`` samples."""
        for name, value in metrics.items():
            if name.endswith("_max"):
                self._maxima[name] = max(value, self._maxima.get(name, value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value * size
                self._sizes[name] = self._sizes.get(name, 0.0) + size

    def add_each(self, values: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Add the numbers of single samples."""
        for name, each in values.items():
            if len(each):
                self.add({name: float(each.max() if name.endswith("_max") else each.mean())}, len(each))

    def merge(self, other: Means) -> None:
        """Add everything that ``other`` holds."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._sizes[name] = self._sizes.get(name, 0.0) + other._sizes[name]
        self.add(other._maxima)

    def sum_of(self, name: str) -> tuple[float, float]:
        """Sum and number of samples of one figure; zeros where it was never told."""
        return self._sums.get(name, 0.0), self._sizes.get(name, 0.0)

    def over(self, ranks: Ranks) -> Means:
        """The same over all ranks; every rank must ask."""
        if ranks.size == 1:
            return self
        whole = Means()
        for sums, sizes, maxima in ranks.shared([self._sums, self._sizes, self._maxima]):
            part = Means()
            part._sums, part._sizes, part._maxima = sums, sizes, maxima
            whole.merge(part)
        return whole

    def values(self) -> dict[str, float]:
        """All means and maxima; of ratios, instead of their mean square, the effective sample size as a
        fraction, mean² / mean square."""
        means = {name: total / self._sizes[name] for name, total in self._sums.items()} | self._maxima
        for name in [name for name in means if name.endswith(_SQUARE)]:
            square, mean = means.pop(name), means.get(name.replace(_SQUARE, "ratio_mean"), 0.0)
            means[name.replace(_SQUARE, "ess")] = mean**2 / square if square else 0.0
        return means


def logprob_gap(
    log_prob: npt.NDArray[np.float32], behaviour: npt.NDArray[np.float32], mask: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """How far the trainer's log-probs are from the generator's under the same weights: |ratio − 1|.

    Args:
        log_prob: [B, ...].
        behaviour: of the same shape.
        mask: which elements count, of the same shape.

    Returns:
        The gap of every element that counts, flat.
    """
    gap = np.clip(log_prob[mask].astype(np.float64) - behaviour[mask], -20.0, 20.0)
    found: npt.NDArray[np.float64] = np.abs(np.expm1(gap))
    return found


def lag_metrics(versions: npt.NDArray[np.int64], version: int) -> dict[str, float]:
    """Lag of the chunks at use, in versions."""
    lag = version - versions
    return {"lag_min": float(lag.min()), "lag_mean": float(lag.mean()), "lag_max": float(lag.max())}


def effective_sample_size(log_weight: npt.NDArray[np.float64], ranks: Ranks) -> float:
    """(Σw)² / (n·Σw²) of the importance weights of all ranks' chunks; 1 where all are equal.

    Args:
        log_weight: of this rank's chunks [B].
        ranks: the others.
    """
    weight = np.exp(np.clip(log_weight, -20.0, 20.0))
    total, square, count = ranks.sum([weight.sum(), (weight**2).sum(), len(weight)])
    return float(total**2 / (count * square)) if square else 0.0


def trajectory_figures(trajectories: Sequence[Trajectory]) -> dict[str, npt.NDArray[np.float64]]:
    """Reward and success of each trajectory used."""
    return {
        "reward_mean": np.array([t.total_reward for t in trajectories], np.float64),
        "success_rate": np.array([t.success for t in trajectories], np.float64),
    }
