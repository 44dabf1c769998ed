"""An adapter whose code fails: its fault is told once, in one line, with the place."""

import os
import re
import sys
from pathlib import Path

import pytest
from other_python import make_environment
from refusals import refused

from rlvla3.cli import main
from rlvla3.conformance import CHECKS, LIVE, ConformanceError, Subject, run
from rlvla3.conformance.faults import Told
from rlvla3.plugins import in_words

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

FIRST = "observations_are_as_specified"
LIFTS = "no action is known that lifts something; give Profile.lift, or --lift"
QUICK = tuple(name for name in CHECKS if name not in LIVE)
FAULTS = {
    "Reset": (
        r"AttributeError: '_Reset' object has no attribute 'floor' \(failing.py:8\)",
        "reset fails (see ",
    ),
    "Step": (r"RuntimeError: motor broke at \d+ \(failing.py:13\)", "step fails (see "),
    "Nothing": (
        r"TypeError: step\(\) must return a rlvla3.simulators.api.Step, it returned None \(failing.py:17\)",
        "see ",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_once(name: str) -> None:
    line, short = FAULTS[name]
    first, *others = run(Subject(f"failing:{name}"), QUICK)
    assert (first.name, first.result) == (FIRST, "failed") and re.fullmatch(line, first.text), first
    assert {o.result for o in others} <= {"ok", "skipped"}
    texts = {o.text for o in others if o.result == "skipped"} - {LIFTS}
    assert len(texts) == 1 and texts.pop().startswith(f"not run: {short}{FIRST}")


def test_a_close_that_fails_keeps_nothing_else_from_being_checked() -> None:
    outcomes = list(run(Subject("failing:Close"), QUICK))
    assert outcomes[0].text == "RuntimeError: cannot close (failing.py:23)"
    assert [o.result for o in outcomes].count("failed") == 1
    assert {o.result for o in outcomes[1:] if o.text != LIFTS} == {"ok"}


def test_every_env_is_closed_though_one_cannot_be() -> None:
    subject = Subject("failing:Close")
    for _ in range(3):
        subject.make()
    with pytest.raises(RuntimeError, match="cannot close"):
        subject.close()
    subject.close()


@pytest.mark.live
def test_other_processes_tell_the_same_fault() -> None:
    elsewhere = ("torch_is_not_imported", "closing_frees", "a_hang_in_a_step_is_ended")
    first, *others = run(Subject("failing:Step"), elsewhere)
    assert first.result == "failed"
    assert re.fullmatch(
        r"in a process of its own: RuntimeError: motor broke at \d+ \(failing.py:13\)", first.text
    )
    assert [o.text for o in others] == ["not run: step fails (see torch_is_not_imported)"] * 2


def test_another_broken_rule_is_not_taken_for_the_cause() -> None:
    told = Told(FIRST)
    assert told.outcome("starts_differ", ConformanceError("equal")) == ("failed", "equal")
    assert told.outcome("actions_are_clipped", KeyError("x")) == ("failed", "KeyError: 'x'")
    told.outcome(FIRST, ConformanceError("fields are none"))
    assert told.outcome("frames_are_upright", ValueError("y")) == ("skipped", f"not run: see {FIRST}")


def test_the_place_is_the_users_and_no_librarys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_own.py").write_text(
        "import json\nimport numpy as np\ndef a(): json.loads('{')\ndef b(): np.take(np.zeros(2), 5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_own

    for function, line in ((mine_own.a, 3), (mine_own.b, 4)):
        with pytest.raises((ValueError, IndexError)) as raised:
            function()
        assert in_words(raised.value).endswith(f"(mine_own.py:{line})")


PLAYED = {
    "Step": r"RuntimeError: motor broke at \d+ \(failing.py:13\)",
    "StepAndClose": r"RuntimeError: motor broke at \d+ \(failing.py:13\)",
    "Close": r"RuntimeError: cannot close \(failing.py:23\)",
    "Nothing": FAULTS["Nothing"][0],
}


@pytest.mark.parametrize("name", PLAYED)
def test_play_tells_it_in_one_line(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, "play", f"failing:{name}", "red", "--policy", "random")
    assert re.search(rf"simulator.kind = 'failing:{name}' fails: {PLAYED[name]}$", line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--lift", "0,1,2"), "--lift: 3 numbers; an action of synthetic has 2, give so many"),
        (("--lift", "0,nan"), "--lift: '0,nan' must be numbers such as 0,0,1"),
        (("--deadline", "inf"), "'--deadline'"),
        (("--python", "nowhere"), "--python: must be the Python interpreter of an environment"),
        (("colors=[red]",), "command line: colors: unknown key; did you mean 'colours'"),
    ],
)
def test_options_are_named_as_they_are_typed(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refused(capsys, "check-simulator", "synthetic", *arguments)


def test_a_simulator_that_is_not_here_is_looked_for_with_an_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rlvla3.simulators.robocasa")
    monkeypatch.setattr("rlvla3.simulators.robocasa_package.find_spec", lambda name: None)
    line = refused(capsys, "check-simulator", "robocasa")
    assert line.endswith("check-simulator takes that interpreter as --python")


@pytest.mark.live
def test_another_environment_is_checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one where this package is not installed, also by the processes that its checks start."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent)]))
    python = make_environment(tmp_path / "env")
    names = (FIRST, "torch_is_not_imported", "a_hang_in_a_step_is_ended")
    only = [f"--only={name}" for name in names]
    with pytest.raises(SystemExit) as end:
        main(["check-simulator", "broken:Expertless", "--python", str(python), "--deadline=2", *only])
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code in (0, None), lines
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["ok", name.removeprefix("--only=")] for name in only
    ]
    assert lines[-1] == "3 kept, 0 broken, 0 not checked"
    line = refused(capsys, "check-simulator", "broken:Expertless", "--python", python, "--lift", "1")
    assert line.startswith("rlvla3: --lift: 1 numbers; an action of broken:Expertless has ")
