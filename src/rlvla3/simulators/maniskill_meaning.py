"""What ManiSkill's observations and actions mean; known without ManiSkill."""

from collections.abc import Mapping, Sequence

from rlvla3.simulators.image_fields import cameras
from rlvla3.simulators.maniskill_tasks import TASKS, Task
from rlvla3.transforms.meaning import Gripper, Meaning, Numbers, Part, Rotation, total

_ROLES = {"scene": "front", "hand": "wrist"}
_FINGERS = {
    "panda": Gripper(open=(0.04, 0.04), closed=(0.0, 0.0)),
    "widowx": Gripper(open=(0.037, 0.037), closed=(0.015, 0.015)),
}
"""Positions of both fingers in metres, of each robot."""
_GRIP = Gripper(open=(1.0,), closed=(-1.0,))
_MOVE = Numbers(name="delta_position", size=3, scale=0.1, frame="base")
# ManiSkill multiplies with the lower limit, which is -0.1, so a positive number turns backwards. A batch on a
# GPU takes the three angles as a rotation vector, which differs by less than 0.003 rad.
_TURN = Rotation(name="delta_rotation", form="euler_xyz_intrinsic", scale=-0.1, frame="base")
_JOINTS = Numbers(name="delta_joints", size=7, scale=0.1)
_ACTIONS: Mapping[str, tuple[Part, ...]] = {
    "pd_ee_delta_pos": (_MOVE, _GRIP),
    "pd_ee_delta_pose": (_MOVE, _TURN, _GRIP),
    "pd_ee_target_delta_pos": (_MOVE, _GRIP),
    "pd_ee_target_delta_pose": (_MOVE, _TURN, _GRIP),
    "pd_joint_delta_pos": (_JOINTS, _GRIP),
    "pd_joint_target_delta_pos": (_JOINTS, _GRIP),
}
"""By control mode of the Panda."""
# Its controller scales nothing but the gripper.
_WIDOWX: tuple[Part, ...] = (
    Numbers(name="delta_position", size=3, frame="base"),
    Rotation(name="delta_rotation", form="euler_xyz_intrinsic", frame="base"),
    _GRIP,
)


def _pose(thing: str) -> tuple[Part, ...]:
    return (
        Numbers(name=f"{thing}_position", size=3),
        Rotation(name=f"{thing}_rotation", form="quaternion_wxyz"),
    )


_SEEN: Mapping[str, tuple[Part, ...]] = {
    "is_grasped": (Numbers(name="is_grasped", size=1),),
    "tcp_pose": _pose("eef"),
    "goal_pos": (Numbers(name="goal_position", size=3),),
    "obj_pose": _pose("object"),
    "tcp_to_obj_pos": (Numbers(name="eef_to_object", size=3),),
    "obj_to_goal_pos": (Numbers(name="object_to_goal", size=3),),
    "peg_pose": _pose("peg"),
    "peg_half_size": (Numbers(name="peg_half_size", size=3),),
    "box_hole_pose": _pose("hole"),
    "box_hole_radius": (Numbers(name="hole_radius", size=1),),
}
"""Entries after the joints, by ManiSkill's name."""


def meaning(
    tasks: Sequence[str], views: Sequence[str], size: int, *, control: str, privileged: bool
) -> Meaning:
    """What the fields and the action are.

    Args:
        tasks: names of the tasks, all with the same robot.
        views: ``scene`` or ``hand``, one for each image field.
        size: pixels of a side of the images.
        control: control mode of the Panda; the WidowX has one of its own.
        privileged: whether the vector holds the true poses.
    """
    widowx = TASKS[tasks[0]].robot == "widowx"
    return Meaning(
        cameras=cameras([_ROLES[view] for view in views], size),
        state={"proprioception": _shared([_vector(TASKS[task], privileged) for task in tasks])},
        action=_WIDOWX if widowx else _ACTIONS[control],
    )


def _vector(task: Task, privileged: bool) -> tuple[Part, ...]:
    """The vector of one task."""
    fingers = _FINGERS[task.robot]
    return (
        Numbers(name="joints", size=task.joints - fingers.size),
        fingers,
        Numbers(name="joint_velocities", size=task.joints),
        *(part for name in task.vector(privileged) for part in _SEEN[name]),
    )


def _shared(vectors: Sequence[tuple[Part, ...]]) -> tuple[Part, ...]:
    """What all vectors begin with, and the rest, which differs from task to task and so has no names."""
    longest = max(vectors, key=total)
    common = 0
    while common < len(longest) and all(v[common : common + 1] == (longest[common],) for v in vectors):
        common += 1
    rest = total(longest[common:])
    return (*longest[:common], *((Numbers(name="of_each_task", size=rest),) if rest else ()))
