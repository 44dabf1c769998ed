"""Run folders that cannot be used or gone on with: one line each, and nothing is lost."""

from pathlib import Path

import pytest
from refusals import SMALL, refused, run_folder

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
    assert str(weights) in line and f"{first.name} is whole: move {second} away" in line
    second.rename("away")
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
