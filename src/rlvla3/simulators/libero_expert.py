"""A scripted expert for tasks that pick up the black bowl and place it on the plate.

It sees the poses of all objects and steers the gripper in a straight line from one way point to the next.
The bowl is wider than the gripper opens, so it is held by its rim, one finger inside.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.simulators.libero_scene import OPEN, Scene

BOWL, PLATE = "akita_black_bowl_1", "plate_1"
_CLOSE = -OPEN
_GAIN = 20.0
"""Action per metre: one of 5 cm is 1."""
_TURN_GAIN = 2.0
"""Action per radian: one of 0.5 rad is 1."""
_RIM_RADIUS = 0.048
_RIM_HEIGHT = 0.035
"""Of the middle of the bowl's wall, in metres from the bowl's origin."""
_CLEARANCE = 0.12
"""Metres above the bowl, and above the plate, at which the gripper travels."""
_LAID_DOWN = 0.02
"""Height of the bowl's origin over the plate's at which it is let go."""

_Vector = npt.NDArray[np.float64]


class _Env(Protocol):
    @property
    def scene(self) -> Scene:
        """What it plays."""
        ...

    @property
    def steps(self) -> int:
        """Sub-steps of the present episode."""
        ...


_BEGINNING, _END = "pick_up_the_black_bowl_", "_and_place_it_on_the_plate"
_OUT_OF_REACH = (
    "in_the_top_drawer_of_the_wooden_cabinet",
    "next_to_the_cookie_box",
    "on_the_wooden_cabinet",
)
"""Where a straight way down to the rim hits something else, or the arm does not get."""


def is_picked_and_placed(task: str) -> bool:
    """Whether the expert solves tasks of this name."""
    place = task.removeprefix(_BEGINNING).removesuffix(_END)
    return task == f"{_BEGINNING}{place}{_END}" and place not in _OUT_OF_REACH


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """A way point: until the gripper is this near (m), at least and at most so many sub-steps."""

    near: float
    least: int
    most: int
    gripper: float


_PHASES = (
    _Phase(near=0.012, least=0, most=60, gripper=OPEN),  # above the rim
    _Phase(near=0.008, least=0, most=40, gripper=OPEN),  # down to it
    _Phase(near=1.0, least=10, most=10, gripper=_CLOSE),  # close
    _Phase(near=0.03, least=0, most=30, gripper=_CLOSE),  # up
    _Phase(near=0.012, least=0, most=60, gripper=_CLOSE),  # above the plate
    _Phase(near=0.010, least=0, most=40, gripper=_CLOSE),  # down to it
    _Phase(near=1.0, least=8, most=8, gripper=OPEN),  # let go
    _Phase(near=0.0, least=0, most=10**6, gripper=OPEN),  # up and away
)


class PickAndPlace:
    """Steers the arm of one env; begins anew with each of its episodes."""

    def __init__(self, env: _Env) -> None:
        self._env = env
        self._phase, self._since = 0, 0
        self._side = 1.0
        self._upright = np.eye(3)
        self._held = np.zeros(3)

    def act(self) -> npt.NDArray[np.float32]:
        """The action [7] from here to the present way point, clipped to [-1, 1]."""
        if self._env.steps == 0:
            self._begin()
        here = self._hand()
        self._advance(here)
        self._since += 1
        move = _GAIN * (self._target(here) - here)
        turn = _TURN_GAIN * _turn(self._orientation(), self._upright)
        action = np.concatenate([move, turn, [_PHASES[self._phase].gripper]])
        clipped: npt.NDArray[np.float32] = np.clip(action, -1.0, 1.0).astype(np.float32)
        return clipped

    def _begin(self) -> None:
        self._phase, self._since = 0, 0
        self._upright = self._orientation()
        self._side = self._free_side()

    def _advance(self, here: _Vector) -> None:
        phase = _PHASES[self._phase]
        arrived = self._since >= phase.least and np.linalg.norm(self._target(here) - here) < phase.near
        if arrived or self._since >= phase.most:
            self._phase, self._since = self._phase + 1, 0
            self._held = here - self._place(BOWL)

    def _target(self, here: _Vector) -> _Vector:
        """Where the gripper is to go, metres."""
        bowl, plate = self._place(BOWL), self._place(PLATE)
        rim = bowl + np.array((0.0, self._side * _RIM_RADIUS, _RIM_HEIGHT))
        over = plate + self._held + np.array((0.0, 0.0, _LAID_DOWN))
        up = np.array((0.0, 0.0, _CLEARANCE))
        lifted = np.array((here[0], here[1], over[2] + _CLEARANCE))
        return (rim + up, rim, here, lifted, over + up, over, here, over + up)[self._phase]

    def _free_side(self) -> float:
        """The side of the bowl, along the line in which the gripper opens, with more room beside it."""
        bowl = self._place(BOWL)[:2]
        others = [self._place(name)[:2] for name in self._inner.obj_body_id if name != BOWL]

        def room(side: float) -> float:
            beside = bowl + np.array((0.0, side * 2 * _RIM_RADIUS))
            return min(float(np.linalg.norm(beside - other)) for other in others)

        return max((1.0, -1.0), key=room)

    @property
    def _inner(self) -> Any:
        return self._env.scene.inner

    def _place(self, name: str) -> _Vector:
        return np.array(self._inner.sim.data.body_xpos[self._inner.obj_body_id[name]])

    def _hand(self) -> _Vector:
        return np.array(self._inner.sim.data.site_xpos[self._inner.robots[0].eef_site_id])

    def _orientation(self) -> npt.NDArray[np.float64]:
        found = self._inner.sim.data.site_xmat[self._inner.robots[0].eef_site_id]
        return np.array(found).reshape(3, 3)


def _turn(now: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> _Vector:
    """Small rotation from one orientation [3, 3] to another as a vector [3], rad."""
    return np.asarray(0.5 * np.cross(now, wanted, axis=0).sum(axis=1), np.float64)
