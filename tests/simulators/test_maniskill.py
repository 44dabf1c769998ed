import os
import subprocess
import sys

import numpy as np
import pytest

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.simulators.chunking import chunk_step
from rlvla3.simulators.maniskill import Maniskill, ManiskillBatch, ManiskillSettings, seed_of
from rlvla3.simulators.maniskill_scene import _resized
from rlvla3.simulators.maniskill_tasks import TASKS

START = Start(task=0, split="train", state=4)
WIDOWX = "PutCarrotOnPlateInScene-v1"


def adapter(**settings) -> Maniskill:
    return Maniskill(ManiskillSettings.model_validate({"image_size": 32, **settings}))


@pytest.fixture
def make():
    made = []

    def build(**settings):
        simulator = adapter(**settings)
        made.append(simulator.make())
        return simulator, made[-1]

    yield build
    for env in made:
        env.close()


# --- settings: no ManiSkill needed ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["PickCub-v1"]}, "did you mean PickCube-v1"),
        ({"tasks": []}, "at least one"),
        ({"tasks": ["PickCube-v1", "PickCube-v1"]}, "must differ"),
        ({"tasks": ["PickCube-v1", WIDOWX]}, "the same robot"),
        ({"cameras": ["scene", "hand"]}, "PickCube-v1 has no camera at the gripper"),
        ({"control": "pd_joint_vel"}, "pd_joint_delta_pos"),
        ({"tasks": [WIDOWX]}, "have no dense reward"),
        ({"tasks": [WIDOWX], "reward": "success", "observation": "state"}, "images only"),
        ({"backend": "gpu", "tasks": ["PickCube-v1", "PushCube-v1"]}, "one task"),
        ({"backend": "gpu", "tasks": ["PegInsertionSide-v1"]}, "other objects for each episode"),
        ({"backend": "gpu", "control": "pd_ee_target_delta_pos"}, "moves the targets of all others"),
        ({"backend": "gpu", "tasks": [WIDOWX], "reward": "success"}, "moves the targets of all others"),
    ],
)
def test_bad_settings_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        ManiskillSettings.model_validate(settings)


def test_what_a_gpu_changes_is_declared() -> None:
    assert adapter(backend="gpu").spec.steps_together
    assert not adapter().spec.steps_together
    assert adapter().spec.fingerprint["backend"] == "cpu"


def test_limits_are_those_of_the_tasks_unless_given() -> None:
    tasks = ["PickCube-v1", "PegInsertionSide-v1"]
    assert adapter(tasks=tasks).spec.step_limits == (50, 100)
    assert adapter(tasks=tasks, step_limits=[30, 0]).spec.step_limits == (30, 100)


def test_vectors_of_several_tasks_have_the_length_of_the_longest() -> None:
    spec = adapter(tasks=["PushCube-v1", "PickCube-v1"]).spec
    assert spec.observation[-1].shape == (29,)
    assert adapter(tasks=[WIDOWX], reward="success").spec.action_dim == 7


def test_every_split_and_state_has_a_seed_of_its_own() -> None:
    settings = ManiskillSettings()
    seeds = {
        seed_of(settings, Start(task=0, split=split, state=state))
        for split in ("train", "held_out", "demonstration")
        for state in range(300)
    }
    assert len(seeds) == 900
    assert seed_of(settings, START) != seed_of(ManiskillSettings(seed=1), START)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 7)])
def test_resizing_takes_the_mean_of_what_a_pixel_covers(shape) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, *shape, 3))
    smaller = _resized(pixels, 2)
    fine = pixels.repeat(2, 1).repeat(2, 2)  # halves of pixels, so that edges fall between them
    rows, columns = shape
    wanted = fine[:, :rows, :columns].mean((1, 2))
    np.testing.assert_allclose(smaller[:, 0, 0], wanted, atol=0.51)
    assert smaller.shape == (2, 2, 2, 3)


# --- the real simulator --------------------------------------------------------------------------


@pytest.mark.maniskill
def test_images_show_the_cube_and_it_stands_on_the_table(make) -> None:
    _, env = make(image_size=64)
    env.reset(START, 0)
    image = env.observe()["image"].astype(int)
    red = (image[..., 0] > 90) & (image[..., 1] < 60) & (image[..., 2] < 60)
    assert 5 < red.sum() < 400
    assert image.std() > 20, "not a black or even frame"
    # The camera stands in front of the robot and looks back and down at it: the robot is at the top.
    cube_x_m = float(env.base.cube.pose.p[0, 0])
    env.base.cube.set_pose(_moved(env, dx_m=0.1))
    env._scene._seen = None
    nearer = env.observe()["image"].astype(int)
    lower = (nearer[..., 0] > 90) & (nearer[..., 1] < 60) & (nearer[..., 2] < 60)
    assert np.argwhere(lower)[:, 0].mean() > np.argwhere(red)[:, 0].mean(), cube_x_m


def _moved(env, dx_m):
    import sapien

    position = env.base.cube.pose.p[0].numpy().copy()
    position[0] += dx_m
    return sapien.Pose(p=position)


@pytest.mark.maniskill
def test_the_goal_of_pick_cube_is_in_the_vector_and_in_pictures_only(make) -> None:
    _, env = make(image_size=64)
    env.reset(START, 0)
    before = env.observe()
    np.testing.assert_allclose(before["proprioception"][-3:], env.base.goal_site.pose.p[0].numpy(), atol=1e-6)

    def greens(image):
        image = image.astype(int)
        return int(((image[..., 1] > 120) & (image[..., 0] < 100) & (image[..., 2] < 100)).sum())

    picture = env.picture()
    assert picture.shape == (256, 256, 3)
    assert greens(picture) > 10
    assert greens(before["image"]) == 0
    np.testing.assert_array_equal(env.observe()["image"], before["image"])


@pytest.mark.maniskill
def test_the_first_joints_of_the_vector_are_the_robot_s(make) -> None:
    _, env = make(observation="state")
    env.reset(START, 0)
    vector = env.observe()["proprioception"]
    assert vector.shape == (42,)
    np.testing.assert_array_equal(vector[:9], env.base.agent.robot.get_qpos()[0].numpy())
    np.testing.assert_array_equal(vector[29:32], env.base.cube.pose.p[0].numpy())


@pytest.mark.maniskill
def test_an_action_moves_the_hand_where_it_says(make) -> None:
    """1 is a target 10 cm away, of which the hand covers two fifths in one sub-step."""
    _, env = make(control="pd_ee_delta_pos")
    env.reset(START, 0)
    before = env.base.agent.tcp.pose.p[0].numpy().copy()
    env.step(np.array((0.5, 0, 0, 1), np.float32))
    moved = env.base.agent.tcp.pose.p[0].numpy() - before
    assert moved[0] == pytest.approx(0.5 * 0.1 * 0.4, rel=0.15)
    assert np.abs(moved[1:]).max() < 0.02


@pytest.mark.maniskill
@pytest.mark.parametrize("control", ["pd_ee_delta_pos", "pd_ee_delta_pose"])
@pytest.mark.parametrize("task", ["PickCube-v1", "PushCube-v1"])
def test_the_experts_solve_ten_of_ten(task, control, make) -> None:
    simulator, env = make(tasks=[task], control=control)
    expert = simulator.expert(env)
    lengths = []
    for state in range(10):
        env.reset(Start(task=0, split="demonstration", state=state), 0)
        length = 0
        while length < 50:
            length += 1
            step = env.step(expert.act())
            if step.terminated or step.truncated:
                break
        assert step.success and step.terminated, f"state {state}"
        lengths.append(length)
    assert max(lengths) <= 40


@pytest.mark.maniskill
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["PickCube-v1", "PegInsertionSide-v1"]}, "no expert for PegInsertionSide-v1"),
        ({"control": "pd_joint_delta_pos"}, "no expert for control pd_joint_delta_pos"),
    ],
)
def test_where_there_is_no_expert_it_says_so(settings, message, make) -> None:
    simulator, env = make(**settings)
    with pytest.raises(LookupError, match=message):
        simulator.expert(env)


@pytest.mark.maniskill
def test_the_peg_task_builds_the_same_objects_for_equal_starts(make) -> None:
    _, env = make(tasks=["PegInsertionSide-v1"], cameras=["scene", "hand"])
    sizes = []
    for state in (1, 2, 1):
        env.reset(Start(task=0, split="train", state=state), 0)
        sizes.append(env.base.peg_half_sizes[0].tolist())
    assert sizes[0] == sizes[2] != sizes[1]
    seen = env.observe()
    assert set(seen) == {"image", "image_2", "proprioception"}
    assert seen["image_2"].std() > 5


@pytest.mark.maniskill
@pytest.mark.parametrize("task", ["PickCube-v1", "PushCube-v1"])
def test_contacts_leave_no_trace_in_the_next_episode(task, make) -> None:
    """PhysX keeps contacts and their order in a scene: the same pushes would part at the first touch."""
    simulator, env = make(tasks=[task], observation="state", control="pd_ee_delta_pos")
    expert = simulator.expert(env)

    def play(state: int, actions=None):
        env.reset(Start(task=0, split="train", state=state), 0)
        seen = []
        for action in actions if actions is not None else (expert.act() for _ in range(50)):
            step = env.step(action)
            seen.append((action, step, env.observe()["proprioception"].tobytes()))
            if step.terminated or step.truncated:
                break
        return seen

    first = play(3)
    random = np.random.default_rng(0)
    for state in range(4):
        play(10 + state)
        play(20 + state, random.uniform(-1, 1, (50, 4)).astype(np.float32))
    again = play(3, [action for action, _, _ in first])
    assert [seen[1:] for seen in again] == [seen[1:] for seen in first]
    assert first[-1][1].success


@pytest.mark.maniskill
def test_rewards_are_normalised_and_success_ends(make) -> None:
    simulator, env = make(control="pd_ee_delta_pos", reward="dense")
    expert = simulator.expert(env)
    env.reset(START, 0)
    rewards = []
    for _ in range(50):
        step = env.step(expert.act())
        rewards.append(step.reward)
        if step.terminated:
            break
    assert step.success
    assert rewards[-1] == 1.0
    assert 0 < min(rewards) <= max(rewards) == 1.0
    assert rewards[0] < 0.5


@pytest.mark.maniskill
def test_assets_that_are_missing_are_named_with_the_command(monkeypatch, tmp_path) -> None:
    """In a process of its own: ManiSkill reads where its assets are when it is imported."""
    code = (
        "from rlvla3.errors import UserError\nfrom rlvla3.messages import Start\n"
        "from rlvla3.simulators.maniskill import Maniskill, ManiskillSettings\n"
        f"env = Maniskill(ManiskillSettings(tasks=({WIDOWX!r},), reward='success')).make()\n"
        "try:\n    env.reset(Start(task=0, split='train', state=0), 0)\n"
        "except UserError as error:\n    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"MS_ASSET_DIR": str(tmp_path)},
    )
    assert run.stdout.count("\n") == 1, run.stderr
    assert "python -m mani_skill.utils.download_asset -y bridge_v2_real2sim && " in run.stdout
    assert run.stdout.startswith(
        f"simulator.options.tasks: {WIDOWX} needs assets that are not on this machine"
    )


@pytest.mark.maniskill
def test_a_machine_without_vulkan_says_what_helps(tmp_path) -> None:
    nothing = tmp_path / "none.json"
    nothing.write_text(
        '{"file_format_version": "1.0.0", "ICD": {"library_path": "/nowhere.so", "api_version": "1.3.0"}}'
    )
    code = (
        "from rlvla3.errors import UserError\nfrom rlvla3.messages import Start\n"
        "from rlvla3.simulators.maniskill import Maniskill, ManiskillSettings\n"
        "env = Maniskill(ManiskillSettings()).make()\n"
        "try:\n    env.reset(Start(task=0, split='train', state=0), 0)\n"
        "except UserError as error:\n    print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"VK_ICD_FILENAMES": str(nothing)},
    )
    assert run.stdout.startswith("simulator maniskill needs a Vulkan device"), run.stderr
    assert ".ci/lavapipe" in run.stdout


@pytest.mark.maniskill
def test_building_an_env_says_nothing(make) -> None:
    code = (
        "from rlvla3.messages import Start\n"
        "from rlvla3.simulators.maniskill import Maniskill, ManiskillSettings\n"
        "env = Maniskill(ManiskillSettings()).make()\n"
        "env.reset(Start(task=0, split='train', state=0), 0); env.observe(); env.close()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("", "")


# --- whole batches -------------------------------------------------------------------------------


@pytest.mark.maniskill
def test_a_batch_of_one_on_the_cpu_is_what_its_env_is(make) -> None:
    """The class that a GPU needs, as far as a CPU can run it."""
    simulator, env = make(tasks=["PushCube-v1"], control="pd_ee_delta_pos")
    batch = simulator.make_batch(1)
    assert isinstance(batch, ManiskillBatch)
    actions = np.random.default_rng(0).uniform(-1, 1, (1, 6, 4)).astype(np.float32)
    try:
        batch.reset(0, START, 4)
        env.reset(START, 4)
        [result] = chunk_step(batch, [0], actions)
        steps = [env.step(action) for action in actions[0, :4]]
        assert result.reward == [step.reward for step in steps] + [0.0, 0.0]
        assert (result.sub_steps, result.truncated) == (4, True)
        for name, array in env.observe().items():
            np.testing.assert_array_equal(batch.observe([0])[0][name], array)
        assert batch.picture(0).shape == (256, 256, 3)
    finally:
        batch.close()


@pytest.mark.gpu
@pytest.mark.maniskill
def test_a_batch_on_a_gpu_resets_and_cuts_its_envs_one_by_one() -> None:
    batch = adapter(backend="gpu", control="pd_ee_delta_pos").make_batch(4)
    try:
        for index in range(4):
            batch.reset(index, Start(task=0, split="train", state=index % 2), 3 if index == 3 else 0)
        before = batch.observe(range(4))
        np.testing.assert_allclose(before[0]["proprioception"], before[2]["proprioception"], atol=1e-4)
        assert np.abs(before[0]["proprioception"] - before[1]["proprioception"]).max() > 1e-3
        actions = np.random.default_rng(0).uniform(-1, 1, (4, 5, 4)).astype(np.float32)
        results = chunk_step(batch, [0, 1, 2, 3], actions)
        assert [r.sub_steps for r in results] == [5, 5, 5, 3]
        kept = batch.observe([3])[0]["proprioception"].copy()
        others = batch.observe([0, 1, 2])
        batch.reset(3, Start(task=0, split="train", state=0), 0)
        after = batch.observe(range(4))
        for index in range(3):
            np.testing.assert_allclose(
                after[index]["proprioception"], others[index]["proprioception"], atol=1e-4
            )
        assert np.abs(after[3]["proprioception"] - kept).max() > 1e-3
        np.testing.assert_allclose(after[3]["proprioception"], before[0]["proprioception"], atol=1e-4)
    finally:
        batch.close()


def test_every_task_is_described() -> None:
    for name, task in TASKS.items():
        assert task.instruction and task.limit >= 50, name
        assert (task.robot == "widowx") == bool(task.assets)


@pytest.mark.maniskill
def test_a_user_s_reward_sees_what_maniskill_says(make) -> None:
    _, env = make(reward=f"{__name__}:grasped")
    env.reset(START, 0)
    assert env.step(np.zeros(7, np.float32)).reward == 0.0


def grasped(info, success, dense):
    return float(info["is_grasped"]) + 10 * success


def test_a_reward_that_cannot_be_loaded_is_explained() -> None:
    with pytest.raises(UserError, match="module 'json' has no attribute"):
        adapter(reward="json:nothing")
