"""Whether members of a group really began alike: what they are compared for rests on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.algorithms.api import Groups
from rlvla3.errors import UserError
from rlvla3.messages import Trajectory

Fields = Mapping[str, npt.NDArray[Any]]


def start_differences(
    trajectories: Sequence[Trajectory], first: Sequence[Fields], groups: Groups
) -> npt.NDArray[np.float64]:
    """Greatest difference of each trajectory's first observation from that of its group's first member [N].

    Args:
        trajectories: whole groups.
        first: their first observations, without a leading dimension.
        groups: what the algorithm asks for.

    Raises:
        UserError: a difference above the tolerance, with where it was met.
        RuntimeError: they were given different starts.
    """
    leaders: dict[int, int] = {}
    found = np.zeros(len(trajectories))
    for index, (trajectory, fields) in enumerate(zip(trajectories, first, strict=True)):
        leader = leaders.setdefault(int(trajectory.group), index)
        if trajectory.start != trajectories[leader].start:
            raise RuntimeError(
                f"group {trajectory.group} has {trajectory.start} and {trajectories[leader].start}"
            )
        found[index], name = _difference(fields, first[leader])
        if found[index] > groups.tolerance:
            raise UserError(
                f"algorithm.options.start_tolerance = {groups.tolerance:g}: members of a group must begin "
                f"alike, episode {trajectory.episode} (task {trajectory.start.task}, state "
                f"{trajectory.start.state}) differs from episode {trajectories[leader].episode} by "
                f"{found[index]:.3g} in {name!r}; let the simulator reset hard, or raise the tolerance"
            )
    return found


def _difference(one: Fields, other: Fields) -> tuple[float, str]:
    """The greatest difference of any number, and the field that it is in."""
    worst, where = 0.0, ""
    for name, array in one.items():
        gap = np.abs(array.astype(np.float64) - other[name].astype(np.float64))
        gap = np.nan_to_num(gap, nan=np.inf)
        largest = float(gap.max(initial=0.0)) / (255.0 if array.dtype == np.uint8 else 1.0)
        if largest > worst:
            worst, where = largest, name
    return worst, where
