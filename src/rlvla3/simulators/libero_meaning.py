"""What LIBERO's observations and actions mean; known without LIBERO."""

from collections.abc import Sequence

from rlvla3.simulators.image_fields import cameras
from rlvla3.simulators.robosuite_panda import ARM, FINGERS
from rlvla3.transforms.meaning import Meaning, Numbers, Part, Rotation

_ROLES = {"agentview": "front", "robot0_eye_in_hand": "wrist"}
# The axis-angle is as published states have it, up to 2π long: it must not be folded to π.
_STATE: tuple[Part, ...] = (
    Numbers(name="eef_position", size=3),
    Rotation(name="eef_rotation", form="axis_angle"),
    FINGERS,
)


def meaning(views: Sequence[str], size: int) -> Meaning:
    """What the fields and the action are.

    Args:
        views: LIBERO's names of the cameras, one for each image field.
        size: pixels of a side of the images.
    """
    return Meaning(
        cameras=cameras([_ROLES[view] for view in views], size),
        state={"proprioception": _STATE},
        action=ARM,
    )
