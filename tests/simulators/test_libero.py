"""LIBERO for real: physics and pixels as published, fixed states, exact resets, memory."""

import importlib.util
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.simulators.chunking import SerialBatch, chunk_step
from rlvla3.simulators.libero import Libero, LiberoSettings
from rlvla3.simulators.libero_source import find_folders
from rlvla3.simulators.libero_states import load_states
from rlvla3.simulators.libero_tasks import SUITES, instruction

needs_libero = [
    pytest.mark.libero,
    pytest.mark.skipif(
        importlib.util.find_spec("libero") is None,
        reason="LIBERO is not installed: pip install 'rlvla3[libero]'",
    ),
]
TASK = SUITES["libero_spatial"][0]
FIRST = Start(task=0, split="held_out", state=0)


def real(test):
    """A test that needs the package."""
    for mark in needs_libero:
        test = mark(test)
    return test


def settings(**changes) -> LiberoSettings:
    return LiberoSettings.model_validate({"tasks": (0,), "image_size": 64, **changes})


@pytest.fixture
def make():
    envs = []

    def build(**changes):
        envs.append(Libero(settings(**changes)).make())
        return envs[-1]

    yield build
    for env in envs:
        env.close()


def actions(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (count, 7)).astype(np.float32)


def play(env, start: Start, count: int = 5) -> list[bytes]:
    """Positions after each of a few actions."""
    env.reset(start, 0)
    found = [env.privileged.tobytes()]
    for action in actions(count):
        env.step(action)
        found.append(env.privileged.tobytes())
    return found


# --- without the package ----------------------------------------------------------------------


def test_tasks_are_named_by_number_or_name_and_all_are_the_default() -> None:
    assert LiberoSettings().names == SUITES["libero_spatial"]
    assert LiberoSettings(suite="libero_90").limits == (400,) * 90
    assert settings(tasks=(2, TASK)).names == (SUITES["libero_spatial"][2], TASK)
    assert settings(step_limits=(9,)).limits == (9,)
    again = LiberoSettings.model_validate(settings(tasks=(3,)).model_dump())
    assert again.names == (SUITES["libero_spatial"][3],)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": (TASK[:-1],)}, f"did you mean {TASK}"),
        ({"tasks": (0, TASK)}, "tasks must differ"),
        ({"tasks": (-1,)}, "outside 0…9"),
        ({"reward": "dense"}, "LIBERO has no dense reward"),
        ({"cameras": ("agentview", "agentview")}, "cameras must differ"),
    ],
)
def test_wrong_settings_are_refused(changes, says) -> None:
    with pytest.raises(ValueError, match=says):
        settings(**changes)


def test_instructions_leave_the_scene_out() -> None:
    assert instruction(TASK).startswith("pick up the black bowl between the plate and the ramekin")
    assert instruction("KITCHEN_SCENE10_close_the_top_drawer") == "close the top drawer"
    assert instruction("LIVING_ROOM_SCENE2_pick_up_the_milk") == "pick up the milk"


def test_a_missing_package_is_one_line_with_the_command(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"LIBERO is not installed; pip install 'rlvla3\[libero\]'"):
        find_folders("")
    with pytest.raises(UserError, match="give the folder of a whole LIBERO checkout"):
        find_folders(str(tmp_path))
    for folder in ("bddl_files", "init_files"):
        (tmp_path / "libero" / "libero" / folder).mkdir(parents=True)
    with pytest.raises(UserError, match=r"meshes are missing; pip install 'rlvla3\[libero\]'"):
        find_folders(str(tmp_path))


def test_tasks_without_an_expert_say_what_to_do_instead() -> None:
    for suite, tasks in (("libero_goal", []), ("libero_spatial", [0, 4])):
        simulator = Libero(LiberoSettings(suite=suite, tasks=tasks))
        with pytest.raises(LookupError, match=r"has no expert for .* begin from trained weights"):
            simulator.expert(None)


# --- with it ----------------------------------------------------------------------------------


@real
def test_tasks_instructions_and_states_are_the_packages() -> None:
    folders = find_folders("")
    from libero.libero.benchmark import task_maps

    for suite, names in SUITES.items():
        assert tuple(task_maps[suite]) == names
        for name in names:
            assert task_maps[suite][name].language == instruction(name)
            assert len(load_states(folders.states / suite / f"{name}.pruned_init")) == 50


def published_episode():
    """Positions before and after a few actions in LIBERO's own environment, and what it sees then."""
    from libero.libero.envs import OffScreenRenderEnv

    folders = find_folders("")
    env = OffScreenRenderEnv(
        bddl_file_name=str(folders.tasks / "libero_spatial" / f"{TASK}.bddl"),
        camera_heights=64,
        camera_widths=64,
    )
    env.seed(7)
    env.reset()
    env.set_init_state(load_states(folders.states / "libero_spatial" / f"{TASK}.pruned_init")[0])
    for _ in range(10):
        env.step([0.0] * 6 + [-1.0])
    positions = [np.array(env.sim.data.qpos)]
    for action in actions(5):
        env.step(action.astype(np.float64))
    positions.append(np.array(env.sim.data.qpos))
    # Of now: what a step returns was taken before the last of its 25 physics steps.
    seen = dict(env.env._get_observations(force_update=True))
    env.close()
    return positions, seen


@real
def test_physics_state_and_stock_pixels_are_those_of_the_published_environment(make) -> None:
    env = make(rendering="stock")
    env.reset(FIRST, 0)
    before = env.privileged
    for action in actions(5):
        env.step(action)
    # In a thread of its own: robosuite makes its GL context the current one.
    with ThreadPoolExecutor(1) as thread:
        (positions_before, positions), seen = thread.submit(published_episode).result()
    np.testing.assert_array_equal(positions_before, before)
    np.testing.assert_array_equal(positions, env.privileged)
    found = env.observe()
    for field, camera in (("image", "agentview"), ("image_2", "robot0_eye_in_hand")):
        np.testing.assert_array_equal(found[field], seen[f"{camera}_image"][::-1, ::-1])
    from robosuite.utils.transform_utils import quat2axisangle

    state = (seen["robot0_eef_pos"], quat2axisangle(seen["robot0_eef_quat"]), seen["robot0_gripper_qpos"])
    np.testing.assert_allclose(found["proprioception"], np.concatenate(state), atol=1e-6)


@real
def test_tuned_pictures_look_like_stock_ones_upright_and_not_black(make) -> None:
    pictures = []
    for rendering in ("tuned", "stock"):
        env = make(rendering=rendering, image_size=84)
        env.reset(FIRST, 0)
        pictures.append(env.observe())
    for field in ("image", "image_2"):
        tuned, stock = (picture[field].astype(int) for picture in pictures)
        assert tuned.std() > 20
        # Shadows and reflections are gone, edges are harder; the rest is alike.
        assert np.corrcoef(tuned.ravel(), stock.ravel())[0, 1] > 0.9
        assert np.corrcoef(tuned[::-1].ravel(), stock.ravel())[0, 1] < 0.8
    assert env.picture().shape == (256, 256, 3)


@real
def test_fixed_states_are_for_evaluation_unless_asked_for(make) -> None:
    states = load_states(find_folders("").states / "libero_spatial" / f"{TASK}.pruned_init")
    env = make(settle_steps=0)
    for state in (0, 1, 49):
        env.reset(Start(task=0, split="held_out", state=state), 0)
        np.testing.assert_array_equal(env.privileged, states[state][1 : 1 + len(env.privileged)])
    fixed = {row.tobytes() for row in states[:, 1 : 1 + len(env.privileged)]}
    for split, state in (("train", 0), ("demonstration", 0), ("held_out", 50)):
        env.reset(Start(task=0, split=split, state=state), 0)
        assert env.privileged.tobytes() not in fixed
    shared = make(settle_steps=0, train_states="fixed")
    shared.reset(Start(task=0, split="train", state=51), 0)
    np.testing.assert_array_equal(shared.privileged, states[1][1 : 1 + len(env.privileged)])


@real
def test_hard_resets_leave_nothing_of_what_was_before_also_where_a_drawer_is_opened(make) -> None:
    """The drawer's opening is drawn at each reset, once more for each load of the task by robosuite."""
    env = make(tasks=(0, 4))
    start = Start(task=1, split="train", state=3)
    first = play(env, start)
    play(env, Start(task=0, split="train", state=3))
    play(env, Start(task=1, split="train", state=4))
    assert play(env, start) == first
    assert play(make(tasks=(4,), kept_scenes=0), Start(task=0, split="train", state=3)) == first


@real
def test_global_random_numbers_are_left_alone(make) -> None:
    env = make()
    np.random.seed(3)
    env.reset(FIRST, 0)
    after = np.random.random()
    np.random.seed(3)
    assert np.random.random() == after


@real
def test_a_goal_that_holds_at_the_reset_is_told_apart(make, caplog) -> None:
    env = make()
    env.reset(FIRST, 0)
    assert not env.solved_at_reset
    env.scene.inner.parsed_problem["goal_state"] = []
    with caplog.at_level(logging.WARNING, "rlvla3"):
        env.reset(FIRST, 0)
    assert env.solved_at_reset
    assert f"{TASK}, held_out state 0 is solved at its reset" in caplog.text


@real
def test_a_success_in_the_middle_of_a_chunk_ends_it(make) -> None:
    env = make()
    batch = SerialBatch([env])
    batch.reset(0, FIRST, 50)
    inner, steps = env.scene.inner, []
    goal = type(inner)._check_success

    def check() -> bool:
        steps.append(env.steps)
        return env.steps >= 2 or bool(goal(inner))

    inner._check_success = check
    [result] = chunk_step(batch, [0], np.zeros((1, 5, 7), np.float32))
    del inner._check_success
    assert (result.sub_steps, result.success, result.terminated) == (3, True, True)
    assert result.reward == [0, 0, 1, 0, 0]
    assert max(steps) == 2


@real
def test_the_expert_solves_its_task(make) -> None:
    env = make()
    expert = Libero(settings()).expert(env)
    solved = []
    for state in range(10):
        env.reset(Start(task=0, split="demonstration", state=state), 200)
        while True:
            step = env.step(expert.act())
            if step.terminated or step.truncated:
                break
        solved.append(step.success)
    assert sum(solved) >= 8, solved


@real
def test_an_official_checkout_gives_the_same_states(make, tmp_path) -> None:
    """Its pickles, in the layout of a checkout, beside the installed code and meshes."""
    import torch

    folders = find_folders("")
    root = tmp_path / "LIBERO" / "libero" / "libero"
    for folder in ("bddl_files", "init_files"):
        (root / folder / "libero_spatial").mkdir(parents=True)
    name = f"{TASK}.bddl"
    text = (folders.tasks / "libero_spatial" / name).read_text()
    (root / "bddl_files" / "libero_spatial" / name).write_text(text)
    states = load_states(folders.states / "libero_spatial" / f"{TASK}.pruned_init")
    torch.save(states, root / "init_files" / "libero_spatial" / f"{TASK}.pruned_init")
    here, there = make(), make(source=str(tmp_path / "LIBERO"))
    assert play(there, FIRST, 2) == play(here, FIRST, 2)


_RESETS = """
import sys
from rlvla3.messages import Start
from rlvla3.simulators.libero import Libero, LiberoSettings
def mib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
env = Libero(LiberoSettings(tasks=(0, 1), image_size=64)).make()
found = []
for state in range({resets}):
    env.reset(Start(task=state // 2 % 2, split="train", state=state), 0)
    env.observe()
    found.append(mib())
env.close()
assert "torch" not in sys.modules
print(*found)
"""


def memory(resets: int) -> list[float]:
    """MiB after each reset, in a process of its own."""
    code = _RESETS.format(resets=resets)
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    return [float(number) for number in run.stdout.split()]


@real
@pytest.mark.live
def test_memory_is_flat_over_resets() -> None:
    found = memory(30)
    assert found[-1] - found[8] < 60, found


@real
@pytest.mark.long
@pytest.mark.live
def test_memory_is_flat_over_many_resets() -> None:
    found = memory(200)
    assert found[-1] - found[20] < 60, found


@real
def test_robosuite_prints_nothing(tmp_path: Path) -> None:
    code = (
        "from rlvla3.simulators.libero import Libero, LiberoSettings\n"
        "env = Libero(LiberoSettings(tasks=(0,), image_size=32)).make(); env.observe(); env.close()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
