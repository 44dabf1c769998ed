"""What a Panda arm of robosuite says and does: LIBERO's and RoboCasa's."""

from rlvla3.transforms.meaning import Gripper, Numbers, Part, Rotation

FINGERS = Gripper(open=(0.04, -0.04), closed=(0.0, 0.0))
"""Positions of both fingers in metres; they move in opposite directions."""
ARM: tuple[Part, ...] = (
    Numbers(name="delta_position", size=3, scale=0.05, frame="base"),
    Rotation(name="delta_rotation", form="axis_angle", scale=0.5, frame="base"),
    Gripper(open=(-1.0,), closed=(1.0,)),
)
"""An action of the controller ``OSC_POSE``: 1 sets a goal 5 cm, or 0.5 rad, from where the hand is, which it
goes part of the way to in a sub-step; and where the fingers go."""
