"""``rlvla3 sft`` into a folder of before."""

from pathlib import Path

import pytest

from rlvla3.cli import main
from rlvla3.commands import imitate, imitating
from rlvla3.config import load_config

TINY = (
    "imitation.demonstrations.per_task=1",
    "imitation.demonstrations.workers=1",
    "imitation.options.steps=1",
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def sft(*overrides: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["sft", "reach", *TINY, *overrides, "--folder", "clone"])
    return int(str(end.value.code))


def stop_before_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(imitate, "fit", interrupted)
        assert sft() == 130


@pytest.mark.live
def test_an_interrupted_attempt_is_gone_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert imitating.imitate is imitate
    stop_before_the_fit(monkeypatch)
    stored = Path("clone", imitate.DATASET)
    assert Path("clone/config.yaml").exists()
    before = stored.stat().st_mtime_ns
    Path("clone/checkpoints/.writing-x").mkdir(parents=True)
    capsys.readouterr()
    assert sft() == 0
    assert stored.stat().st_mtime_ns == before
    assert f"{stored}: used again" in capsys.readouterr().out.splitlines()
    assert sft() == 2
    line = capsys.readouterr().err.strip()
    assert line == "rlvla3: clone: already holds a clone; use it (weights=clone) or choose another --folder"


@pytest.mark.live
def test_other_demonstrations_are_collected_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop_before_the_fit(monkeypatch)
    capsys.readouterr()
    assert sft("imitation.demonstrations.noise=0.01", "seed=3") == 0
    assert "replaced, they are collected anew (other: noise, seed)" in capsys.readouterr().out


def test_a_training_run_is_no_attempt(capsys: pytest.CaptureFixture[str]) -> None:
    Path("clone").mkdir()
    Path("clone/metrics.jsonl").touch()
    assert sft() == 2
    assert "clone: already holds a run; choose another --folder" in capsys.readouterr().err


@pytest.mark.live
def test_demonstrations_may_come_from_another_set_up(tmp_path: Path) -> None:
    here = load_config("reach", [*TINY])
    there = load_config("reach", [*TINY, "imitation.demonstrations.simulator={seed: 5}"])
    assert (here.demonstrated, there.simulator) == (here.simulator.options, here.simulator)
    first, second = imitate.collect(here, tmp_path), imitate.collect(there, tmp_path / "there")
    assert [data.header["plan"]["settings"]["seed"] for data in (first, second)] == [0, 5]
    assert (first.observation["image"][0] != second.observation["image"][0]).any()
    told: list[str] = []
    imitate.collect(there, tmp_path, tell=told.append)
    assert told[0].endswith("they are collected anew (other: fingerprint, settings)")
