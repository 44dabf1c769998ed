"""The run's clock leaves out what was no waiting, and never goes back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live import Run, members_of, values

from rlvla3.runtime.local.clock import Clock


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_a_wait_that_ends_in_time_counts() -> None:
    hands = Hands()
    clock = Clock(hands)
    clock.expect(5.0)
    hands.s += 5.9
    assert clock.now_s() == 105.9, "late by less than a second is a busy machine"
    assert clock.untold_s() == 0.0


def test_time_in_which_nobody_listened_does_not_count() -> None:
    hands = Hands()
    clock = Clock(hands)
    clock.expect(5.0)
    hands.s += 3605.0
    assert clock.now_s() == 105.0
    assert (clock.untold_s(), clock.untold_s()) == (3600.0, 0.0)
    hands.s += 0.5
    assert clock.now_s() == 105.5
    # stopped in the middle of its work: nothing was waited for
    hands.s += 10.0
    assert (clock.now_s(), clock.stood_still_s) == (105.5, 3610.0)
    hands.s += 0.9
    assert clock.now_s() == pytest.approx(106.4)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 10), st.floats(0, 10)), max_size=20))
def test_it_never_goes_back_and_never_counts_more_than_was_to_be(turns) -> None:
    """Waits that take any time, and work between them."""
    hands = Hands()
    clock = Clock(hands)
    for took_s, asked_s, work_s in turns:
        since_s = clock.now_s()
        clock.expect(asked_s)
        hands.s += took_s
        assert since_s <= clock.now_s() <= since_s + asked_s + 1.0 + 1e-9
        before_s = clock.now_s()
        hands.s += work_s
        assert before_s <= clock.now_s() <= before_s + 1.0 + 1e-9


class Jumping:
    """The machine's monotonic clock, which jumps an hour ahead when told to."""

    def __init__(self) -> None:
        import time

        self._read_s = time.monotonic
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return self._read_s() + self.ahead_s


@pytest.mark.live
def test_a_clock_that_jumps_an_hour_ahead_costs_no_member(tmp_path: Path) -> None:
    """As after a night in which the laptop slept."""
    hands = Jumping()
    run = Run(tmp_path, values({"health": {"heartbeat_timeout_s": 2.2}}), clock=Clock(hands))
    wait = run.runtime._sockets.wait
    jumps = iter([3600.0])

    def sleep_once(wait_s: float, hold_s: float):
        ready = wait(wait_s, hold_s)
        engine = run.runtime.engine
        if engine is not None and engine.intake.version >= 2:
            hands.ahead_s += next(jumps, 0.0)
        return ready

    run.runtime._sockets.wait = sleep_once  # type: ignore[method-assign]
    run.go().trained(6)
    assert run.watcher.lost == []
    (lost_s,) = run.watcher.stood_still_s
    assert 3598 < lost_s < 3602
    times = [now_s for now_s, _ in run.watcher.events]
    assert times == sorted(times)
    assert times[-1] - times[0] < 60


_STOP_AND_GO = """
import os, signal, sys, time
pids = [int(pid) for pid in sys.argv[1:]]
for pid in pids: os.kill(pid, signal.SIGSTOP)
time.sleep(3.5)
for pid in pids: os.kill(pid, signal.SIGCONT)
"""


@pytest.mark.live
def test_a_run_that_is_frozen_and_thawed_goes_on_with_all_its_members(tmp_path: Path) -> None:
    """Controller and members are stopped for longer than the heartbeat's deadline, as a container is."""
    run = Run(tmp_path, values({"health": {"heartbeat_timeout_s": 2.2}, "trainer": {"updates": 12}}))

    def freeze() -> None:
        pids = [os.getpid(), *members_of(os.getpid()).values()]
        subprocess.Popen([sys.executable, "-c", _STOP_AND_GO, *map(str, pids)], start_new_session=True)

    run.watcher.when(lambda engine: engine.intake.version >= 2, freeze)
    run.go().trained(12)
    assert run.watcher.lost == []
    assert run.engine.accounting()["dropped"] == 0
