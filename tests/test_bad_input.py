"""Whatever a user gets wrong is one line that names field or file and remedy, and exit code 2."""

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from live import Watcher
from refusals import SMALL, refused, run_folder

from rlvla3.assembly import Assembly
from rlvla3.cli import main
from rlvla3.config import load_config
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description, Kept
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.plugins import distrust
from rlvla3.runtime.local.runtime import LocalRuntime


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
    (("simulator.kind=metawrld",), ("simulator.kind", "did you mean 'metaworld'")),
    (("policy.kind=tny",), ("policy.kind", "did you mean 'tiny'")),
    (("learner.kind=emulate",), ("learner.kind", "did you mean 'emulated'")),
    (("algorithm.kind=pp",), ("algorithm.kind", "did you mean 'ppo'")),
    (("policy.kind=json:Nothing",), ("policy.kind", "no attribute 'Nothing'")),
    (("simulator.kind=json:Nothing",), ("simulator.kind", "no attribute 'Nothing'")),
    (("policy.kind=nothing_here:Thing",), ("policy.kind", "no module 'nothing_here'")),
    (("simulator.slots=[0,32]",), ("command line: ", "slots [0, 32]", "at least one env", "slots=2")),
    (("simulator.slots=some",), ("simulator.slots", "must be an integer or must be a list")),
    (("simulator.envs=2000000000",), ("simulator.envs", "less than or equal to 1000000")),
    (("simulator.members=2000", "simulator.envs=1000"), ("2000 x 1 x 1000", "at most 1000000 envs")),
    (("evaluation.episodes=2000000000",), ("evaluation.episodes", "less than or equal to")),
    (("generator.device=gpuu",), ("command line: generator.device", "cuda:N", "gpuu")),
    (("trainer.device=gpuu",), ("command line: trainer.device", "cuda:N", "gpuu")),
    (("imitation.demonstrations.speed=[0.9,0.6]",), ("demonstrations.speed", "0 < lowest <= highest")),
    (("simulator.options.colours=[red,red]",), ("colours must differ", "red, red")),
    (("simulator.options.colours=[]",), ("simulator.options.colours: must have at least 1 item, it has 0",)),
    (("name=",), ("command line: name", "got ''")),
    (("name=../evil",), ("command line: name", "letters, digits", "../evil")),
    (("generator.batch_timeout_ms=.inf",), ("generator.batch_timeout_ms", "finite")),
    (("algorithm.options.clip_low=.nan",), ("algorithm.options.clip_low", "finite")),
    (("trainer.batch=99999999999999999999",), ("trainer.batch", "less than or equal to 1000000")),
    (("trainer.updates=99999999999999999999",), ("trainer.updates", "at most 64 bits")),
    (("generator.order=:",), ("generator.order", "must be module:attribute")),
    (("generator.order=os:getcwd",), ("generator.order", "os:getcwd must be a function", "TypeError")),
    (("generator.order=math:pi",), ("generator.order", "math:pi must be a function", "TypeError")),
    (("policy.kind=json:loads",), ("policy.kind", "must be a class, it is a function")),
    (("learner.kind=json:JSONDecoder",), ("learner.kind", "has no Settings, build")),
    (("simulator.kind=json:JSONDecoder",), ("simulator.kind", "has no Settings, spec, make, expert")),
    (("algorithm.kind=json:JSONDecoder",), ("algorithm.kind", "has no Settings, estimates, loss")),
]


@pytest.mark.parametrize(("overrides", "parts"), CONFIGURATIONS)
@pytest.mark.parametrize("command", ["check", "train"])
def test_configuration(
    command: str, overrides: Sequence[str], parts: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, command, "schedule-benchmark", *overrides)
    for part in parts:
        assert part in line
    # A refused start leaves nothing behind.
    assert not list(Path("runs").glob("*"))


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
        ("empty.yaml", b"# nothing\n", ("empty.yaml: is empty", "key: value")),
        (
            "slots.yaml",
            b"extends: reach\nsimulator:\n  members: 1\n  slots: [3, 4]\n",
            ("slots.yaml:4: simulator: slots [3, 4]", "nearest: envs=7"),
        ),
        (
            "micro.yaml",
            b"extends: reach\ntrainer:\n  micro_batch: 99\n",
            ("micro.yaml:3: trainer.micro_batch = 99", "at most 48"),
        ),
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
        (("settings", "reach", "--prefix", "trainr"), ("--prefix trainr", "did you mean 'trainer'")),
        (("train", "schedule-benchmark", "--folder", ""), ("--folder", "must not be empty")),
        (("check", "a" * 300), ("a" * 300, "File name too long")),
        (("eval", "a" * 300), ("a" * 300, "File name too long")),
        (("train", "schedule-benchmark", "--folder", "a" * 300), ("a" * 300, "File name too long")),
        (("check", "schedule-benchmark", "weights=nowhere"), ("nowhere: no checkpoint here",)),
        (("train", "nowhere", "--resume"), ("'nowhere'", "to resume, give a run folder")),
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
    assert not Path("new").exists()


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


def test_folders_to_write_into(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("run", kind="best")
    Path("file").write_text("")
    assert "file/videos" in refused(capsys, "eval", "run", "evaluation.videos=1", "--videos", "file/videos")
    assert "file: exists already" in refused(capsys, "export", "run", "file")


def test_figures_never_replace_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder("run")
    before = (run / "config.yaml").read_text()
    line = refused(capsys, "check", *SMALL, "--json", run / "config.yaml")
    assert "run/config.yaml: holds something else than figures" in line
    assert (run / "config.yaml").read_text() == before
    Path("file").write_text("")
    assert "file is a file or a broken link" in refused(capsys, "check", *SMALL, "--json", "file/x")


def test_figures_go_to_what_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(SystemExit) as end:
            main(["check", *SMALL, "--json", "pipe"])
        assert end.value.code == 0, capsys.readouterr()
        assert b'"rows"' in os.read(reader, 65536)
        assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    finally:
        os.close(reader)
    Path("figures.json").write_text("")
    Path("link").symlink_to("figures.json")
    with pytest.raises(SystemExit):
        main(["check", *SMALL, "--json", "link"])
    assert Path("link").is_symlink() and '"rows"' in Path("figures.json").read_text()


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


def put_code_in(run: Path) -> None:
    """Let the run folder and its checkpoint name a policy in ``elsewhere.py``, which shows when it runs."""
    Path("elsewhere.py").write_text(
        "from rlvla3.policies.emulated import Emulated\nopen('it-ran', 'w').close()\n"
    )
    folder = checkpoint.find(run, resume=True)
    name, text = checkpoint.CONFIG, (folder / checkpoint.CONFIG).read_text()
    changed = text.replace('"policy":{"kind":"emulated"', '"policy":{"kind":"elsewhere:Emulated"')
    assert changed != text
    (folder / name).write_text(changed)
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    digest = hashlib.sha256(changed.encode()).hexdigest()
    manifest["files"][name] = {"bytes": len(changed), "sha256": digest}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    recipe = run / "config.yaml"
    tree = yaml.safe_load(recipe.read_text())
    tree["policy"]["kind"] = "elsewhere:Emulated"
    recipe.write_text(yaml.safe_dump(tree))


@pytest.mark.parametrize("command", [("eval", "run"), ("train", "run", "--resume")])
def test_code_that_a_checkpoint_names_is_refused(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_code_in(run_folder("run"))
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    line = refused(capsys, *command)
    assert "policy.kind: 'elsewhere:Emulated' is code that " in line
    assert line.endswith("look at it, then allow it with --allow-code")
    assert not Path("it-ran").exists()
    refused(capsys, *command, "--allow-code", "simulator.options.cv=many")
    assert Path("it-ran").exists()
    sys.modules.pop("elsewhere")


@pytest.mark.parametrize(
    "override",
    [
        "simulator.kind=elsewhere:Thing",
        "algorithm.kind=elsewhere:Thing",
        "learner.kind=elsewhere:Thing",
        "generator.order=elsewhere:Thing",
    ],
)
def test_no_setting_of_a_stranger_runs_code(override: str) -> None:
    with (
        distrust("somewhere"),
        pytest.raises(UserError, match="'elsewhere:Thing' is code that somewhere names"),
    ):
        load_config("schedule-benchmark", [override])
    with distrust("somewhere", ["elsewhere:Thing"]), pytest.raises(UserError, match="no module 'elsewhere'"):
        load_config("schedule-benchmark", [override])
