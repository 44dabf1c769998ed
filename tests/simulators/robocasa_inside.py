"""RoboCasa's adapter, in the environment that has RoboCasa; ``test_robocasa.py`` runs it there.

``$ROBOCASA_ASSETS_PATH`` is the kitchen of ``robocasa_kitchen.py``.
"""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from terms import HAND, MOVES, Terms, angle, turn

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.simulators import robocasa, robocasa_package
from rlvla3.simulators.chunking import SerialBatch, chunk_step
from rlvla3.simulators.robocasa import Robocasa, RobocasaEnv, RobocasaSettings
from rlvla3.transforms.meaning import Numbers, Rotation

pytestmark = pytest.mark.robocasa

KITCHEN = {"kitchens": {"train": [[1, 1]], "held_out": [[1, 1]], "demonstration": [[1, 1]]}}
START = Start(task=0, split="train", state=0)
STILL = np.zeros(12, np.float32)
STILL[11] = -1.0


def adapter(**changes: object) -> Robocasa:
    return Robocasa(RobocasaSettings.model_validate({**KITCHEN, "image_size": 48, **changes}))


@pytest.fixture
def env() -> Iterator[RobocasaEnv]:
    made = adapter(instruction_size=64).make()
    made.reset(START, 0)
    yield made
    made.close()


def pull(env: RobocasaEnv, share: float) -> None:
    """Open the drawer so far: 1 is what counts as open."""
    drawer = env._inner.drawer
    (joint,) = drawer.door_joint_names
    env._inner.sim.data.set_joint_qpos(joint, -share * 0.55 * drawer.size[1])


def test_the_action_is_in_the_order_that_is_documented(env: RobocasaEnv) -> None:
    (robot,) = env._inner.robots
    parts = robot.composite_controller._action_split_indexes
    assert dict(parts) == {"right": (0, 6), "right_gripper": (6, 7), "base": (7, 10), "torso": (10, 11)}
    assert env._inner.action_spec[0].shape == (12,)


def act(env: RobocasaEnv, index: int, value: float, steps: int = 10) -> dict[str, np.ndarray]:
    """What changes of the robot's state under one action."""
    before = {name: np.array(array) for name, array in env._raw.items()}
    action = STILL.copy()
    action[index] = value
    for _ in range(steps):
        env.step(action)
    return {name: np.asarray(env._raw[name]) - array for name, array in before.items()}


def test_arm_gripper_and_base_move_as_documented(env: RobocasaEnv) -> None:
    assert act(env, 2, 1.0)["robot0_base_to_eef_pos"][2] > 0.02, "the hand goes up"
    opened = act(env, 6, -1.0)["robot0_gripper_qpos"][0]
    assert act(env, 6, 1.0)["robot0_gripper_qpos"][0] < opened - 0.01, "a positive number closes"
    driving = STILL.copy()
    driving[7], driving[11] = -1.0, 1.0
    before = env._raw["robot0_base_pos"].copy()
    for _ in range(10):
        env.step(driving)
    moved = np.linalg.norm(env._raw["robot0_base_pos"] - before)
    assert moved > 0.02, "the base moves in its mode"


BASE = (Numbers(name="base_position", size=3), Rotation(name="base_rotation", form="matrix"))
DRIVING = (Numbers(name="base", size=2), Numbers(name="base_turn", size=1))


@pytest.fixture
def terms() -> Iterator[Terms]:
    simulator = adapter(cameras=["wrist"], image_size=16)
    made = simulator.make()
    made.reset(START, 0)
    yield Terms(simulator, made, state=(*HAND, *BASE), action=(*MOVES, *DRIVING), held=("torso", "mode"))
    made.close()


def test_the_hand_is_where_it_is_said_to_be_and_goes_where_it_is_told(terms: Terms) -> None:
    (robot,) = terms.env._inner.robots
    body = terms.env._data.body(robot.robot_model.eef_name["right"]).xmat.reshape(3, 3)
    base = terms.read("base_rotation").reshape(3, 3)
    np.testing.assert_allclose(terms.rotation, base.T @ body, rtol=0, atol=1e-4)
    np.testing.assert_allclose(terms.position, terms.env._raw["robot0_base_to_eef_pos"], rtol=0, atol=1e-6)
    goal = terms.position + np.array((-0.02, 0.03, 0.02))
    away, askew = terms.go(goal, turn((0.1, -0.1, 0.2)) @ terms.rotation)
    assert away < 0.005 and askew < 0.05
    terms.say(times=15)
    assert terms.openness > 0.9
    terms.say(times=15, gripper=0)
    assert terms.openness < 0.1


def test_the_base_drives_and_turns_as_it_is_told(terms: Terms) -> None:
    """Away from the counter. Friction makes it slower than its motors are asked for."""
    (robot,) = terms.env._inner.robots
    parts = robot.composite_controller.part_controllers
    np.testing.assert_array_equal(parts["base"].actuator_max, (1.0, 1.0, 1.5))
    np.testing.assert_array_equal(parts["torso"].output_max, (0.05,))
    for speeds in ((-0.8, 0.0), (0.0, 0.8)):
        before, base = terms.read("base_position"), terms.read("base_rotation").reshape(3, 3)
        terms.say(times=10, base=speeds)
        moved = (base.T @ (terms.read("base_position") - before))[:2]
        assert 0.05 < moved @ np.sign(speeds) < 0.4, moved
        assert abs(moved @ np.sign(speeds)[::-1]) < 0.03, moved
    base = terms.read("base_rotation").reshape(3, 3)
    terms.say(times=10, base_turn=1.0)
    turned = angle(terms.read("base_rotation").reshape(3, 3) @ base.T)
    assert 0.15 < turned[2] < 0.5 and np.abs(turned[:2]).max() < 0.01


def test_observations(env: RobocasaEnv) -> None:
    observation = env.observe()
    assert observation["proprioception"].shape == (16,)
    places = {
        "base_pos": slice(0, 3),
        "base_quat": slice(3, 7),
        "base_to_eef_pos": slice(7, 10),
        "base_to_eef_quat": slice(10, 14),
        "gripper_qpos": slice(14, 16),
    }
    for name, place in places.items():
        expected = env._raw[f"robot0_{name}"].astype(np.float32)
        np.testing.assert_array_equal(observation["proprioception"][place], expected)
    text = bytes(observation["instruction"]).rstrip(b"\0").decode()
    assert text == env.instruction
    assert text in ("Open the left drawer.", "Open the right drawer.")
    for name in ("image", "image_2", "image_3"):
        image = observation[name]
        assert image.shape == (48, 48, 3) and image.dtype == np.uint8
        assert image.std() > 5, f"{name} shows nothing"
    assert not np.array_equal(observation["image"], observation["image_2"])
    assert env.picture().shape == (256, 256, 3)


def test_the_longer_state_and_the_instruction_that_does_not_fit() -> None:
    env = adapter(state=25, instruction_size=5).make()
    env.reset(START, 0)
    with pytest.raises(UserError, match="instruction_size = 5 is too small for 'Open the"):
        env.observe()
    env.close()
    env = adapter(state=25).make()
    env.reset(START, 0)
    state = env.observe()["proprioception"]
    assert state.shape == (25,)
    np.testing.assert_array_equal(state[11:14], env._raw["robot0_base_to_eef_pos"].astype(np.float32))
    env.close()


def test_pictures_are_upright_and_as_robosuite_draws_them() -> None:
    """Robosuite's frames are upside down, and RoboCasa turns them over; so ours must equal that."""
    env = adapter(rendering="stock", image_size=64).make()
    env.reset(START, 0)
    ours = env.observe()
    from robosuite.utils.binding_utils import MjRenderContextOffscreen

    sim = env._inner.sim
    context = MjRenderContextOffscreen(sim, device_id=-1)
    context.vopt.geomgroup[0] = 0
    for name, camera in (("image", "left"), ("image_2", "right"), ("image_3", "wrist")):
        theirs = sim.render(camera_name=robocasa.CAMERAS[camera], width=64, height=64)[::-1]
        difference = np.abs(ours[name].astype(int) - theirs.astype(int))
        assert (difference.max(-1) > 24).mean() < 0.02, name
        upside_down = np.abs(ours[name].astype(int) - theirs[::-1].astype(int))
        assert (upside_down.max(-1) > 24).mean() > 0.2, name
    env.close()


def test_an_open_drawer_is_a_success_and_ends_the_episode_once() -> None:
    env = adapter(reward="success").make()
    batch = SerialBatch([env])
    batch.reset(0, START, 0)
    actions = np.tile(STILL, (1, 5, 1))
    [result] = chunk_step(batch, [0], actions)
    assert (result.success, result.terminated, result.sub_steps) == (False, False, 5)
    assert sum(result.reward) == 0
    pull(env, 0.8)
    [result] = chunk_step(batch, [0], actions)
    assert not result.success, "not open enough"
    pull(env, 1.2)
    [result] = chunk_step(batch, [0], actions)
    assert (result.success, result.terminated, result.truncated) == (True, True, False)
    assert (result.sub_steps, sum(result.reward)) == (1, 1.0)
    env.close()


def test_the_own_step_limit_is_robocasas(env: RobocasaEnv) -> None:
    assert env._limit == robocasa_package.own_step_limit("OpenDrawer") == 750
    assert robocasa_package.own_step_limit("NavigateKitchen") != 750


def test_a_kitchen_that_needs_a_missing_file_names_it_and_the_command() -> None:
    env = adapter(kitchens={**KITCHEN["kitchens"], "train": [[1, 2]]}).make
    with pytest.raises(UserError) as refusal:
        env().reset(START, 0)
    line = str(refusal.value)
    assert "there is no file /" in line and "style002.yaml" in line
    assert f"{sys.executable} -m robocasa.scripts.download_assets_cli" in line


def test_tasks_and_assets_are_looked_for_without_importing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'OpenDrawr' is not a task of RoboCasa; did you mean OpenDrawer"):
        _ = adapter(tasks=["OpenDrawr"]).spec
    with pytest.raises(UserError, match=r"there are no textures and no objects in .*; get RoboCasa's assets"):
        _ = adapter(assets=str(tmp_path)).spec
    assert len(robocasa_package.task_names()) > 300


def test_other_assets_in_the_same_process_are_refused(env: RobocasaEnv, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="this process uses RoboCasa with"):
        adapter(assets=str(tmp_path)).make()


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def test_memory_is_flat_over_resets_with_pictures(env: RobocasaEnv) -> None:
    sizes = []
    for state in range(12):
        env.reset(Start(task=0, split="train", state=state % 3), 0)
        env.observe()
        sizes.append(resident_mb())
    slope = np.polyfit(np.arange(8), sizes[4:], 1)[0]
    assert slope < 3.0, f"{slope:.1f} MB for each reset: {sizes}"


def test_every_kind_of_object_has_models_in_the_kitchen() -> None:
    from robocasa.models.objects.kitchen_object_utils import OBJ_CATEGORIES

    kinds = {
        name: sum(len(kind.mjcf_paths) for kind in found.values()) for name, found in OBJ_CATEGORIES.items()
    }
    assert [name for name, count in kinds.items() if count < 2] == []
