"""Scripted experts for ManiSkill's cube tasks: a P-controller on the true poses of gripper and cube."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
_STEP_M = 0.1
"""Displacement of the gripper for an action of 1."""
_ABOVE_M = 0.08
"""Height over the cube at which the gripper moves sideways."""
_BEHIND_M = 0.07
"""Distance from the centre of a cube at which the gripper goes down behind it."""
_OPEN, _CLOSED = 1.0, -1.0


class Playing(Protocol):
    """An env that plays a task: what an expert looks at."""

    @property
    def task(self) -> str:
        """Name of the task being played."""
        ...

    @property
    def base(self) -> Any:
        """ManiSkill's own environment."""
        ...


def _position(pose: Any) -> Vector:
    position: Vector = pose.p[0].cpu().numpy().astype(np.float64)
    return position


def _pick_cube(base: Any) -> tuple[Vector, float]:
    """Way of the gripper in metres and what its fingers do: over the cube, down, close, to the goal."""
    cube = _position(base.cube.pose)
    if bool(base.agent.is_grasping(base.cube)[0]):
        return _position(base.goal_site.pose) - cube, _CLOSED
    way = cube - _position(base.agent.tcp.pose)
    low = way[2] > -0.02
    # Closing fingers may turn and shift the cube; that is no reason to let go of it.
    if np.hypot(way[0], way[1]) > (0.03 if low else 0.01):
        way[2] += _ABOVE_M
        return way, _OPEN
    return way, _CLOSED if way[2] > -0.01 else _OPEN


def _push_cube(base: Any) -> tuple[Vector, float]:
    """Over the table to behind the cube, down, and on along x with y in line."""
    cube, hand = _position(base.obj.pose), _position(base.agent.tcp.pose)
    way = cube - hand
    if hand[2] < 0.05 and way[0] > 0.01 and abs(way[1]) < 0.02:
        return np.array((_STEP_M, way[1], way[2])), _CLOSED
    way[0] -= _BEHIND_M
    if np.hypot(way[0], way[1]) > 0.015:
        way[2] += _ABOVE_M
    return way, _CLOSED


_EXPERTS: Mapping[str, Callable[[Any], tuple[Vector, float]]] = {
    "PickCube-v1": _pick_cube,
    "PushCube-v1": _push_cube,
}
_CONTROLS = ("pd_ee_delta_pos", "pd_ee_delta_pose")


class ManiskillExpert:
    """The scripted expert of whatever task the env is playing."""

    def __init__(self, env: Playing, tasks: tuple[str, ...], control: str, action_dim: int) -> None:
        """Raise LookupError where a task has no expert, or the control mode none."""
        without = [task for task in tasks if task not in _EXPERTS]
        if without:
            raise LookupError(
                f"simulator maniskill has no expert for {', '.join(without)} (it has for "
                f"{', '.join(_EXPERTS)}); give a demonstration file instead"
            )
        if control not in _CONTROLS:
            raise LookupError(
                f"simulator maniskill has no expert for control {control}; set simulator.options.control: "
                f"{' or '.join(_CONTROLS)}"
            )
        self._env = env
        self._dim = action_dim

    def act(self) -> npt.NDArray[np.float32]:
        """Action [A]: displacement, no rotation, gripper."""
        way, fingers = _EXPERTS[self._env.task](self._env.base)
        action = np.zeros(self._dim, np.float32)
        action[:3] = np.clip(way / _STEP_M, -1.0, 1.0)
        action[-1] = fingers
        return action
