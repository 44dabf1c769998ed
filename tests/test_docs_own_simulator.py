"""The simulator in docs/simulators/own.md is whole: it passes every check, and trains."""

import re
from pathlib import Path

import pytest

from rlvla3.cli import main
from rlvla3.conformance import CHECKS

PAGE = Path(__file__).parent.parent / "docs" / "simulators" / "own.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files."""
    text = PAGE.read_text()
    code, _ = re.findall(r"```python\n(.*?)```", text, re.S)
    (recipe,) = re.findall(r"```yaml\n(.*?)```", text, re.S)
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "ball.yaml").write_text(recipe)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    import sys

    sys.modules.pop("mine", None)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


def test_every_rule_is_on_the_page() -> None:
    assert set(re.findall(r"`(\w+)`", PAGE.read_text())) >= set(CHECKS)


@pytest.mark.live
def test_the_example_keeps_every_rule(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = command("check-simulator", "mine:Ball", "seed=3", "--lift", "0,1", "--deadline", "2")
    output = capsys.readouterr().out
    assert code == 0, output
    assert output.splitlines()[-1] == f"{len(CHECKS)} kept, 0 broken, 0 not checked"


@pytest.mark.live
def test_the_example_trains(page: Path) -> None:
    emulated = ["policy.kind=emulated", "learner.kind=emulated"]
    assert command("train", "ball.yaml", "trainer.updates=2", *emulated, "--folder", "run") == 0
    assert "steps_per_s" in (page / "run" / "metrics.jsonl").read_text()


def test_the_recipe_of_the_page_is_one(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("check", "ball.yaml") == 0, capsys.readouterr()
