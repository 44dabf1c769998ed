"""Deadlines: what the simple rule gets wrong, by hand; and any order of completion."""

import pytest
import worlds as w
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.core.intake import Intake
from rlvla3.core.staleness import Staleness
from rlvla3.messages import Episode, Row, Start, Trajectory, Version


def trajectory(row, version):
    return Trajectory(
        row=Row(row),
        episode=Episode(row),
        group=row,
        start=Start(task=0, split="train", state=row),
        first_chunk=0,
        chunks=1,
        sub_steps=1,
        end="terminated",
        success=False,
        solved_at_reset=False,
        total_reward=0.0,
        oldest_version=Version(version),
    )


class Books:
    """Staleness and intake alone; every version is served the moment it exists."""

    def __init__(self, batch, max_lag):
        self.batch, self.max_lag = batch, max_lag
        self.staleness = Staleness(batch, max_lag)
        self.intake = Intake(w.training(batch=batch, max_lag=max_lag, micro_batch=1), self.staleness, 1)
        self.version_of = {}

    @property
    def version(self):
        return self.intake.version

    def start(self, row):
        assert self.staleness.may_start(self.version)
        self.staleness.start(row, self.version)
        self.staleness.bind(row, self.version)
        self.version_of[row] = self.version

    def finish(self, row):
        """Rows that updates used because of this one, with the update's number."""
        self.intake.add((trajectory(row, self.version_of.pop(row)),))
        used = []
        while True:
            while self.intake.round():
                pass
            if not self.intake.complete:
                return used
            update = self.version
            self.intake.finish()
            done = self.intake.done(skipped=False)
            assert all(0 <= update - t.oldest_version <= self.max_lag for t in done)
            used.append((update, sorted(t.row for t in done)))


def simple_rule_admits(free_places, outstanding_due_now):
    """Admit a younger trajectory while free places exceed what is due in this very update."""
    return free_places > outstanding_due_now


def test_a_younger_trajectory_must_leave_room_in_later_updates_too():
    """B = 1, L = 2. Rows 0, 1, 2 start with version 0: deadline 2. Row 0 makes version 1. Row 3 starts
    with version 1 (deadline 3) and finishes first. Taken by update 1, it would leave one place, in
    update 2, for both 1 and 2: one of them would be 3 versions old."""
    books = Books(batch=1, max_lag=2)
    for row in (0, 1, 2):
        books.start(row)
    assert not books.staleness.may_start(Version(0))
    assert books.finish(0) == [(0, [0])]
    books.start(3)
    assert simple_rule_admits(free_places=1, outstanding_due_now=0)
    assert books.finish(3) == []
    assert books.finish(2) == [(1, [2])]
    assert books.finish(1) == [(2, [1]), (3, [3])]


def test_the_places_of_a_skipped_update_exist_again():
    staleness = Staleness(units=2, max_lag=0)
    for row in (0, 1):
        staleness.start(row, Version(0))
        staleness.admit(row)
    assert not staleness.may_start(Version(0))
    staleness.skip_update()
    assert staleness.may_start(Version(0))


def test_a_version_that_goes_back_is_an_error():
    staleness = Staleness(units=2, max_lag=1)
    staleness.start(0, Version(3))
    with pytest.raises(RuntimeError, match="version 2"):
        staleness.bind(0, Version(2))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 4), st.integers(0, 3), st.randoms(use_true_random=False))
def test_any_order_of_completion_is_trained_in_time(batch, max_lag, dice):
    """Runs 60 trajectories; some are dropped. Lag is checked at each update by ``Books``."""
    books, flying, trained = Books(batch, max_lag), [], 0
    for row in range(60):
        while not books.staleness.may_start(books.version):
            assert flying, "no credit although nothing is in flight"
            done = flying.pop(dice.randrange(len(flying)))
            if dice.random() < 0.15:
                books.staleness.drop(done)
                del books.version_of[done]
            else:
                trained += sum(len(rows) for _, rows in books.finish(done))
        books.start(row)
        flying.append(row)
    assert trained == batch * books.version
