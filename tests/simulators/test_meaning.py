"""What adapters say of their fields and actions is what the real simulators do."""

import importlib.util

import numpy as np
import pytest
from terms import MOVES, OPENNESS, Terms, angle, turn

from rlvla3.messages import Start
from rlvla3.simulators import maniskill_meaning, robocasa, robocasa_meaning
from rlvla3.simulators.libero import Libero, LiberoSettings
from rlvla3.simulators.maniskill import Maniskill, ManiskillSettings
from rlvla3.simulators.maniskill_tasks import TASKS, WIDOWX_CONTROL
from rlvla3.transforms.meaning import Numbers, total

WIDOWX = "PutCarrotOnPlateInScene-v1"
START = Start(task=0, split="held_out", state=0)


def of_libero(**settings):
    return Libero(LiberoSettings.model_validate({"tasks": (0,), "image_size": 16, **settings}))


def of_maniskill(**settings):
    return Maniskill(ManiskillSettings.model_validate({"image_size": 16, **settings}))


def names(parts):
    return [part.name for part in parts]


# --- what is declared follows the settings: no simulator needed --------------------------------------


def test_cameras_and_their_sizes_are_those_in_force():
    cameras = of_libero(cameras=["robot0_eye_in_hand"], image_size=84).spec.meaning.cameras
    assert [(c.field, c.role, c.height, c.width) for c in cameras] == [("image", "wrist", 84, 84)]
    peg = of_maniskill(tasks=["PegInsertionSide-v1"], cameras=["scene", "hand"], image_size=32)
    assert [(c.field, c.role) for c in peg.spec.meaning.cameras] == [("image", "front"), ("image_2", "wrist")]
    assert of_maniskill(observation="state").spec.meaning.cameras == ()


@pytest.mark.parametrize("control", maniskill_meaning._ACTIONS)
@pytest.mark.parametrize("observation", ["image", "state"])
@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.robot == "panda"])
def test_every_task_observation_and_control_mode_of_the_panda_agrees_with_its_fields(
    task, observation, control
):
    spec = of_maniskill(tasks=[task], observation=observation, control=control).spec
    assert spec.meaning.faults(spec.observation, spec.action_dim) == []


def test_the_widowx_is_not_scaled():
    spec = of_maniskill(tasks=[WIDOWX], reward="success").spec
    assert spec.meaning.faults(spec.observation, spec.action_dim) == []
    assert [getattr(part, "scale", None) for part in spec.meaning.action] == [1.0, 1.0, None]
    assert [part.size for part in spec.meaning.state_parts] == [6, 2, 8]


def test_tasks_of_one_run_say_together_what_they_share():
    spec = of_maniskill(tasks=["PickCube-v1", "PushCube-v1"]).spec
    assert spec.meaning.faults(spec.observation, spec.action_dim) == []
    assert names(spec.meaning.state_parts) == ["joints", "gripper", "joint_velocities", "of_each_task"]
    alike = of_maniskill(tasks=["PegInsertionSide-v1", "PushCube-v1"]).spec.meaning
    assert names(alike.state_parts)[-2:] == ["eef_position", "eef_rotation"]
    beginning = maniskill_meaning._shared([MOVES, MOVES[:2]])
    assert names(beginning) == ["delta_position", "delta_rotation", "of_each_task"], "zeros are no gripper"


@pytest.mark.parametrize("length", robocasa.STATES)
def test_robocasa_is_described_without_it(length):
    found = robocasa_meaning.meaning(("wrist", "center"), 48, robocasa.STATES[length])
    assert [camera.role for camera in found.cameras] == ["wrist", "center"]
    assert (total(found.state_parts), total(found.action)) == (length, robocasa.ACTION_DIM)
    assert len(set(names(found.state_parts))) == len(found.state_parts)


# --- LIBERO ----------------------------------------------------------------------------------------


@pytest.fixture
def in_libero():
    adapter = of_libero(cameras=["agentview"])
    env = adapter.make()
    env.reset(START, 0)
    yield Terms(adapter, env)
    env.close()


def libero(test):
    missing = importlib.util.find_spec("libero") is None
    reason = "LIBERO is not installed: pip install 'rlvla3[libero]'"
    return pytest.mark.libero(pytest.mark.skipif(missing, reason=reason)(test))


@libero
def test_what_is_read_of_libero_is_where_its_hand_is(in_libero):
    simulation, robot = in_libero.env.scene.inner.sim, in_libero.env.scene.inner.robots[0]
    for _ in range(2):
        np.testing.assert_allclose(
            in_libero.position, simulation.data.site_xpos[robot.eef_site_id], rtol=0, atol=1e-6
        )
        body = simulation.data.get_body_xmat(robot.robot_model.eef_name)
        np.testing.assert_allclose(in_libero.rotation, body, rtol=0, atol=1e-5)
        in_libero.say(times=3, delta_position=(0, 0.02, 0.03), delta_rotation=(0.2, 0, 0.3))
    assert in_libero.openness > 0.9
    in_libero.say(times=20, gripper=0)
    assert in_libero.openness < 0.1


@libero
def test_liberos_controller_aims_at_what_was_said(in_libero):
    controller = in_libero.env.scene.inner.robots[0].controller
    controller.update(force=True)
    position, hand = in_libero.position, np.array(controller.ee_ori_mat)
    in_libero.say(delta_position=(0.02, 0, 0), delta_rotation=(0.1, -0.2, 0.3))
    np.testing.assert_allclose(controller.goal_pos - position, (0.02, 0, 0), rtol=0, atol=1e-6)
    np.testing.assert_allclose(angle(controller.goal_ori @ hand.T), (0.1, -0.2, 0.3), rtol=0, atol=1e-6)


@libero
@pytest.mark.parametrize(
    ("way", "rotation"), [((0.02, 0, 0), (0, 0, 0)), ((0, 0.02, 0.01), (0.2, -0.1, 0.3))]
)
def test_liberos_hand_goes_where_it_is_told(in_libero, way, rotation):
    place, direction = in_libero.position + np.array(way), turn(rotation) @ in_libero.rotation
    away, askew = in_libero.go(place, direction)
    assert away < 0.003 and askew < 0.03


# --- ManiSkill -------------------------------------------------------------------------------------


@pytest.fixture
def in_maniskill():
    made = []

    def build(terms, **settings):
        adapter = of_maniskill(**settings)
        made.append(adapter.make())
        made[-1].reset(START, 0)
        return Terms(adapter, made[-1], **terms)

    yield build
    for env in made:
        env.close()


@pytest.mark.maniskill
@pytest.mark.parametrize("task", ["PickCube-v1", "PushCube-v1", "PegInsertionSide-v1"])
def test_what_is_read_of_maniskill_is_where_its_hand_is(in_maniskill, task):
    hand = in_maniskill({}, tasks=[task])
    pose = hand.env.base.agent.tcp.pose
    np.testing.assert_allclose(hand.position, pose.p[0].numpy(), rtol=0, atol=1e-6)
    matrix = pose.to_transformation_matrix()[0, :3, :3].numpy()
    np.testing.assert_allclose(hand.rotation, matrix, rtol=0, atol=1e-5)
    hand.say(times=6)
    assert hand.openness > 0.95
    hand.say(times=6, gripper=0)
    assert hand.openness < 0.05


@pytest.mark.maniskill
def test_maniskills_hand_moves_by_what_was_said(in_maniskill):
    hand = in_maniskill({}, control="pd_ee_target_delta_pose")
    before = hand.position
    hand.say(delta_position=(0.02, 0, 0))
    hand.say(times=10)
    np.testing.assert_allclose(hand.position - before, (0.02, 0, 0), rtol=0, atol=0.002)


@pytest.mark.maniskill
def test_maniskills_hand_turns_by_what_was_said_also_about_a_slanting_axis(in_maniskill):
    """Ten times a tenth of a radian: a turn whose three angles are applied in the other order ends 0.05
    away, a turn the other way two radians."""
    hand = in_maniskill({}, control="pd_ee_target_delta_pose")
    before, small = hand.rotation, np.array((0.04, 0.06, -0.06))
    hand.say(times=10, delta_rotation=small)
    hand.say(times=10)
    np.testing.assert_allclose(angle(hand.rotation @ before.T), 10 * small, rtol=0, atol=0.015)


@pytest.mark.maniskill
@pytest.mark.parametrize("control", ["pd_ee_delta_pose", "pd_ee_target_delta_pose"])
def test_maniskills_hand_goes_where_it_is_told(in_maniskill, control):
    hand = in_maniskill({}, control=control)
    place, direction = hand.position + np.array((0, 0.03, 0.02)), turn((0.1, 0.05, -0.1)) @ hand.rotation
    away, askew = hand.go(place, direction, steps=20)
    assert away < 0.003 and askew < 0.03


@pytest.mark.maniskill
def test_maniskills_joints_move_by_what_was_said(in_maniskill):
    joints = Numbers(name="joints", size=7)
    terms = {"state": (joints,), "action": (Numbers(name="delta_joints", size=7), OPENNESS)}
    arm = in_maniskill(terms, control="pd_joint_target_delta_pos")
    before, said = arm.read("joints"), np.array((0.05, -0.04, 0.03, 0.02, -0.05, 0.04, 0.06))
    arm.say(delta_joints=said)
    arm.say(times=10)
    np.testing.assert_allclose(arm.read("joints") - before, said, rtol=0, atol=0.003)


@pytest.mark.maniskill
def test_the_widowx_is_controlled_as_is_said():
    """Its assets are a download; what its controller does with numbers is in the package."""
    from mani_skill.envs.tasks.digital_twins.bridge_dataset_eval import base_env

    robot = base_env.WidowX250SBridgeDatasetFlatTable
    config = robot.__new__(robot)._controller_configs[WIDOWX_CONTROL]
    assert not config["arm"].normalize_action and config["arm"].use_delta
    assert config["arm"].frame == "root_translation:root_aligned_body_rotation"
    gripper = config["gripper"]
    assert gripper.normalize_action
    np.testing.assert_allclose((gripper.lower, gripper.upper), (0.014, 0.038))
