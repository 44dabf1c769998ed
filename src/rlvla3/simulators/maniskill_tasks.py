"""ManiSkill's tasks that the adapter knows: what they are told, how long they take, what is seen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, known without importing ManiSkill."""

    instruction: str
    """Language instruction; of the WidowX family the benchmark's own words."""
    limit: int
    """ManiSkill's own episode length in sub-steps."""
    robot: Literal["panda", "widowx"] = "panda"
    """What acts: tasks of one run must have the same robot."""
    joints: int = 9
    """Length of its joint positions, and of its joint velocities."""
    seen: Mapping[str, int]
    """Further entries of the policy's vector beside images: name in ManiSkill's observation → length."""
    privileged: Mapping[str, int]
    """What ``observation: state`` adds to these."""
    scene_camera: str = "base_camera"
    """Name of the camera that overlooks the scene."""
    hand_camera: str = ""
    """Name of the camera at the gripper; empty where there is none."""
    assets: Mapping[str, str] = field(default_factory=dict)
    """What must have been downloaded: ManiSkill's name → place in its folder of data."""
    dense: bool = True
    """Whether it has a dense reward."""
    rebuilt: bool = False
    """Whether its objects differ from episode to episode, so that its scene must be built anew for each."""

    def vector(self, privileged: bool) -> dict[str, int]:
        """Entries after the joints, in order."""
        return {**self.seen, **(self.privileged if privileged else {})}

    def length(self, privileged: bool) -> int:
        """Length of the policy's vector."""
        return 2 * self.joints + sum(self.vector(privileged).values())


def _widowx(instruction: str, limit: int) -> Task:
    return Task(
        instruction=instruction,
        limit=limit,
        robot="widowx",
        joints=8,
        seen={},
        privileged={},
        scene_camera="3rd_view_camera",
        assets={
            "bridge_v2_real2sim": "tasks/bridge_v2_real2sim_dataset",
            "widowx250s": "robots/widowx",
        },
        dense=False,
    )


TASKS: Mapping[str, Task] = {
    # The goal of PickCube is not drawn into the policy's images, so its position is part of the vector.
    "PickCube-v1": Task(
        instruction="pick up the red cube and hold it at the goal",
        limit=50,
        seen={"is_grasped": 1, "tcp_pose": 7, "goal_pos": 3},
        privileged={"obj_pose": 7, "tcp_to_obj_pos": 3, "obj_to_goal_pos": 3},
    ),
    "PushCube-v1": Task(
        instruction="push the blue cube onto the red and white target",
        limit=50,
        seen={"tcp_pose": 7},
        privileged={"goal_pos": 3, "obj_pose": 7},
    ),
    "PegInsertionSide-v1": Task(
        instruction="insert the peg into the hole in the side of the box",
        limit=100,
        seen={"tcp_pose": 7},
        privileged={"peg_pose": 7, "peg_half_size": 3, "box_hole_pose": 7, "box_hole_radius": 1},
        hand_camera="hand_camera",
        rebuilt=True,
    ),
    "PutCarrotOnPlateInScene-v1": _widowx("put carrot on plate", 60),
    "PutEggplantInBasketScene-v1": _widowx("put eggplant into yellow basket", 120),
    "StackGreenCubeOnYellowCubeBakedTexInScene-v1": _widowx("stack the green block on the yellow block", 60),
    "PutSpoonOnTableClothInScene-v1": _widowx("put the spoon on the towel", 60),
}
"""By name; ``simulator.options.tasks`` chooses among them."""

ACTION_DIM: Mapping[str, int] = {
    "pd_ee_delta_pos": 4,
    "pd_ee_delta_pose": 7,
    "pd_ee_target_delta_pos": 4,
    "pd_ee_target_delta_pose": 7,
    "pd_joint_delta_pos": 8,
    "pd_joint_target_delta_pos": 8,
}
"""Control modes of the Panda whose actions ManiSkill scales itself from [-1, 1], and their dimensions."""
WIDOWX_CONTROL = "arm_pd_ee_target_delta_pose_align2_gripper_pd_joint_pos"
"""The one control mode of the WidowX: metres, radians and the gripper, 7 dimensions."""
WIDOWX_ACTION_DIM = 7
