"""What RoboCasa's observations and actions mean; known without RoboCasa."""

from collections.abc import Mapping, Sequence

from rlvla3.simulators.image_fields import cameras
from rlvla3.simulators.robosuite_panda import ARM, FINGERS
from rlvla3.transforms.meaning import Meaning, Numbers, Part, Rotation, Switch

# ``eef_…`` is what policies read: relative to the base, which drives about.
_STATE: Mapping[str, Part] = {
    "base_pos": Numbers(name="base_position", size=3),
    "base_quat": Rotation(name="base_rotation", form="quaternion_xyzw"),
    "base_to_eef_pos": Numbers(name="eef_position", size=3),
    "base_to_eef_quat": Rotation(name="eef_rotation", form="quaternion_xyzw"),
    "gripper_qpos": FINGERS,
    "gripper_qvel": Numbers(name="gripper_velocities", size=2),
    "eef_pos": Numbers(name="eef_position_in_room", size=3),
    "eef_quat": Rotation(name="eef_rotation_in_room", form="quaternion_xyzw"),
}
"""By RoboCasa's name."""
_ACTION: tuple[Part, ...] = (
    *ARM,
    Numbers(name="base", size=2, frame="base"),
    Numbers(name="base_turn", size=1, scale=1.5),
    Numbers(name="torso", size=1, scale=0.05),
    Switch(name="mode", on=1.0, off=-1.0, rest=-1.0),
)
"""The base's numbers are speeds that its motors are asked for: m/s forwards and to the left, and rad/s."""


def meaning(views: Sequence[str], size: int, parts: Sequence[str]) -> Meaning:
    """What the fields and the action are.

    Args:
        views: the adapter's names of the cameras, one for each image field; they are their roles.
        size: pixels of a side of the images.
        parts: RoboCasa's names of the parts of ``proprioception``, in their order.
    """
    return Meaning(
        cameras=cameras(views, size),
        state={"proprioception": tuple(_STATE[part] for part in parts)},
        action=_ACTION,
    )
