"""Batching windows with times computed by hand: timeout 100 ms, linger 10 ms, at most 4 samples."""

import math

import pytest
import worlds as w
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.core.batcher import ORDERS, Batcher, Pending
from rlvla3.core.sharding import At, SlotTable
from rlvla3.messages import Request, Version


class Queue:
    """One Generator's queue; slot i has ``sizes[i]`` envs and steps until its request arrives."""

    def __init__(self, sizes, stages=None, **changes):
        stages = stages or [0] * len(sizes)
        self.sizes = sizes
        self.slots = SlotTable(w.slots_of(sizes, stages))
        limits = {"max_batch_size": 4, "batch_timeout_s": 0.1, "linger_s": 0.01}
        self.batcher = Batcher(w.batching(**limits | changes), self.slots, 1)
        for slot in self.slots:
            self.slots.move(slot, At.STEPPING, 0.0)

    def arrive(self, slot, at_s, *, channel="rollout", served=0, version=0):
        state = self.slots[slot]
        self.slots.move(state, At.QUEUED, at_s)
        rows = tuple(range(self.sizes[slot]))
        request = Request(slot=slot, seq=0, kind="act", channel=channel, rows=rows, chunks=rows)
        pending = Pending(
            request,
            member=state.member,
            stage=state.stage,
            arrival_s=at_s,
            served=served,
            oldest_version=Version(version),
        )
        self.batcher.push(pending, 0)

    def take(self, now_s, free_s=0.0):
        taken = [p.request.slot for p in self.batcher.take(0, free_s, now_s)]
        for slot in taken:
            self.slots[slot].at = At.INFERENCE
        return taken

    def due_s(self, free_s=0.0):
        return self.batcher.due_s(0, free_s)


def test_a_burst_fills_batches_at_once():
    queue = Queue([1] * 9)
    for slot in range(8):
        queue.arrive(slot, 0.5)
    assert queue.take(0.5) == [0, 1, 2, 3]
    assert queue.take(0.5) == [4, 5, 6, 7]


def test_a_pinned_slot_of_another_generator_is_not_waited_for():
    queue = Queue([1, 1, 1], routing="pinned", pins={0: 0, 1: 0, 2: 1}, linger_s=1.0)
    queue.arrive(0, 0.5)
    assert queue.take(0.5) == [], "slot 1 may still come"
    queue.arrive(1, 0.51)
    assert queue.take(0.51) == [0, 1], "slot 2 never will"


def test_sparse_requests_go_alone_at_their_deadline():
    queue = Queue([1, 1], linger_s=1.0)
    queue.arrive(0, 0.5)
    assert queue.due_s() == pytest.approx(0.6)
    assert queue.take(0.599) == []
    assert queue.take(queue.due_s()) == [0]


def test_after_an_idle_gap_the_window_opens_at_the_oldest_arrival():
    queue = Queue([1, 1, 1])
    queue.arrive(0, 7.0)
    assert queue.due_s(free_s=0.0) == pytest.approx(7.01)
    queue.arrive(1, 7.006)
    assert queue.take(7.0099) == []
    assert queue.take(7.011) == [0, 1]


def test_a_generator_that_gets_free_lingers_from_then_on():
    queue = Queue([1, 1, 1])
    queue.arrive(0, 0.50)
    assert queue.due_s(free_s=0.53) == pytest.approx(0.54)
    queue.arrive(1, 0.535)
    assert queue.take(0.5399, free_s=0.53) == []
    assert queue.take(0.54, free_s=0.53) == [0, 1]


def test_the_timeout_counts_from_the_arrival_behind_a_busy_generator():
    queue = Queue([1, 1])
    queue.arrive(0, 0.5)
    assert queue.due_s(free_s=0.7) == pytest.approx(0.6)
    assert queue.take(0.7, free_s=0.7) == [0]


def test_all_that_can_arrive_is_there():
    queue = Queue([1, 1, 1])
    queue.arrive(0, 0.5)
    queue.slots.move(queue.slots[2], At.IDLE, 0.5)
    assert queue.take(0.501) == []
    queue.arrive(1, 0.502)
    assert queue.take(0.502) == [0, 1]


def test_nothing_is_due_without_requests():
    queue = Queue([1])
    assert queue.due_s() == math.inf
    assert queue.take(99.0) == []


def test_unequal_slots_fill_up_to_the_limit_and_no_further():
    queue = Queue([2, 3, 1, 1, 1])
    for slot in range(5):
        queue.arrive(slot, 0.5 + slot / 1000)
    assert queue.take(0.505) == [0, 2, 3]
    assert queue.take(0.6) == [1, 4]


def test_a_slot_that_never_fits_is_at_the_head_once_it_waited_too_long():
    queue = Queue([4] + [1] * 40, order=ORDERS["shortest_slot"])
    queue.arrive(0, 0.5)
    for step in range(9):
        for slot in range(1 + 4 * step, 5 + 4 * step):
            queue.arrive(slot, 0.5 + step / 100)
        assert queue.take(0.5 + step / 100) == list(range(1 + 4 * step, 5 + 4 * step))
    for slot in range(37, 41):
        queue.arrive(slot, 0.6)
    assert queue.take(0.6) == [0]


@pytest.mark.parametrize(
    ("order", "taken"),
    [("arrival", [0, 1]), ("round_robin", [3]), ("shortest_slot", [1, 0]), ("oldest_version", [2, 1])],
)
def test_orders(order, taken):
    queue = Queue([2, 1, 2, 3, 1], order=ORDERS[order], max_batch_size=3, linger_s=0.0)
    for slot, (served, version) in enumerate([(9, 7), (8, 6), (7, 5), (1, 8)]):
        queue.arrive(slot, 0.5 + slot / 1000, served=served, version=version)
    assert queue.take(0.504) == taken


def test_a_batch_has_one_channel():
    queue = Queue([1] * 5)
    queue.arrive(0, 0.5)
    queue.arrive(1, 0.5, channel="evaluation")
    queue.arrive(2, 0.5)
    queue.arrive(3, 0.5, channel="evaluation")
    assert queue.take(0.6) == [0, 2]
    assert queue.take(0.6) == [1, 3]


def test_lockstep_waits_for_every_slot_of_the_stage_in_turn():
    queue = Queue([1] * 4, stages=[0, 0, 1, 1], lockstep=True)
    for slot in (2, 3, 0):
        queue.arrive(slot, 0.5)
    assert queue.take(99.0) == []
    queue.arrive(1, 99.0)
    assert queue.take(99.0) == [0, 1]
    assert queue.take(99.0) == [2, 3]


def test_a_stage_larger_than_a_batch_is_served_whole_before_the_next_one():
    queue = Queue([2, 2, 2, 1], stages=[0, 0, 0, 1], lockstep=True)
    for slot in range(4):
        queue.arrive(slot, 0.5)
    assert queue.take(0.5) == [0, 1]
    for slot in (0, 1):
        queue.slots.move(queue.slots[slot], At.STEPPING, 0.6)
    assert queue.take(0.7) == [2]
    assert queue.take(0.7) == [3]


def test_a_stage_whose_slots_are_idle_is_passed_over():
    queue = Queue([1, 1], stages=[0, 1], lockstep=True)
    queue.slots.move(queue.slots[0], At.IDLE, 0.1)
    queue.arrive(1, 0.5)
    assert queue.take(0.5) == [1]


def test_how_many_requests_are_missing():
    queue = Queue([1] * 9)
    assert queue.batcher.missing(0) == 1, "the first sets the time"
    queue.arrive(0, 0.5)
    assert queue.batcher.missing(0) == 3, "of at most 4"
    for slot in range(3, 9):
        queue.slots.move(queue.slots[slot], At.IDLE, 0.5)
    assert queue.batcher.missing(0) == 2, "no more could come"
    queue.arrive(1, 0.5)
    queue.arrive(2, 0.5)
    assert queue.batcher.missing(0) == 1


def test_in_lockstep_the_rest_of_the_stage_is_missing():
    queue = Queue([1] * 5, stages=[0, 1, 0, 1, 0], lockstep=True)
    assert queue.batcher.missing(0) == 3
    queue.arrive(2, 0.5)
    queue.arrive(1, 0.5)
    assert queue.batcher.missing(0) == 2


@given(
    sizes=st.lists(st.integers(1, 3), min_size=2, max_size=8),
    here=st.integers(1, 7),
    routing=st.sampled_from(["any", "pinned"]),
    lockstep=st.booleans(),
    data=st.data(),
)
def test_fewer_than_are_missing_start_nothing_before_its_time(sizes, here, routing, lockstep, data):
    pins = {slot: data.draw(st.integers(0, 1)) for slot in range(len(sizes))} if routing == "pinned" else {}
    queue = Queue(sizes, routing=routing, pins=pins, lockstep=lockstep)
    mine = [slot for slot in range(len(sizes)) if pins.get(slot, 0) == 0]
    coming = data.draw(st.permutations(mine))
    for slot in coming[:here]:
        queue.arrive(slot, 0.5)
        if queue.take(0.5):
            return
    due_s = min(queue.due_s(), 1.0)
    for slot in coming[here:][: queue.batcher.missing(0) - 1]:
        queue.arrive(slot, 0.501)
        assert queue.take(math.nextafter(due_s, 0.0)) == []
