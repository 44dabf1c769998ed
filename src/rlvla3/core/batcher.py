"""Dynamic batching: which waiting requests become an inference batch, and when.

Two limits (RL-VLA3, dynamic batching): a batch is flushed at ``max_batch_size`` samples, or at

    min(oldest arrival + batch_timeout, max(generator free, oldest arrival) + linger)

or as soon as nothing that could still arrive is missing. The linger is what keeps a fleet from
splitting into two alternating halves: a Generator that takes what is there the moment it is free
leaves the slots it has just answered to the next batch, for ever.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from rlvla3.core.settings import BatchingSettings
from rlvla3.core.sharding import SlotTable
from rlvla3.messages import Member, Request, Slot, Version


class Pending:
    """A request in a queue."""

    __slots__ = (
        "arrival_s",
        "cancelled",
        "member",
        "oldest_version",
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
        self.cancelled = False
        """Nobody waits for the answer any more."""
        self.oldest_version = oldest_version
        """Oldest behaviour version among the trajectories it belongs to."""


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
    __slots__ = ("oldest_s", "pending", "samples")

    def __init__(self) -> None:
        self.pending: list[Pending] = []
        self.samples = 0
        self.oldest_s = float("inf")


class Batcher:
    """The request queues: one for each Generator, or a single one with routing ``any``."""

    def __init__(self, settings: BatchingSettings, slots: SlotTable, generators: int) -> None:
        self._settings = settings
        self._slots = slots
        self._shared = settings.routing == "any"
        self._queues = [_Queue() for _ in range(1 if self._shared else generators)]
        self._stage = 0

    def queued(self, generator: int) -> int:
        """Samples waiting for this Generator."""
        return self._queues[0 if self._shared else generator].samples

    def __iter__(self) -> Iterator[Pending]:
        for queue in self._queues:
            yield from queue.pending

    def __len__(self) -> int:
        return sum(len(queue.pending) for queue in self._queues)

    def push(self, pending: Pending, generator: int) -> None:
        """Add a request; one that comes back after a crash keeps its arrival time."""
        queue = self._queues[0 if self._shared else generator]
        queue.pending.append(pending)
        queue.samples += pending.samples
        queue.oldest_s = min(queue.oldest_s, pending.arrival_s)

    def remove(self, unwanted: Callable[[Pending], bool]) -> list[Pending]:
        """Take out and return the requests that match."""
        removed: list[Pending] = []
        for queue in self._queues:
            taken = [p for p in queue.pending if unwanted(p)]
            if taken:
                removed += taken
                self._set(queue, [p for p in queue.pending if not unwanted(p)])
        return removed

    def drain(self, generator: int) -> list[Pending]:
        """Take everything out of a lost Generator's own queue, to be routed again."""
        if self._shared:
            return []
        queue = self._queues[generator]
        taken = queue.pending
        self._set(queue, [])
        return taken

    def take(self, generator: int, free_s: float, now_s: float) -> list[Pending]:
        """The batch that this free Generator should start now; empty if none is due."""
        queue = self._queues[0 if self._shared else generator]
        if not queue.pending:
            return []
        if self._settings.lockstep:
            return self._take_stage(queue)
        if (
            queue.samples >= self._settings.max_batch_size
            or now_s >= self._due_s(queue, free_s)
            or not self._slots.stepping_since
        ):
            return self._pick(queue, queue.pending)
        return []

    def due_s(self, generator: int, free_s: float) -> float:
        """When this free Generator must be looked at again; infinite if only an event helps."""
        queue = self._queues[0 if self._shared else generator]
        if not queue.pending or self._settings.lockstep:
            return float("inf")
        return self._due_s(queue, free_s)

    def _due_s(self, queue: _Queue, free_s: float) -> float:
        return min(
            queue.oldest_s + self._settings.batch_timeout_s,
            max(free_s, queue.oldest_s) + self._settings.linger_s,
        )

    def _take_stage(self, queue: _Queue) -> list[Pending]:
        self._advance_stage()
        if self._slots.stepping(self._stage):
            return []
        return self._pick(queue, [p for p in queue.pending if p.stage == self._stage])

    def _advance_stage(self) -> None:
        """Go to the next stage that is not idle once this one's requests are all served."""
        for _ in range(self._slots.stages):
            waiting = any(p.stage == self._stage for p in self)
            if waiting or self._slots.stepping(self._stage):
                return
            self._stage = (self._stage + 1) % self._slots.stages

    def _pick(self, queue: _Queue, candidates: list[Pending]) -> list[Pending]:
        """The first candidates in order that fit, all of the first one's channel."""
        if not candidates:
            return []
        limit = self._settings.max_batch_size
        order = self._settings.order
        ordered = candidates if order is arrival and _is_sorted(candidates) else sorted(candidates, key=order)
        channel = ordered[0].request.channel
        if queue.samples <= limit and all(p.request.channel == channel for p in ordered):
            taken = ordered
        else:
            taken, room = [], limit
            for pending in ordered:
                if pending.samples <= room and pending.request.channel == channel:
                    taken.append(pending)
                    room -= pending.samples
                    if not room:
                        break
        if len(taken) == len(queue.pending):
            self._set(queue, [])
        else:
            chosen = set(map(id, taken))
            self._set(queue, [p for p in queue.pending if id(p) not in chosen])
        return list(taken)

    @staticmethod
    def _set(queue: _Queue, pending: list[Pending]) -> None:
        queue.pending = pending
        queue.samples = sum(p.samples for p in pending)
        queue.oldest_s = min((p.arrival_s for p in pending), default=float("inf"))


def _is_sorted(pending: list[Pending]) -> bool:
    return all(a.arrival_s <= b.arrival_s for a, b in pairwise(pending))
