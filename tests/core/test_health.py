"""Deadlines of members: named, in time, and asked for in a form that cannot round the other way."""

import pytest
import worlds as w
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.core.health import Health, Up
from rlvla3.messages import Member

A, B = Member("generator-0"), Member("trainer-0")


def ready(now_s=0.0, **changes):
    health = Health(w.health(**changes), (A, B), now_s)
    for member in (A, B):
        health.ready(member, now_s)
    return health


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.floats(0, 1e6), st.floats(0.001, 1e3))
def test_a_tick_at_the_deadline_finds_the_member(start_s, timeout_s):
    health = ready(start_s, heartbeat_timeout_s=timeout_s)
    health.overdue(start_s)
    assert [o.member for o in health.overdue(health.deadline_s())] == [A, B]


def test_a_heartbeat_moves_the_deadline():
    health = ready()
    health.seen(A, 4.0)
    (overdue,) = health.overdue(5.0)
    assert (overdue.member, overdue.reason) == (B, "no heartbeat for 5.0 s")
    health.lost(B, 6.0)
    assert health.deadline_s() == pytest.approx(9.0)


def test_operations_share_one_deadline_that_each_end_renews():
    health = ready(heartbeat_timeout_s=1e9)
    health.begin(B, "a publish", 10.0, 0.0)
    health.begin(B, "an update", 10.0, 1.0)
    assert health.overdue(9.9) == []
    health.end(B, "a publish", 9.9)
    assert health.overdue(19.8) == []
    (overdue,) = health.overdue(19.9)
    assert overdue.reason == "an update has taken more than 10 s"


def test_an_operation_that_was_not_begun_cannot_end():
    health = ready()
    with pytest.raises(RuntimeError, match="generator-0 ended a load"):
        health.end(A, "a load", 1.0)


def test_the_budget_of_replacements():
    health = ready(restarts=1)
    assert health.lost(A, 1.0)
    health.reaped(A, True, 1.0)
    assert health.state[A] is Up.STARTING
    assert not health.lost(A, 2.0)
    health.reaped(A, False, 2.0)
    assert health.state[A] is Up.GONE


def test_a_replacement_is_forgiven_when_its_window_is_over():
    health = ready(restarts=2, restart_window_s=100.0)
    assert [health.lost(A, now_s) for now_s in (0.0, 50.0, 99.0, 100.0, 149.0, 150.0)] == [
        *(True, True, False),
        *(True, False, True),
    ]
    assert health.restarts[A] == 4
