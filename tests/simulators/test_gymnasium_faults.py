"""Gymnasium environments that fail or give nonsense: one line, wherever a command meets it."""

import re
import sys
from pathlib import Path

import pytest
from refusals import refused

pytest.importorskip("gymnasium", reason="needs the gymnasium extra")
sys.path.insert(0, str(Path(__file__).parent))

PLAYED = {
    "BreaksAtStep": r"'gymnasium' fails: RuntimeError: motor broke \(gymnasium_worlds.py:\d+\)$",
    "BreaksAtClose": r"environment fails: RuntimeError: cannot close \(gymnasium_worlds.py:\d+\); mend it$",
    "BadReward": r"must be a number and two of true or false, they are 'much', False and False; mend",
    "DrawsNothing": r"its render must give a picture uint8 \[H, W, 3\], it gives object \[\]; mend",
    "NoSpace": r"its observation_space must be a space of Gymnasium, it is None; mend",
    "BrokenSpace": r"cannot be made: ZeroDivisionError: division by zero \(gymnasium_worlds.py:\d+\)",
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", PLAYED)
def test_what_goes_wrong_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    limit = "simulator.options.step_limits=4"
    line = refused(capsys, "play", "gymnasium", f"gymnasium_worlds:{name}", "--policy", "random", limit)
    assert re.search(PLAYED[name], line), line


@pytest.mark.parametrize(
    ("env_id", "advice"),
    [
        ("ALE/Pong-v5", "install it: {python} -m pip install ale-py"),
        ("gym_xarm/XarmLift-v0", "install it: {python} -m pip install gym-xarm"),
        ("somewhere/Thing-v0", "name the module that registers it too, as in my_module:somewhere/Thing-v0"),
    ],
)
def test_how_to_get_an_environment(
    env_id: str, advice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ale_py", "gym_xarm"):
        monkeypatch.setitem(sys.modules, module, None)
    line = refused(capsys, "play", "gymnasium", env_id)
    assert line.endswith(advice.format(python=sys.executable))


def test_gymnasiums_own_notices_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns() as seen:
        import warnings

        warnings.warn("one, so that there are any", stacklevel=1)
        refused(capsys, "play", "gymnasium", "CartPole-v0")
    assert len(seen) == 1
