"""Whatever a user gets wrong is one line that names field or file and remedy, and exit code 2."""

import hashlib
import json
import os
import shlex
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
from rlvla3.config import RECIPES, load_config
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description, Kept
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.plugins import distrust
from rlvla3.runtime.local.runtime import LocalRuntime


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


ENTRIES = yaml.safe_load((Path(__file__).parent / "bad_inputs.yaml").read_text(encoding="utf-8"))

SHIPPED = ", ".join(sorted(file.stem for file in RECIPES.glob("*.yaml")))
"""What the lines that list the recipes list."""


def test_the_table_is_no_smaller_than_it_was() -> None:
    runs = [entry["run"] for entry in ENTRIES]
    assert len(runs) >= 130
    assert len(set(runs)) == len(runs)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["run"])
def test_the_exact_line(entry: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("file").touch()
    for name, content in entry.get("files", {}).items():
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    command, *arguments = shlex.split(entry["run"])
    expected = f"rlvla3: {entry['says']}".replace("<recipes>", SHIPPED)
    assert refused(capsys, command, *arguments) == expected
    # Both read a configuration in the same way; every fourth shows that they do.
    twice = ENTRIES.index(entry) % 4 == 0 and not any(argument.startswith("--") for argument in arguments)
    if command == "check" and twice:
        assert refused(capsys, "train", *arguments) == expected
    # A refused start leaves nothing behind.
    assert not list(Path("runs").glob("*"))


@pytest.mark.metaworld
def test_unknown_task(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "check", "demo", "simulator.options.tasks=[buton-press-v3]")
    assert "buton-press-v3" in line and "did you mean button-press-v3" in line


@pytest.mark.parametrize("arguments", [("check",), ("eval",), ("train", "reach", "--folder")])
def test_a_name_that_is_too_long(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, *arguments, "a" * 300)
    assert "a" * 300 in line and "File name too long" in line


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


def test_a_recipe_does_not_vouch_for_a_run_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe that is named is not the configuration that is resumed."""
    put_code_in(run_folder("run"))
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    line = refused(capsys, "train", *SMALL, "--resume", "--folder", "run")
    assert "policy.kind: 'elsewhere:Emulated' is code that run/config.yaml names" in line
    assert not Path("it-ran").exists()
    # A recipe that names the same code vouches for it.
    recipe = Path("mine.yaml")
    recipe.write_text((Path("run") / "config.yaml").read_text())
    line = refused(capsys, "train", recipe, "--resume", "--folder", "run", "simulator.options.cv=many")
    assert "simulator.options.cv" in line
    assert Path("it-ran").exists()
    sys.modules.pop("elsewhere")


@pytest.mark.parametrize("text", ["[" * 3000, "{a: " * 3000])
def test_a_recipe_that_is_nested_too_deep(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("deep.yaml").write_text(f"extends: reach\nname: {text}")
    assert "deep.yaml: nested more than 40 deep" in refused(capsys, "check", "deep.yaml")


def test_what_cannot_be_read_as_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    for path in ("/dev/null", "./pipe"):
        assert "is no regular file" in refused(capsys, "check", path)


def test_a_value_of_several_lines_is_still_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "got 'a\\nb'" in refused(capsys, "check", "reach", "name=a\nb")


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
