"""Run folders that cannot be used or gone on with: one line each, and nothing is lost."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from refusals import SMALL, refused, run_folder

from rlvla3.commands import training
from rlvla3.config import load_config
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Kept, describe
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.run_folder import RunFolder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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


def test_a_run_folder_without_resume(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("used")
    assert "used: is a run folder; add --resume" in refused(capsys, "train", "used")


def test_a_refused_start_leaves_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "train", *SMALL, "weights=nowhere", "--folder", "new")
    assert not Path("new").exists()
    Path("mine").mkdir()
    refused(capsys, "train", *SMALL, "weights=nowhere", "--folder", "mine")
    assert Path("mine").is_dir()  # it was there before


def test_weights_given_to_a_resume(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("run")
    run_folder("other")
    line = refused(capsys, "train", "run", "--resume", "weights=other", "trainer.updates=5")
    assert "weights = 'other'" in line and "fresh weights" in line and "leave weights out" in line


def test_a_damaged_checkpoint_beside_a_whole_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The line says which one is whole, and doing what it says works."""
    run = run_folder("run")
    kept = Kept(run / checkpoint.CHECKPOINTS, 2)
    first = kept.newest()
    assert first is not None
    learner = EmulatedLearner(EmulatedLearnerSettings(), streaming=False)
    second = kept.save(learner, describe(first), "{}")
    weights = second / "learner.json"
    weights.write_text(weights.read_text()[:-1])
    line = refused(capsys, "train", "run", "--resume")
    assert str(weights) in line and f"{first.name} is whole: rename or remove {second}" in line
    second.rename(second.with_name(f"{second.name}.broken"))
    assert kept.newest() == first
    kept.verify(first)


@pytest.mark.parametrize("command", [("train", "run", "--resume"), ("eval", "run")])
def test_a_checkpoint_without_its_manifest(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is damaged, not absent: the run must not begin again."""
    run = run_folder("run")
    manifest = next((run / checkpoint.CHECKPOINTS).glob("*/manifest.json"))
    manifest.unlink()
    assert str(manifest) in refused(capsys, *command)


def test_a_clone_is_no_place_for_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    run_folder("clone", kind="best")
    line = refused(capsys, "train", *SMALL, "--folder", "clone")
    assert "clone: already holds weights" in line and "weights=clone" in line and "--resume" not in line


@pytest.mark.parametrize("name", ["checkpoint-000041x-version-40", "checkpoint-000041-version-40.bak"])
def test_other_folders_among_the_checkpoints_are_left_alone(name: str) -> None:
    run = run_folder("run")
    kept = Kept(run / checkpoint.CHECKPOINTS, 2)
    newest = kept.newest()
    (run / checkpoint.CHECKPOINTS / name).mkdir()
    assert kept.newest() == newest and newest is not None
    learner = EmulatedLearner(EmulatedLearnerSettings(), streaming=False)
    for _ in range(3):
        kept.save(learner, describe(newest), "{}")
        newest = kept.newest()
        assert newest is not None
    assert (run / checkpoint.CHECKPOINTS / name).is_dir()


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        (checkpoint.MANIFEST, "[]", "must hold a JSON object"),
        (checkpoint.MANIFEST, '{"format": 1}', "lists no files"),
        (checkpoint.MANIFEST, '{"format": 1, "files": {"a": 3}}', "lists no files"),
        (checkpoint.ENGINE, "{}", "engine.json: lacks evaluated, flights, incarnation"),
        (checkpoint.ENGINE, "[", "engine.json: cannot be read"),
        (checkpoint.CONFIG, '{"extends": "reach"}', "config.json: is no resolved configuration"),
        (checkpoint.CONFIG, "[1]", "config.json: is no resolved configuration"),
    ],
)
def test_a_file_that_says_something_else(
    name: str, content: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the file, and no file of this machine besides."""
    folder = Kept(run_folder("run") / checkpoint.CHECKPOINTS, 2).newest()
    assert folder is not None
    (folder / name).write_text(content)
    if name != checkpoint.MANIFEST:
        manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
        digest = hashlib.sha256(content.encode()).hexdigest()
        manifest["files"][name] = {"bytes": len(content), "sha256": digest}
        (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    command = ("eval", "run") if name == checkpoint.CONFIG else ("train", "run", "--resume")
    line = refused(capsys, *command)
    assert part in line and f"{folder.name}/{name}" in line
    assert "/tmp/rlvla3" not in line


def test_a_run_that_begins_anew_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder("run")
    shutil.rmtree(run / checkpoint.CHECKPOINTS)
    (run / "metrics.jsonl").write_text("{}\n")
    with RunFolder.open(run) as folder:
        training._continued(folder, load_config(str(run / "config.yaml"), []), [], allow_code=False)
    assert capsys.readouterr().err == "run: there is no checkpoint to go on from; the run begins anew\n"
