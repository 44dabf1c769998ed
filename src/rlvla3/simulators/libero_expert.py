"""A scripted expert for tasks that pick something up and place it on something else."""

import re
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.simulators.libero_scene import Scene


class _Env(Protocol):
    @property
    def scene(self) -> Scene:
        """What it plays."""
        ...


def picked_and_placed(task: str) -> tuple[str, str] | None:
    """(what is picked up, where it is placed) of a task's name, or None for tasks of another kind."""
    found = re.fullmatch(r"pick_up_the_(black_bowl)_.*_and_place_it_on_the_(plate)", task)
    return (found[1], found[2]) if found else None


class PickAndPlace:
    """TODO."""

    def __init__(self, env: _Env) -> None:
        self._env = env

    def act(self) -> npt.NDArray[np.float32]:
        """TODO."""
        return np.zeros(7, np.float32)
