"""Whatever a user gets wrong is one line that names field or file and remedy, and exit code 2."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from live import Watcher

from rlvla3.assembly import Assembly
from rlvla3.cli import main
from rlvla3.config import load_config
from rlvla3.config_loading import dump
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description, Kept
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.run_folder import RunFolder
from rlvla3.runtime.local.runtime import LocalRuntime

SMALL = (
    "schedule-benchmark",
    *("simulator.envs=4", "simulator.slots=4", "simulator.lanes=4"),
    *("trainer.batch=4", "trainer.micro_batch=4", "trainer.updates=1"),
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a command is refused with."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert end.value.code == 2, printed
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("rlvla3: "), printed.err
    assert "Traceback" not in printed.err + printed.out
    return lines[0]


def run_folder(name: str, *overrides: str, kind: str = "checkpoint") -> Path:
    """A run that has ended, without having run it; ``kind`` best: of weights only."""
    config = load_config(SMALL[0], [*SMALL[1:], *overrides])
    with RunFolder.create(name) as run:
        run.describe(dump(config))
    learner = EmulatedLearner(EmulatedLearnerSettings(), streaming=False)
    description = Description(
        version=1, score=None, fingerprint=Assembly(config).fingerprint(), config=config.model_dump_json()
    )
    kept = Kept(Path(name) / checkpoint.CHECKPOINTS, 1)
    if kind == "checkpoint":
        kept.save(learner, description, "{}")
    else:
        kept.save_best(learner.weights("rollout"), description)
    return Path(name)


CONFIGURATIONS = [
    (("trainer.batchs=3",), ("trainer.batchs", "did you mean 'batch'")),
    (("trainer.batch=many",), ("trainer.batch", "integer", "many")),
    (("trainer.batch=-1",), ("trainer.batch", "-1")),
    (("trainer.batch",), ("path=value", "'trainer.batch'")),
    (("=3",), ("path=value",)),
    (("simulator.slots=[3,4]",), ("slots [3, 4]", "nearest: envs=7")),
    (("simulator.slots=33",), ("slots", "1…envs = 32", "33")),
    (("simulator.slots=1", "generator.max_batch_size=8"), ("max_batch_size >= 32",)),
    (("trainer.micro_batch=1000",), ("trainer.micro_batch", "at most 160")),
    (("trainer.chunks=0",), ("trainer.chunks", "at least 1")),
    (("trainer.trajectory=episode", "trainer.chunks=0"), ("trainer.chunks", "step_limits")),
    (("schedule.deterministic=true",), ("deterministic", "ss, as or aa_barrier")),
    (
        ("schedule.deterministic=true", "schedule.mode=as", "trainer.batch=40", "trainer.micro_batch=8"),
        ("trainer.batch = 40", "nearest: 32 or 64"),
    ),
    (("generator.pins={99: 0}",), ("generator.pins", "slots 0…31")),
    (("generator.order=arival",), ("generator.order", "did you mean 'arrival'")),
    (("starts.weights=[1,2]",), ("starts.weights", "1 numbers")),
    (("evaluation.every_versions=1",), ("evaluation.step_limit", "no end of their own")),
    (
        ("imitation.demonstrations.simulator={mean: 3}",),
        ("imitation.demonstrations.simulator.mean", "did you mean 'mean_ms'"),
    ),
    (
        ("imitation.demonstrations.simulator={action_dim: 3}",),
        ("imitation.demonstrations.simulator:", "the same observation"),
    ),
    (("imitation.demonstrations.simulator={cv: -1}",), ("imitation.demonstrations.simulator.cv", "0")),
    (("simulator.kind=metawrld",), ("simulator.kind", "did you mean metaworld")),
    (("policy.kind=tny",), ("policy.kind", "did you mean 'tiny'")),
    (("learner.kind=emulate",), ("learner.kind", "did you mean 'emulated'")),
    (("algorithm.kind=pp",), ("algorithm.kind", "did you mean 'ppo'")),
    (("policy.kind=json:Nothing",), ("policy.kind", "no attribute 'Nothing'")),
    (("simulator.kind=json:Nothing",), ("simulator.kind", "no attribute 'Nothing'")),
    (("policy.kind=nothing_here:Thing",), ("policy.kind", "no module 'nothing_here'")),
]


@pytest.mark.parametrize(("overrides", "parts"), CONFIGURATIONS)
@pytest.mark.parametrize("command", ["check", "train"])
def test_configuration(
    command: str, overrides: Sequence[str], parts: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, command, "schedule-benchmark", *overrides)
    for part in parts:
        assert part in line
    # A refused start leaves nothing behind that would make the mended one "used".
    assert not (Path("runs") / "schedule-benchmark" / "config.yaml").exists()


@pytest.mark.metaworld
def test_unknown_task(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "check", "demo", "simulator.options.tasks=[buton-press-v3]")
    assert "buton-press-v3" in line and "did you mean button-press-v3" in line


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("schedule-benchmrk", None, ("did you mean schedule-benchmark",)),
        ("nowhere/x.yaml", None, ("nowhere/x.yaml", "no such file")),
        ("bad.yaml", b"a: [1\n", ("bad.yaml:2", "not valid YAML")),
        ("circle.yaml", b"extends: circle.yaml\n", ("circle.yaml", "circle")),
        ("binary.yaml", b"\xff\xfe\x00", ("binary.yaml", "UTF-8")),
    ],
)
def test_recipe(
    name: str, content: bytes | None, parts: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    line = refused(capsys, "check", name)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("trian",), ("'trian'", "train", "rlvla3 --help")),
        (("train",), ("recipe", "rlvla3 train --help")),
        (("train", "demo", "--resum"), ("--resum", "--resume")),
        (("bench", "schedule", "--updates", "0"), ("--updates", "rlvla3 bench --help")),
        (("bench", "schedul"), ("'schedul'", "did you mean 'schedule'")),
        (("bench", "schedule", "--only", "ab"), ("--only", "rollout_only")),
        (("check", "schedule-benchmark", "--profile", "none.json"), ("none.json", "cannot be read")),
        (
            ("check", "schedule-benchmark", "--json", "/proc/none/x.json"),
            ("/proc/none/x.json", "another file"),
        ),
        (("check", "schedule-benchmark", "--json", "."), ("Is a directory", "another file")),
        (("demo", "nothing"), ("'nothing'", "recipes: ")),
    ],
)
def test_command_line(
    arguments: Sequence[str], parts: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, *arguments)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("command", ["eval", "export"])
@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_folder_without_a_checkpoint(command: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    line = refused(capsys, command, folder, *(["new"] if command == "export" else []))
    assert f"{folder}: no checkpoint here" in line


def damage(run: Path, how: str) -> Path:
    """Change one file of the run's checkpoint."""
    file = next((run / checkpoint.CHECKPOINTS).glob("*/learner.json"))
    text = file.read_text()
    if how == "missing":
        file.unlink()
    else:
        file.write_text(text[: len(text) // 2] if how == "truncated" else text.replace("0", "1"))
    return file


@pytest.mark.parametrize("how", ["truncated", "changed", "missing"])
@pytest.mark.parametrize("command", ["resume", "weights", "eval"])
def test_damaged_checkpoint(command: str, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("run")
    file = damage(Path("run"), how)
    arguments = {
        "resume": ("train", *SMALL, "--folder", "run", "--resume"),
        "weights": ("train", *SMALL, "--folder", "new", "weights=run"),
        "eval": ("eval", "run", "simulator.options.step_limits=5"),
    }[command]
    line = refused(capsys, *arguments)
    assert str(file) in line and "another" in line
    assert not Path("new/config.yaml").exists()


def test_checkpoint_of_another_model_or_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("run")
    line = refused(
        capsys, "train", *SMALL, "simulator.options.action_dim=2", "weights=run", "--folder", "new"
    )
    assert "another set-up" in line and "action_dim is 1 there and 2 here" in line
    line = refused(capsys, "train", *SMALL, "simulator.options.seed=7", "weights=run", "--folder", "new")
    assert "simulator.seed is 0 there and 7 here" in line
    line = refused(capsys, "train", *SMALL, "simulator.chunk=2", "--folder", "run", "--resume")
    assert "chunk is 1 there and 2 here" in line
    assert "chunk: 2" not in Path("run/config.yaml").read_text()  # the refused configuration is not kept


@pytest.mark.parametrize(
    "command",
    [("train", *SMALL, "weights=run", "--folder", "new"), ("eval", "run", "simulator.options.step_limits=5")],
)
def test_weights_of_another_size(command: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("run")
    line = refused(capsys, *command, "policy.options.weight_count=3")
    assert "weights.weight_count is 1 there and 3 here" in line
    assert not list(Path().glob("*/logs")), "a process was started"


def test_tiny_weights_of_another_size_or_the_same_by_another_name() -> None:
    def stored(*overrides: str) -> dict[str, Any]:
        return Assembly(load_config("reach", list(overrides))).fingerprint()

    checkpoint.check_fingerprint(Path("x"), stored(), stored("policy.options.width=128"))
    checkpoint.check_fingerprint(Path("x"), stored(), stored("policy.options.noise_level=0.1"))
    for change in ("size=3.5M", "patch=16", "layers=2"):
        with pytest.raises(UserError, match=r"weights\."):
            checkpoint.check_fingerprint(Path("x"), stored(), stored(f"policy.options.{change}"))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("simulator.options.colours=[red,green]", "tasks is ['red', 'green', 'blue'] there"),
        ("simulator.options.colours=[red,green,yellow]", "tasks is ['red', 'green', 'blue'] there"),
        ("simulator.envs=8", "envs_with_a_quota is 16 there and 8 here"),
    ],
)
def test_a_resume_with_other_tasks_or_envs(change: str, line: str, tmp_path: Path) -> None:
    fixed = (
        "schedule.mode=ss",
        "schedule.deterministic=true",
        "trainer.trajectory=segment",
        "trainer.chunks=2",
    )
    config = load_config("reach", fixed)
    path = Kept(tmp_path, 1).save(
        EmulatedLearner(EmulatedLearnerSettings(), streaming=False),
        Description(
            version=1, score=None, fingerprint=Assembly(config).fingerprint(), config=config.model_dump_json()
        ),
        "{}",
    )
    other = Assembly(load_config("reach", [*fixed, change]))
    # A policy may be used on other tasks; only a run's own sequence of starts cannot.
    checkpoint.check_fingerprint(path, checkpoint.describe(path).fingerprint, other.fingerprint())
    with pytest.raises(UserError) as refusal:
        LocalRuntime(other, tmp_path, Watcher(), resume=(path, {})).run()
    assert line in str(refusal.value)


def test_weights_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere: no checkpoint here" in refused(capsys, "train", *SMALL, "weights=nowhere")


def test_resume(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    line = refused(capsys, "train", *SMALL, "--folder", "empty", "--resume")
    assert "empty: holds no run" in line and "without --resume" in line
    run_folder("weights-only", kind="best")
    line = refused(capsys, "train", *SMALL, "--folder", "weights-only", "--resume")
    assert "weights only" in line and "weights=weights-only" in line


def test_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("used")
    assert "--resume" in refused(capsys, "train", *SMALL, "--folder", "used")
    with RunFolder.create("busy"):
        assert "in use by process" in refused(capsys, "train", *SMALL, "--folder", "busy")
    Path("file").write_text("")
    line = refused(capsys, "train", *SMALL, "--folder", "file/run")
    assert "file/run: cannot be written" in line and "another run folder" in line


def test_folders_to_write_into(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("run", kind="best")
    Path("file").write_text("")
    assert "file/videos" in refused(capsys, "eval", "run", "--videos", "file/videos")
    assert "file: exists already" in refused(capsys, "export", "run", "file")


def test_evaluation_that_would_never_end(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("run", kind="best")
    assert "step_limits" in refused(capsys, "eval", "run")


def test_a_simulator_without_an_expert(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "sft", *SMALL, "imitation.demonstrations.workers=1")
    assert "has no expert" in line
    assert not list(Path("runs").glob("*/config.yaml"))


@pytest.mark.metaworld
@pytest.mark.parametrize("command", ["train", "sft"])
@pytest.mark.parametrize(
    ("environment", "parts"),
    [
        ({"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "99"}, ("MUJOCO_GL=egl", "apt-get install libegl1")),
        ({"MUJOCO_GL": "vulkan"}, ("MUJOCO_GL", "egl, osmesa or unset", "vulkan")),
    ],
)
def test_no_gl_back_end(command: str, environment: dict[str, str], parts: Sequence[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from rlvla3.cli import main; main()", command, "demo"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = run.stderr.strip().splitlines()
    assert run.returncode == 2 and len(lines) == 1, run.stderr
    for part in parts:
        assert part in lines[0]
    assert not list(Path("runs").glob("*/config.yaml"))
