"""A policy of no simulator's own terms, with a simulator's env behind the transforms."""

import numpy as np

from rlvla3.transforms.composing import compose
from rlvla3.transforms.expecting import Concessions, Expectation
from rlvla3.transforms.meaning import Gripper, Numbers, Rotation, places
from rlvla3.transforms.rotations import convert

OPENNESS = Gripper(open=(1.0,), closed=(0.0,))
HAND = (
    Numbers(name="eef_position", size=3, scale=0.01),
    Rotation(name="eef_rotation", form="matrix"),
    OPENNESS,
)
"""State: centimetres, a rotation matrix, and the share that the gripper is open."""
MOVES = (
    Numbers(name="delta_position", size=3, scale=0.01, frame="base"),
    Rotation(name="delta_rotation", form="axis_angle", frame="base"),
    OPENNESS,
)
"""Action: centimetres, radians, and the share that the gripper shall be open."""


def turn(rotation):
    """The matrix of an axis times an angle."""
    return convert(np.asarray(rotation, float), "axis_angle", "matrix").reshape(3, 3)


def angle(matrix):
    """Axis times angle [3] of a rotation matrix."""
    return convert(np.asarray(matrix, float).reshape(9), "matrix", "axis_angle")


class Terms:
    """Speaks in canonical units: metres, radians, shares; everything goes through ``compose``."""

    def __init__(self, adapter, env, *, state=HAND, action=MOVES, held=()) -> None:
        self.env = env
        self._state, self._action = places(state), places(action)
        expected = Expectation(cameras=(), state=state, action=action)
        accepted = Concessions(held=held)
        self._inputs, self._outputs = compose(adapter.spec.meaning, expected, 1, concessions=accepted)

    def read(self, name):
        """A part of the state in canonical units."""
        part, place = self._state[name]
        return self._inputs.raw_state(self.env.observe())[place].astype(float) * getattr(part, "scale", 1.0)

    @property
    def position(self):
        return self.read("eef_position")

    @property
    def rotation(self):
        return self.read("eef_rotation").reshape(3, 3)

    @property
    def openness(self):
        return float(self.read("gripper")[0])

    def say(self, times=1, **parts):
        """Execute an action: parts by name in canonical units, the others 0 and the gripper open."""
        said = np.zeros((1, sum(part.size for part, _ in self._action.values())))
        said[:, self._action["gripper"][1]] = 1.0
        for name, numbers in parts.items():
            part, place = self._action[name]
            said[:, place] = np.asarray(numbers) / getattr(part, "scale", 1.0)
        action = self._outputs.apply(said)[0].astype(np.float32)
        for _ in range(times):
            self.env.step(action)

    def go(self, position, rotation, steps=40):
        """Say what is missing to a pose, again and again; metres and radians that are missing at the end."""
        for _ in range(steps):
            way, rest = position - self.position, angle(rotation @ self.rotation.T)
            self.say(delta_position=way, delta_rotation=rest)
        return np.abs(position - self.position).max(), np.linalg.norm(angle(rotation @ self.rotation.T))
