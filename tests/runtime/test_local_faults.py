"""Members that are killed, stopped, hang or raise in the middle of a run; the rest goes on."""

import os
import signal
from pathlib import Path

import pytest
from echo import recorded
from live import Run, alive, fault, faults, logs, members_of, pid_of, values, wait_for

from rlvla3.errors import UserError
from rlvla3.messages import MemberLost, MemberReady, TrajectoryReady

pytestmark = pytest.mark.live

HASTY = {"health": {"heartbeat_timeout_s": 2.2}}


def recording(folder: Path) -> dict:
    return {"learner": {"kind": "echo:Recording", "options": {"file": str(folder / "trained")}}}


def middle(engine) -> bool:
    """Two updates are done."""
    return engine.intake.version >= 2


def each_start_once(folder: Path) -> None:
    """No episode start was trained twice."""
    states = [item["start"][1] for line in recorded(folder / "trained") for item in line["trained"]]
    assert len(set(states)) == len(states), "an episode start was trained twice"


@pytest.mark.parametrize("name", ["simulator-1", "generator-0"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_dies_or_stops_is_replaced(name: str, number: int, tmp_path: Path) -> None:
    run = Run(tmp_path, values(recording(tmp_path), HASTY, {"trainer": {"updates": 8}}))
    before = {}

    def strike() -> None:
        before.update(members_of(os.getpid()))
        os.kill(before[name], number)

    run.watcher.when(middle, strike)
    run.go().trained(8)
    ((member, reason, _),) = run.watcher.lost
    assert member == name
    assert ("killed by SIGKILL" if number == signal.SIGKILL else "no heartbeat for 2.") in reason
    assert not alive(before[name])
    assert run.engine.statistics.replaced == {name: 1}
    each_start_once(tmp_path)
    if name == "generator-0":
        assert run.engine.accounting()["dropped"] == 0, "a Generator holds nothing that can be lost"


def test_only_one_of_two_generators_is_lost(tmp_path: Path) -> None:
    changes = {"generator": {"members": 2, "routing": "pinned"}, "trainer": {"updates": 8}}
    run = Run(tmp_path, values(recording(tmp_path), HASTY, changes))
    run.watcher.when(middle, run.send("generator-1", signal.SIGKILL))
    run.go().trained(8)
    assert [member for member, _, _ in run.watcher.lost] == ["generator-1"]
    assert run.engine.accounting()["dropped"] == 0


def test_a_hanging_env_is_named_and_replaced_while_others_go_on(tmp_path: Path) -> None:
    changes = faults(fault("hang", 9, tmp_path, step=4), step_timeout_s=1.5)
    slow = {"simulator": {"options": {"mean_ms": 10}}, "trainer": {"batch": 32, "updates": 3}}
    run = Run(tmp_path, values(recording(tmp_path), changes, slow)).go().trained(3)
    ((member, reason, log),) = run.watcher.lost
    assert reason.startswith("slot ")
    assert "has been stepping for 1.5 s" in reason
    assert "in _strike" in log, "the stack shows where"
    assert log.index("in _strike") < log.index("while stepping env")
    assert "Start(task=0, split='train', state=9)" in log.splitlines()[-1]
    (lost_s,) = run.watcher.lost_s
    other = [
        s
        for s, event in run.watcher.events
        if isinstance(event, TrajectoryReady) and event.member != member and lost_s - 1.5 < s < lost_s
    ]
    assert len(other) >= 8, "the other Simulator finishes trajectories meanwhile"
    each_start_once(tmp_path)
    trained = {i["start"][1] for line in recorded(tmp_path / "trained") for i in line["trained"]}
    assert 9 in trained, "the start that hung is run again"


def test_an_env_that_raises_says_so_first(tmp_path: Path) -> None:
    changes = faults(fault("exception", 9, tmp_path, step=4))
    run = Run(tmp_path, values(recording(tmp_path), changes)).go().trained(6)
    ((_, reason, _),) = run.watcher.lost
    first, rest = reason.split("\n", 1)
    assert first.startswith(
        "RuntimeError: scripted fault at (task, split, state, sub-step) = (0, 'train', 9, 4)"
    )
    assert "while stepping env " in first
    assert "Start(task=0, split='train', state=9)" in first
    assert "in _strike" in rest
    each_start_once(tmp_path)


def test_a_crash_in_the_reset(tmp_path: Path) -> None:
    changes = faults(fault("crash", 5, tmp_path, step=0))
    run = Run(tmp_path, values(recording(tmp_path), changes)).go().trained(6)
    ((_, reason, _),) = run.watcher.lost
    assert reason == "killed by SIGKILL"
    each_start_once(tmp_path)


def test_a_slow_reset_is_no_fault(tmp_path: Path) -> None:
    changes = faults(fault("slow_reset", 6, seconds=1.0), fault("slow_reset", 0, seconds=1.0))
    run = Run(tmp_path, values(changes, HASTY)).go().trained(6)
    assert run.watcher.lost == []
    assert run.engine.accounting()["dropped"] == 0


def test_a_start_that_always_fails_is_given_up(tmp_path: Path) -> None:
    """A reward that is not a number never reaches the Trainer; after two attempts its start is left out."""
    changes = faults(fault("nan_reward", 7, step=2), start_attempts=2)
    run = Run(tmp_path, values(recording(tmp_path), changes)).go().trained(6)
    assert len(run.watcher.lost) == 2
    assert all("reward of sub-step 1 is nan" in reason for _, reason, _ in run.watcher.lost)
    assert run.engine.statistics.given_up >= 1
    trained = {i["start"][1] for line in recorded(tmp_path / "trained") for i in line["trained"]}
    assert 7 not in trained
    each_start_once(tmp_path)


@pytest.mark.parametrize("step", [0, 3])
def test_an_observation_that_is_not_finite_never_reaches_a_policy(step: int, tmp_path: Path) -> None:
    changes = faults(fault("nan_observation", 7, tmp_path, step=step))
    run = Run(tmp_path, values(recording(tmp_path), changes)).go().trained(6)
    ((_, reason, _),) = run.watcher.lost
    assert "observation 'echo' holds nan (while rendering env " in reason.split("\n")[0]
    assert "Start(task=0, split='train', state=7)" in reason.split("\n")[0]
    each_start_once(tmp_path)


def test_a_member_that_fails_too_often_ends_the_run(tmp_path: Path) -> None:
    changes = faults(fault("exception", 3, step=2), start_attempts=100, restarts=1)
    run = Run(tmp_path, values(changes, {"simulator": {"members": 1}})).go()
    assert run.stop.failed
    assert "no simulator is left: simulator-0 was lost too often" in run.stop.reason
    assert len(run.watcher.lost) == 2


def test_a_trainer_that_stops_ends_the_run_by_name(tmp_path: Path) -> None:
    run = Run(tmp_path, values({"trainer": {"updates": 100_000}}, HASTY))
    run.watcher.when(middle, run.send("trainer-0", signal.SIGSTOP))
    run.go()
    assert run.stop.failed
    assert run.stop.reason.startswith("trainer-0 was lost: no heartbeat for 2.")


def test_a_trainer_that_raises_says_so(tmp_path: Path) -> None:
    """A file that cannot be written: the learner's own error, with its stack."""
    changes = {"learner": {"kind": "echo:Recording", "options": {"file": str(tmp_path / "no" / "folder")}}}
    run = Run(tmp_path, values(changes)).go()
    assert run.stop.failed
    first, rest = run.stop.reason.split("\n", 1)
    assert first.startswith("trainer-0 was lost: FileNotFoundError: [Errno 2] No such file")
    assert "in update" in rest


def test_a_trainer_that_takes_too_long_shows_where(tmp_path: Path) -> None:
    learner = {"kind": "echo:Stuck", "options": {"file": str(tmp_path / "updating")}}
    changes = {"learner": learner, "health": {"update_timeout_s": 1}}
    run = Run(tmp_path, values(changes)).go()
    assert run.stop.failed
    assert "trainer-0 was lost: an update has taken more than 1 s" in run.stop.reason
    ((member, reason, log),) = run.watcher.lost
    assert (member, reason) == ("trainer-0", "an update has taken more than 1 s")
    assert "in update" in log


def test_a_member_that_cannot_be_built_is_shown_once_for_each_attempt(tmp_path: Path) -> None:
    changes = {"simulator": {"kind": "echo:BrokenSimulator", "members": 1, "lanes": 1}}
    run = Run(tmp_path, values(changes, {"health": {"restarts": 1}})).go()
    assert run.stop.failed
    assert "no simulator is left" in run.stop.reason
    assert len(run.watcher.lost) == 2
    for _, reason, _ in run.watcher.lost:
        assert reason.startswith("RuntimeError: no such device (while building)\nTraceback")
    assert "simulator-0" not in [event.member for event in run.watcher.of(MemberReady)]


def test_a_process_that_cannot_be_started_counts_as_lost(tmp_path: Path) -> None:
    """As when the machine has no room for another process."""
    run = Run(tmp_path, values(recording(tmp_path)))
    runtime, spawn = run.runtime, run.runtime._spawn
    failures = iter([True])

    def fail_once(member) -> None:
        if member == "simulator-1" and next(failures, False):
            import sys

            python, sys.executable = sys.executable, str(tmp_path / "no-python")
            spawn(member)
            sys.executable = python
        else:
            spawn(member)

    runtime._spawn = fail_once  # type: ignore[method-assign]
    run.go().trained(6)
    ((member, reason, _),) = run.watcher.lost
    assert (member, reason) == ("simulator-1", "its process cannot be started: No such file or directory")


def test_logs_that_cannot_be_written_cost_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    run = Run(tmp_path, values(HASTY))
    run.watcher.when(middle, run.send("simulator-0", signal.SIGKILL))
    run.go().trained(6)
    assert "Not a directory" in run.watcher.lost[0][2]


def test_what_a_member_started_ends_with_it(tmp_path: Path) -> None:
    """A killed Simulator takes along its env's own processes."""
    changes = {"simulator": {"kind": "echo:ParentSimulator"}, "trainer": {"updates": 8}}
    run = Run(tmp_path, values(changes, HASTY))
    children: list[int] = []

    def strike() -> None:
        for name in ("simulator-0", "simulator-1"):
            pid = pid_of(os.getpid(), name)
            children.extend(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
            for task in Path(f"/proc/{pid}/task").iterdir():
                children.extend(map(int, (task / "children").read_text().split()))
        os.kill(pid_of(os.getpid(), "simulator-0"), signal.SIGKILL)

    run.watcher.when(middle, strike)
    run.go().trained(8)
    assert len(set(children)) >= 8
    # They are killed when their parent has ended, and take a moment to be gone.
    wait_for(lambda: not [pid for pid in children if alive(pid)], 5.0, "the end of the envs' processes")


def test_an_error_in_the_controller_ends_everything_and_is_shown(tmp_path: Path) -> None:
    run = Run(tmp_path, values())

    def bug() -> None:
        raise ZeroDivisionError("a bug in an observer")

    run.watcher.when(middle, bug)
    with pytest.raises(ZeroDivisionError, match="a bug in an observer"):
        run.go()
    assert not members_of(os.getpid())


def test_an_observer_that_fails_at_the_end_leaves_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, values({"trainer": {"updates": 1}}))

    def fail(telemetry, now_s) -> None:
        if run.engine.stopped:
            raise OSError("disk full")

    run.watcher.on_telemetry = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="disk full"):
        run.go()
    assert not members_of(os.getpid())


def test_losing_a_member_twice_at_once(tmp_path: Path) -> None:
    """Both Simulators and the Generator die at the same moment."""
    run = Run(tmp_path, values(recording(tmp_path), HASTY, {"trainer": {"updates": 8}}))

    def strike() -> None:
        for name in ("simulator-0", "simulator-1", "generator-0"):
            run.send(name, signal.SIGKILL)()

    run.watcher.when(middle, strike)
    run.go().trained(8)
    assert sorted(m for m, _, _ in run.watcher.lost) == ["generator-0", "simulator-0", "simulator-1"]
    assert len(run.watcher.of(MemberLost)) == 3
    each_start_once(tmp_path)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"simulator": {"kind": "echo:RefusedSimulator"}},
            "simulator.options.device: there is no device 7; give another one",
        ),
        (
            {"learner": {"kind": "echo:RefusedLearner", "options": {"file": "x"}}},
            "learner.options.file: no such file; give another one",
        ),
    ],
)
def test_what_a_user_can_mend_ends_the_run_with_its_one_line(
    changes: dict, line: str, tmp_path: Path
) -> None:
    run = Run(tmp_path, values(changes))
    with pytest.raises(UserError) as refused:
        run.go()
    assert str(refused.value) == line
    assert run.watcher.lost == [], "shown twice"
    assert run.engine.statistics.replaced == {}, "it would only fail again"
    assert "Traceback" not in logs(tmp_path)
