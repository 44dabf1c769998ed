"""``rlvla3 play``: videos of experts, random actions and policies."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from rlvla3.assembly import Assembly
from rlvla3.cli import main
from rlvla3.commands.playing import configuration
from rlvla3.config import Config, load_config
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description, Kept
from rlvla3.policies.building import build_model
from rlvla3.simulators.libero_tasks import SUITES
from rlvla3.video import read_video

REACH = ("simulator.options.step_limits=6", "simulator.options.limit_is=terminated")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def play(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """What the command prints."""
    with pytest.raises(SystemExit) as end:
        main(["play", *(str(argument) for argument in arguments)])
    printed = capsys.readouterr()
    assert end.value.code == 0, printed.err
    return printed.out.splitlines()


def clone(folder: Path, config: Config) -> Path:
    """A run folder with untrained weights of a recipe's policy."""
    assembly = Assembly(config, training=False)
    model = build_model(assembly.policy, config.policy, "cpu", 0, "imitate")
    description = Description(
        version=0, score=None, fingerprint=assembly.fingerprint(), config=config.model_dump_json()
    )
    Kept(folder / checkpoint.CHECKPOINTS, 1).save_best(model.arrays(), description)
    return folder


def test_an_expert_is_shown_from_consecutive_states(capsys: pytest.CaptureFixture[str]) -> None:
    said = play(capsys, "synthetic", "green", "--episodes", 3, "--state", 4, "--json", "figures.json")
    found = [
        re.fullmatch(r"state (\d): success after (\d+) sub-steps, return (\d\.\d+)", s) for s in said[:3]
    ]
    assert all(found)
    assert [match[1] for match in found if match] == ["4", "5", "6"]
    steps = [int(match[2]) for match in found if match]
    assert said[3:] == ["3 of 3 succeeded; video in play.mp4"]
    # One frame of the initial state and one of every sub-step.
    assert len(read_video(Path("play.mp4"))) == sum(steps) + 3
    rows = {row["name"]: row["value"] for row in json.loads(Path("figures.json").read_text())["rows"]}
    assert rows["success_rate"] == 1 and rows["episodes"] == 3
    assert rows["sub_steps"] == pytest.approx(np.mean(steps))


def test_random_actions_depend_on_seed_and_state(capsys: pytest.CaptureFixture[str]) -> None:
    random = ("synthetic", "red", *REACH, "--policy", "random")
    first = play(capsys, *random, "--out", "a/b.mp4")
    assert first[0].startswith("state 0: no success in 6 sub-steps, return ")
    assert first[1] == "0 of 1 succeeded; video in a/b.mp4"
    assert play(capsys, *random)[0] == first[0]
    assert play(capsys, *random, "seed=1")[0] != first[0]
    assert play(capsys, *random, "--split", "train")[0] != first[0]


def test_a_recipe_gives_its_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    said = play(capsys, "reach-grpo", "red", "--policy", "random")
    assert "no success in 20 sub-steps" in said[0]
    # A task that the recipe leaves out is there nevertheless.
    assert "sub-steps" in play(capsys, "reach-grpo", "blue", "--policy", "random")[0]


@pytest.mark.long
def test_a_checkpoint_acts_as_its_own_configuration_says(capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("reach", ["simulator.chunk=3", *REACH])
    folder = clone(Path("run"), config)
    policy = ("reach", "red", *REACH, "--policy", folder)
    first = play(capsys, *policy)
    assert first[0].startswith("state 0: no success in 6 sub-steps")
    assert play(capsys, *policy) == first
    # It acted in chunks of three: what the env shows in between is not looked at.
    assert len(read_video(Path("play.mp4"))) == 7


@pytest.mark.long
@pytest.mark.pusht  # whose extra brings the package that draws the pendulum
def test_a_checkpoint_of_another_set_up_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    folder = clone(Path("run"), load_config("reach", []))
    line = refused(
        capsys, "play", "gymnasium", "Pendulum-v1", "--policy", folder, "simulator.options.image=render"
    )
    assert f"{folder}" in line and "made for another set-up: simulator.simulator is 'synthetic' there" in line
    assert not Path("play.mp4").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("metaworld", "reach-v"), "'reach-v' is no task of simulator metaworld; did you mean 'reach-v3' or"),
        (("synthetic", "rad"), "'rad' is no task of simulator synthetic; did you mean 'red'?"),
        (("metawrld", "reach-v3"), "'metawrld' is no simulator and no recipe; did you mean 'metaworld'?"),
        (("reach", "purple"), "'purple' is no task of simulator synthetic; known: blue, green, red, yellow"),
        (
            ("synthetic", "red", "--policy", "nowhere"),
            "--policy nowhere: no such file or folder; give expert",
        ),
        (("synthetic", "red", "--policy", "."), "no checkpoint here"),
        (("synthetic", "red", "--out", "red.avi"), "--out red.avi: must be the name of an mp4 file"),
        (("synthetic", "red", "simulator.options.size=3"), "simulator.options.size: unknown key"),
        (
            ("synthetic", "delay-0", "simulator.options.task=delay"),
            "delay-0: an episode has no end of its own; give it one with simulator.options.step_limits=100",
        ),
        (
            ("synthetic", "delay-0", "simulator.options.task=delay", "simulator.options.step_limits=3"),
            "--policy expert: synthetic task 'delay' has no expert",
        ),
    ],
)
def test_what_cannot_be_played_is_one_line(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refused(capsys, "play", *arguments)
    assert not list(Path().glob("*.mp4"))


def test_an_env_that_cannot_be_drawn_leaves_an_older_video(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium", reason="needs the gymnasium extra")
    Path("play.mp4").write_bytes(b"old")
    undrawn = "simulator.options.arguments={render_mode: null}"
    line = refused(capsys, "play", "gymnasium", "Pendulum-v1", undrawn, "--policy", "random")
    assert "draws no pictures" in line
    assert Path("play.mp4").read_bytes() == b"old"


@pytest.mark.parametrize("simulator", ["libero", "libero.yaml"])
def test_a_number_chooses_the_task_where_settings_take_numbers(simulator: str) -> None:
    Path("libero.yaml").write_text("extends: libero\n")
    goal = SUITES["libero_goal"]
    named = configuration(simulator, goal[7], ["simulator.options.suite=libero_goal"])
    for overrides in ([], ["simulator.options.tasks=[1, 2]"]):
        numbered = configuration(simulator, "7", ["simulator.options.suite=libero_goal", *overrides])
        assert numbered.simulator.options.names == named.simulator.options.names == (goal[7],)


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ("10", "10 is outside 0…9; use numbers of these, or names (rlvla3 envs libero lists both)"),
        (
            "turn_on_the_stove",
            "is no task of suite libero_spatial; it is one of suite libero_goal: set suite",
        ),
        ("juggle", "'juggle' is no task of simulator libero; rlvla3 envs libero lists them"),
    ],
)
def test_a_task_of_libero_that_is_not_there(task: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(capsys, "play", "libero", task)


@pytest.mark.metaworld
def test_any_task_of_meta_world_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    said = play(capsys, "metaworld", "door-open-v3", "simulator.options.image_size=32")
    assert said[0].startswith("state 0: success after ")
    frames = read_video(Path("play.mp4"))
    assert frames.shape[1:] == (256, 256, 3) and frames.mean() > 20


@pytest.mark.pusht
@pytest.mark.live
def test_pusht_is_played_to_its_own_end(capsys: pytest.CaptureFixture[str]) -> None:
    said = play(capsys, "gymnasium", "gym_pusht/PushT-v0", "simulator.options.expert=pusht")
    assert said[0].startswith("state 0: success after ")
