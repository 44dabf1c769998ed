"""Numbers an update reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rlvla3.messages import Trajectory


class Means:
    """Size-weighted running means by name; names ending in ``_max`` keep the maximum."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._sizes: dict[str, float] = {}
        self._maxima: dict[str, float] = {}

    def add(self, metrics: Mapping[str, float], size: float) -> None:
        """Add metrics that are means over ``size`` samples."""
        for name, value in metrics.items():
            if name.endswith("_max"):
                self._maxima[name] = max(value, self._maxima.get(name, value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value * size
                self._sizes[name] = self._sizes.get(name, 0.0) + size

    def merge(self, other: Means) -> None:
        """Add everything that ``other`` holds."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
            self._sizes[name] = self._sizes.get(name, 0.0) + other._sizes[name]
        self.add(other._maxima, 1)

    def values(self) -> dict[str, float]:
        """All means and maxima."""
        return {name: total / self._sizes[name] for name, total in self._sums.items()} | self._maxima


def logprob_gap(log_prob: Tensor, behaviour: Tensor) -> dict[str, float]:
    """How far the trainer's log-probs are from the generator's under the same weights.

    Args:
        log_prob: [B, ...].
        behaviour: of the same shape.

    Returns:
        ``logprob_gap``, the greatest |ratio − 1|, and its mean, ``logprob_gap_mean``.
    """
    gap = (log_prob - behaviour).clamp(-20.0, 20.0).expm1().abs()
    return {"logprob_gap": float(gap.max()), "logprob_gap_mean": float(gap.mean())}


def behaviour_metrics(versions: npt.NDArray[np.int64], version: int) -> dict[str, float]:
    """Lag of the chunks at use, in versions."""
    lag = version - versions
    return {"lag_mean": float(lag.mean()), "lag_max": float(lag.max())}


def trajectory_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Counts, reward and success of the trajectories used."""
    return {
        "trajectories": float(len(trajectories)),
        "sub_steps": float(sum(t.sub_steps for t in trajectories)),
        "reward_mean": float(np.mean([t.total_reward for t in trajectories])),
        "success_rate": float(np.mean([t.success for t in trajectories])),
    }
