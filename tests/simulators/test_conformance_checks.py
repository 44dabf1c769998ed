"""Each check finds what it is for: adapters that break one rule."""

import re
import sys
from pathlib import Path

import pytest

from rlvla3.cli import main
from rlvla3.conformance import CHECKS, ConformanceError, Profile, Skipped, Subject, run

sys.path.insert(0, str(Path(__file__).parent))

BROKEN = {
    "Mistyped": ("observations_are_as_specified", r"'proprioception' .* 'float64'\), specified"),
    "Remembers": ("equal_starts_give_equal_episodes", "depends on the one before it"),
    "Shares": ("equal_starts_give_equal_episodes", "changes when another env of the thread steps"),
    "FewStates": ("starts_differ", "initial state train 50 equals train 0"),
    "OneSplit": ("starts_differ", "initial state held_out 0 equals train 0"),
    "Unseeded": ("starts_differ", "another seed equals train 0"),
    "Skips": ("every_state_is_visited", "15 initial states were started, 9 different ones seen"),
    "Secretive": ("solved_starts_are_told", "reset must return True there"),
    "Unclipped": ("actions_are_clipped", "clip it"),
    "Unlimited": ("a_step_limit_is_exact", "step limit 1: 15 sub-steps"),
    "Off": ("a_step_limit_is_exact", "step limit 5: 6 sub-steps"),
    "StartsAnew": ("the_last_observation_is_kept", "after a cut is not that of the last sub-step"),
    "ChangedByLooking": ("rendering_rarely_changes_nothing", "depends on how often was rendered"),
    "Early": ("a_success_is_reported_once", "a success was reported at sub-step .* and again at the end"),
    "Black": ("frames_show_something", "field 'image' is blank"),
    "Upside": ("frames_are_upright", "'image' is upside down"),
}
BROKEN_LIVE = {
    "ByProcess": ("equal_starts_give_equal_episodes_elsewhere", "other bits in another process"),
    "Torch": ("torch_is_not_imported", "reading its spec imports torch"),
    "KeepsFile": ("closing_frees", "left descriptors.*/dev/null"),
    "KeepsThread": ("closing_frees", "left threads: .*, .*, "),
    "KeepsProcess": ("closing_frees", "left processes"),
    "KeepsMemory": ("closing_frees", r"leaves 2\d\.\d MB behind"),
    "LeaksWithResets": ("memory_is_flat_over_resets", r"3\.\d+ MB more with each reset"),
    "SlowResets": ("a_hang_in_a_reset_is_ended", "did not get over it|members were lost"),
}


def fails(name: str, check: str, text: str, **profile: object) -> None:
    with (
        Subject(f"broken:{name}", {}, Profile(lift=(0, 1), **profile)) as subject,
        pytest.raises(ConformanceError, match=text),
    ):
        CHECKS[check](subject)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found(name: str) -> None:
    fails(name, *BROKEN[name])


@pytest.mark.live
@pytest.mark.parametrize("name", BROKEN_LIVE)
def test_a_broken_rule_of_processes_is_found(name: str) -> None:
    fails(name, *BROKEN_LIVE[name], deadline_s=1.0)


def test_what_cannot_be_checked_is_skipped_with_its_reason() -> None:
    with Subject("broken:Expertless") as subject:
        with pytest.raises(Skipped, match="nobody knows how"):
            CHECKS["an_expert_succeeds"](subject)
        with pytest.raises(Skipped, match="no action is known that lifts something"):
            CHECKS["frames_are_upright"](subject)


@pytest.mark.live
def test_an_adapter_that_asks_to_be_recycled_in_time_may_leak() -> None:
    with Subject("broken:Leaky") as subject:
        CHECKS["memory_is_flat_over_resets"](subject)


def test_a_check_that_raises_is_a_failure_and_the_others_are_made() -> None:
    subject = Subject("broken:Black", {"faults": [{"kind": "exception", "start_state": 49, "step": 0}]})
    names = ("starts_differ", "frames_show_something", "frames_are_upright", "actions_are_clipped")
    outcomes = list(run(subject, names))
    assert [o.result for o in outcomes] == ["failed", "failed", "skipped", "ok"]
    assert "RuntimeError: scripted fault" in outcomes[0].text


def test_states_of_an_adapter_that_has_few() -> None:
    with Subject("broken:FewStates", {}, Profile(states=50)) as subject:
        CHECKS["starts_differ"](subject)
        CHECKS["every_state_is_visited"](subject)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["check-simulator", *arguments])
    return int(end.value.code or 0)


def test_the_command_tells_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    only = [
        f"--only={name}" for name in ("frames_show_something", "actions_are_clipped", "an_expert_succeeds")
    ]
    assert command("broken:Black", "colours=[red]", *only) == 1
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"FAILED +frames_show_something +\d+\.\d s +field 'image' is blank", lines[0])
    assert re.match(r"ok +actions_are_clipped", lines[1]) and re.match(r"ok +an_expert_succeeds", lines[2])
    assert lines[-1] == "2 kept, 1 broken, 0 not checked"


def test_the_command_with_a_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("synthetic", "task=reach", "--lift", "0,1", "--only", "frames_are_upright") == 0
    assert command("synthetic", "task=reach", "--lift", "0,-1", "--only", "frames_are_upright") == 1
    assert "upside down" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("synthetc",), "did you mean 'synthetic'"),
        (("synthetic", "tsk=reach"), "tsk"),
        (("synthetic", "--only", "nothing"), "nothing is no check; they are observations_are"),
        (("synthetic", "--lift", "up"), "--lift: 'up' must be numbers such as 0,0,1"),
    ],
)
def test_the_command_refuses_in_one_line(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*arguments) == 2
    error = capsys.readouterr().err
    assert line in error and len(error.strip().splitlines()) == 1


def test_one_fault_is_told_once() -> None:
    names = ("observations_are_as_specified", "equal_starts_give_equal_episodes", "starts_differ")
    first, *others = run(Subject("broken:Wordless"), names)
    assert (first.result, first.text) == (
        "failed",
        "observe() must give arrays by name, it gives a NoneType",
    )
    for outcome in others:
        assert (outcome.result, outcome.text) == ("skipped", f"not run: see {names[0]}")


@pytest.mark.live
def test_a_fault_in_another_process_is_one_line() -> None:
    [outcome] = run(Subject("broken:Wordless"), ("torch_is_not_imported",))
    assert outcome.result == "failed"
    assert outcome.text == "in a process of its own: observe() must give arrays by name, it gives a NoneType"


def test_lift_has_a_number_for_each_of_an_action(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check-simulator", "synthetic", "--lift", "0,1,0"])
    assert end.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said == "rlvla3: --lift: 3 numbers; an action of synthetic has 2, give so many"


def test_settings_are_named_as_they_were_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["check-simulator", "metaworld", "image_size=3"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("rlvla3: command line: image_size: must be greater than")
