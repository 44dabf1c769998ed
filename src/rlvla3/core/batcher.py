"""Dynamic batching: which waiting requests become an inference batch, and when.

Two limits (RL-VLA3, dynamic batching): a batch is flushed at ``max_batch_size`` samples, or at

    min(oldest arrival + batch_timeout, max(generator free, oldest arrival) + linger)

or as soon as nothing that could still arrive is missing. The linger is what keeps a fleet from
splitting into two alternating halves: a Generator that takes what is there the moment it is free
leaves the slots it has just answered to the next batch, for ever.

Whatever the order, requests that have waited for ``batch_timeout`` come first, the oldest at the
head: nothing starves, and a slot that does not fit is passed over only until then.
"""

from collections.abc import Callable, Iterator
from typing import Any

from rlvla3.core.settings import BatchingSettings
from rlvla3.core.sharding import SlotTable
from rlvla3.messages import Member, Request, Slot, Version

_NEVER = float("inf")


class Pending:
    """A request in a queue."""

    __slots__ = (
        "arrival_s",
        "cancelled",
        "member",
        "oldest_version",
        "released",
        "request",
        "samples",
        "served",
        "stage",
    )

    def __init__(
        self,
        request: Request,
        *,
        member: Member,
        stage: int,
        arrival_s: float,
        served: int,
        oldest_version: Version,
    ) -> None:
        self.request = request
        self.member = member
        self.stage = stage
        self.arrival_s = arrival_s
        self.samples = len(request.rows)
        self.served = served
        """Batches that this slot was part of."""
        self.oldest_version = oldest_version
        """Oldest behaviour version among the trajectories it belongs to."""
        self.cancelled = False
        """Nobody waits for the answer any more."""
        self.released = False
        """In lockstep: its stage was complete, it is served before the next stage."""


def arrival(pending: Pending) -> float:
    """First come, first served."""
    return pending.arrival_s


def round_robin(pending: Pending) -> tuple[int, Slot]:
    """Least served slot first, in turn."""
    return (pending.served, pending.request.slot)


def shortest_slot(pending: Pending) -> tuple[int, float]:
    """Smallest slot first."""
    return (pending.samples, pending.arrival_s)


def oldest_version(pending: Pending) -> tuple[int, float]:
    """Trajectories with the oldest behaviour version first."""
    return (pending.oldest_version, pending.arrival_s)


ORDERS: dict[str, Callable[[Pending], Any]] = {
    "arrival": arrival,
    "round_robin": round_robin,
    "shortest_slot": shortest_slot,
    "oldest_version": oldest_version,
}


class _Queue:
    __slots__ = ("evaluations", "in_order", "oldest_s", "pending", "samples")

    def __init__(self) -> None:
        self.set([])

    def set(self, pending: list[Pending]) -> None:
        self.pending: list[Pending] = []
        self.samples = self.evaluations = 0
        self.oldest_s = _NEVER
        self.in_order = True
        for one in pending:
            self.push(one)

    def push(self, pending: Pending) -> None:
        arrival_s = pending.arrival_s
        if self.pending and arrival_s < self.pending[-1].arrival_s:
            self.in_order = False
        if arrival_s < self.oldest_s:
            self.oldest_s = arrival_s
        self.pending.append(pending)
        self.samples += pending.samples
        self.evaluations += pending.request.channel == "evaluation"


class Batcher:
    """The request queues: one for each Generator, or a single one with routing ``any``."""

    def __init__(self, settings: BatchingSettings, slots: SlotTable, generators: int) -> None:
        self._settings = settings
        self._slots = slots
        self.shared = settings.routing == "any"
        self._queues = [_Queue() for _ in range(1 if self.shared else generators)]
        self._stage = 0
        """In lockstep: the stage to be released next."""
        self._released = 0

    def queued(self, generator: int) -> int:
        """Samples waiting for this Generator."""
        return self._queue(generator).samples

    def __iter__(self) -> Iterator[Pending]:
        for queue in self._queues:
            yield from queue.pending

    def __len__(self) -> int:
        return sum(len(queue.pending) for queue in self._queues)

    def push(self, pending: Pending, generator: int) -> None:
        """Add a request; one that comes back after a crash keeps its arrival time."""
        self._released += pending.released
        self._queue(generator).push(pending)

    def remove(self, unwanted: Callable[[Pending], bool]) -> list[Pending]:
        """Take out and return the requests that match."""
        removed: list[Pending] = []
        for queue in self._queues:
            taken = [p for p in queue.pending if unwanted(p)]
            if taken:
                removed += taken
                self._take_out(queue, taken)
        return removed

    def drain(self, generator: int) -> list[Pending]:
        """Take everything out of a Generator's own queue, to be routed again."""
        if self.shared:
            return []
        queue = self._queues[generator]
        taken = queue.pending
        self._take_out(queue, taken)
        return taken

    def overdue_s(self, generator: int) -> float:
        """When the oldest request of this Generator's own queue will have waited too long."""
        if self.shared or self._settings.lockstep:
            return _NEVER
        return self._queues[generator].oldest_s + self._settings.batch_timeout_s

    def rescue(self, busy: int, idle: int, now_s: float) -> None:
        """Move the requests that have waited too long from one Generator's queue to another's."""
        queue, timeout_s = self._queues[busy], self._settings.batch_timeout_s
        overdue = [p for p in queue.pending if now_s >= p.arrival_s + timeout_s]
        self._take_out(queue, overdue)
        for pending in overdue:
            self.push(pending, idle)

    def take(self, generator: int, free_s: float, now_s: float) -> list[Pending]:
        """The batch that this free Generator should start now; empty if none is due."""
        queue = self._queue(generator)
        if not queue.pending:
            return []
        if self._settings.lockstep:
            return self._take_stage(queue, now_s)
        if (
            queue.samples >= self._settings.max_batch_size
            or not self._expected(generator)
            or now_s >= self._due_s(queue, free_s)
        ):
            return self._pick(queue, queue.pending, now_s)
        return []

    def _expected(self, generator: int) -> int:
        """Slots whose request could still arrive for this Generator; a pinned slot's goes to its own."""
        stepping, pins = self._slots.stepping_since, self._settings.pins
        if self._settings.routing != "pinned":
            return len(stepping)
        return sum(pins[slot] == generator for slot in stepping)

    def missing(self, generator: int) -> int:
        """A number of requests, at least 1: with fewer new ones than this, ``take`` gives this free
        Generator no batch before the time that ``due_s`` tells now."""
        if self._settings.lockstep:
            return max(self._slots.stepping(self._stage), 1)
        queue = self._queue(generator)
        if not queue.pending:
            return 1
        room = self._settings.max_batch_size - queue.samples
        return max(min(-(-room // self._slots.largest), self._expected(generator)), 1)

    def due_s(self, generator: int, free_s: float) -> float:
        """When this free Generator must be looked at again; infinite if only an event helps."""
        queue = self._queue(generator)
        if not queue.pending or self._settings.lockstep:
            return _NEVER
        return self._due_s(queue, free_s)

    def _queue(self, generator: int) -> _Queue:
        return self._queues[0 if self.shared else generator]

    def _due_s(self, queue: _Queue, free_s: float) -> float:
        settings, oldest_s = self._settings, queue.oldest_s
        lingered_s = (free_s if free_s > oldest_s else oldest_s) + settings.linger_s
        timed_out_s = oldest_s + settings.batch_timeout_s
        return lingered_s if lingered_s < timed_out_s else timed_out_s

    def _take_stage(self, queue: _Queue, now_s: float) -> list[Pending]:
        """A stage is released when all its slots are there; the next one when it is served."""
        if not self._released:
            self._advance_stage()
            if self._slots.stepping(self._stage):
                return []
            for pending in self:
                if pending.stage == self._stage:
                    pending.released = True
                    self._released += 1
            self._stage = (self._stage + 1) % self._slots.stages
        return self._pick(queue, [p for p in queue.pending if p.released], now_s)

    def _advance_stage(self) -> None:
        """Go to the next stage that has anything to wait for."""
        for _ in range(self._slots.stages):
            if self._slots.stepping(self._stage) or any(p.stage == self._stage for p in self):
                return
            self._stage = (self._stage + 1) % self._slots.stages

    def _pick(self, queue: _Queue, candidates: list[Pending], now_s: float) -> list[Pending]:
        """The first candidates in order that fit, all of the first one's channel."""
        if not candidates:
            return []
        if not (queue.in_order and self._settings.order is arrival):
            candidates = self._sorted(candidates, now_s)
        channel = candidates[0].request.channel
        if queue.samples <= self._settings.max_batch_size and queue.evaluations in (0, len(queue.pending)):
            taken = candidates
        else:
            taken, room = [], self._settings.max_batch_size
            for pending in candidates:
                if pending.samples <= room and pending.request.channel == channel:
                    taken.append(pending)
                    room -= pending.samples
                    if not room:
                        break
        self._take_out(queue, taken)
        return taken

    def _sorted(self, pending: list[Pending], now_s: float) -> list[Pending]:
        timeout_s = self._settings.batch_timeout_s
        overdue = [p for p in pending if now_s >= p.arrival_s + timeout_s]
        others = [p for p in pending if now_s < p.arrival_s + timeout_s]
        return sorted(overdue, key=arrival) + sorted(others, key=self._settings.order)

    def _take_out(self, queue: _Queue, taken: list[Pending]) -> None:
        if self._released:
            self._released -= sum(p.released for p in taken)
        if len(taken) == len(queue.pending):
            queue.set([])
        elif taken:
            chosen = set(map(id, taken))
            queue.set([p for p in queue.pending if id(p) not in chosen])
