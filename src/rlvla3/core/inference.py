"""Inference: from a slot's observation to its actions.

Requests wait in the batcher's queues, run on a Generator and are answered. A Generator that is lost
loses nothing: what it had queued goes to others at once, what it was running once its process is
gone. A Simulator that is lost leaves batches that still write into its rows: such rows are given
back when the batch ends.
"""

from rlvla3.core.batcher import Batcher, Pending
from rlvla3.core.flights import Flight, Flights
from rlvla3.core.groups import Groups
from rlvla3.core.health import Health, Up
from rlvla3.core.outbox import Outbox
from rlvla3.core.publishing import NONE
from rlvla3.core.routing import Router
from rlvla3.core.settings import EngineSettings
from rlvla3.core.sharding import At, SlotState, SlotTable
from rlvla3.core.statistics import Statistics
from rlvla3.core.weights import Weights
from rlvla3.messages import (
    ApplyActions,
    InferenceDone,
    Member,
    ObservationReady,
    Request,
    Row,
    RunInference,
    Slot,
    Version,
)

BATCH = "an inference batch"


class _Generator:
    __slots__ = ("batch", "free_s", "index", "name", "rows", "taken")

    def __init__(self, name: Member, index: int, now_s: float) -> None:
        self.name = name
        self.index = index
        self.free_s = now_s
        """Since when it could have started a batch."""
        self.batch = 0
        self.taken: list[Pending] = []
        """The batch it is running."""
        self.rows: list[Row] = []
        """Rows of dropped trajectories that this batch still writes into."""


class Inference:
    """The queues and what every Generator is doing."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        slots: SlotTable,
        flights: Flights,
        groups: Groups,
        weights: Weights,
        health: Health,
        statistics: Statistics,
        outbox: Outbox,
        now_s: float,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._flights = flights
        self._groups = groups
        self._weights = weights
        self._health = health
        self._statistics = statistics
        self._outbox = outbox
        names = settings.topology.generators
        self._generators = {g: _Generator(g, i, now_s) for i, g in enumerate(names)}
        self._batcher = Batcher(settings.batching, slots, len(names))
        self._router = Router(settings.batching)
        self._batches = 0

    # --- requests ------------------------------------------------------------------------------

    def observe(self, event: ObservationReady, now_s: float) -> None:
        """Queue a slot's request, one for each channel that its envs run on."""
        rows, chunks, flights = event.rows, event.chunks, self._flights
        channels = list({flights[row].channel for row in rows})
        if len(channels) > 1:
            channels.sort()
        self._slots[event.slot].unanswered = len(channels)
        for channel in channels:
            if len(channels) > 1:
                wanted = [i for i, row in enumerate(event.rows) if flights[row].channel == channel]
                rows = tuple([event.rows[i] for i in wanted])
                chunks = tuple([event.chunks[i] for i in wanted])
            request = Request(
                slot=event.slot, seq=event.seq, kind="act", channel=channel, rows=rows, chunks=chunks
            )
            self._push(request, now_s)

    def ask_value(self, flight: Flight, now_s: float) -> None:
        """Queue a request for the value of an ended trajectory's last observation."""
        assert flight.ended is not None
        slot = self._slots.of_env(flight.env)
        request = Request(
            slot=slot.slot,
            seq=slot.seq,
            kind="value",
            channel="rollout",
            rows=(flight.row,),
            chunks=(flight.ended.chunks,),
        )
        self._push(request, now_s)

    def _push(self, request: Request, now_s: float) -> None:
        slot = self._slots[request.slot]
        oldest = NONE
        for row in request.rows:
            version = self._flights[row].oldest_version
            if version is not None and (version < oldest or oldest == NONE):
                oldest = version
        pending = Pending(
            request,
            member=slot.member,
            stage=slot.stage,
            arrival_s=now_s,
            served=slot.served,
            oldest_version=oldest,
        )
        self._statistics.requests += 1
        self._batcher.push(pending, self._route(request.slot))

    def _route(self, slot: Slot) -> int:
        if self._batcher.shared or len(self._generators) == 1:
            return 0
        candidates = [g.index for g in self._generators.values() if self._weights.serves(g.name)]
        if not candidates:
            state = self._health.state
            candidates = [g.index for g in self._generators.values() if state[g.name] is not Up.GONE]
        return self._router.route(slot, candidates or [0], self._load)

    def _load(self, index: int) -> int:
        generator = self._generators[self._settings.topology.generators[index]]
        return self._batcher.queued(index) + sum(p.samples for p in generator.taken)

    # --- batches -------------------------------------------------------------------------------

    def running(self, generator: Member) -> bool:
        """Whether the Generator is computing a batch."""
        return bool(self._generators[generator].taken)

    def awaited(self) -> float:
        """About how many observations must arrive before the last of them could start a batch. Infinite
        while every Generator is busy. Deadlines, and trajectories that end, may start one sooner."""
        idle = [g for g in self._generators.values() if self._idle(g)]
        return min((self._batcher.missing(g.index) for g in idle), default=float("inf"))

    def dispatch(self, now_s: float) -> None:
        """Start every inference batch that is due."""
        # In lockstep a Generator that takes the last of a stage may make the next one due for another.
        while self._start_due(now_s) and self._settings.batching.lockstep:
            pass

    def _start_due(self, now_s: float) -> bool:
        """Let each Generator take what is due for it; whether any batch was started."""
        started = False
        for generator in self._generators.values():
            if generator.taken or not self._idle(generator):
                continue
            if len(self._generators) > 1:
                self._rescue(generator, now_s)
            taken = self._batcher.take(generator.index, generator.free_s, now_s)
            if taken:
                self._run(generator, taken, now_s)
                started = True
        return started

    def deadline_s(self) -> float:
        """When ``dispatch`` must be called if nothing else happens."""
        deadline = float("inf")
        for generator in self._generators.values():
            if generator.taken or not self._idle(generator):
                continue
            deadline = min(deadline, self._batcher.due_s(generator.index, generator.free_s))
            if len(self._generators) > 1:
                for other in self._generators.values():
                    if self._may_rescue(other, generator):
                        deadline = min(deadline, self._batcher.overdue_s(other.index))
        return deadline

    def _idle(self, generator: _Generator) -> bool:
        return (
            not generator.taken
            and not self._weights.loading(generator.name)
            and self._weights.serves(generator.name)
        )

    def _may_rescue(self, busy: _Generator, idle: _Generator) -> bool:
        """Whether ``idle`` may take over what waits too long for ``busy``; not what is pinned to
        a Generator that is up."""
        if busy is idle:
            return False
        if self._settings.batching.routing == "pinned":
            return not self._health.up(busy.name)
        return not self._idle(busy)

    def _rescue(self, idle: _Generator, now_s: float) -> None:
        for other in self._generators.values():
            if now_s >= self._batcher.overdue_s(other.index) and self._may_rescue(other, idle):
                self._batcher.rescue(other.index, idle.index, now_s)

    def _run(self, generator: _Generator, taken: list[Pending], now_s: float) -> None:
        statistics = self._statistics
        self._batches += 1
        statistics.batches += 1
        for pending in taken:
            statistics.samples += pending.samples
            delay_s = now_s - pending.arrival_s
            statistics.queue_delay_s += delay_s
            if delay_s > statistics.queue_delay_max_s:
                statistics.queue_delay_max_s = delay_s
            if pending.request.kind == "act":
                slot = self._slots[pending.request.slot]
                slot.served += 1
                slot.at = At.INFERENCE
        generator.batch, generator.taken = self._batches, taken
        self._health.begin(generator.name, BATCH, self._settings.health.inference_timeout_s, now_s)
        self._outbox.send(
            RunInference(
                member=generator.name,
                batch=self._batches,
                channel=taken[0].request.channel,
                requests=tuple([pending.request for pending in taken]),
            )
        )

    def done(self, event: InferenceDone, now_s: float) -> tuple[list[SlotState], list[Flight]]:
        """Answer a batch; returns the slots that have all of their actions now, and the ended
        trajectories whose last value is known now."""
        generator = self._generators[event.member]
        if not generator.taken or generator.batch != event.batch:
            raise RuntimeError(f"{event.member} answered batch {event.batch}, not {generator.batch}")
        taken, generator.taken = generator.taken, []
        self._health.end(event.member, BATCH, now_s)
        self.set_free(event.member, now_s)
        answered: list[SlotState] = []
        valued: list[Flight] = []
        for pending in taken:
            request = pending.request
            if request.kind == "value":
                valued.append(self._flights[request.rows[0]])
            elif not pending.cancelled and self._answer(request, event.version, now_s):
                answered.append(self._slots[request.slot])
        return answered, valued

    def apply(self, slots: list[SlotState], now_s: float) -> None:
        """Have the actions of these slots executed."""
        applied: dict[Member, list[tuple[Slot, int]]] = {}
        for slot in slots:
            self._slots.move(slot, At.STEPPING, now_s)
            applied.setdefault(slot.member, []).append((slot.slot, slot.seq))
        for member, requests in applied.items():
            self._outbox.send(ApplyActions(member=member, slots=tuple(requests)))

    def set_free(self, generator: Member, now_s: float) -> None:
        """The Generator could start a batch from now on and writes into no row."""
        self._generators[generator].free_s = now_s
        self._free_rows(self._generators[generator])

    def _free_rows(self, generator: _Generator) -> None:
        rows, generator.rows = generator.rows, []
        for row in rows:
            self._flights.free(row)

    def _answer(self, request: Request, version: Version, now_s: float) -> bool:
        """Record the answer; whether the slot has all of its actions now."""
        for row in request.rows:
            self._bind(self._flights[row], version)
        slot = self._slots[request.slot]
        slot.unanswered -= 1
        if slot.unanswered:
            return False
        self._slots.move(slot, At.ANSWERED, now_s)
        return True

    def _bind(self, flight: Flight, version: Version) -> None:
        if flight.oldest_version is None:
            flight.oldest_version = version
            if flight.channel == "rollout":
                self._groups.acted(flight.unit, version)
        elif version < flight.oldest_version:
            raise RuntimeError(f"version {version} acted after version {flight.oldest_version} in an episode")

    # --- lost members --------------------------------------------------------------------------

    def cancel(self, simulator: Member) -> None:
        """Nobody waits for the answers to this Simulator any more."""

        def unwanted(pending: Pending) -> bool:
            return pending.member == simulator and pending.request.kind == "act"

        cancelled = self._batcher.remove(unwanted)
        for generator in self._generators.values():
            for pending in generator.taken:
                if unwanted(pending) and not pending.cancelled:
                    pending.cancelled = True
                    cancelled.append(pending)
        self._statistics.cancelled += len(cancelled)

    def free_rows(self, rows: list[Row]) -> None:
        """Give the rows of dropped trajectories back, once no running batch writes into them."""
        left = set(rows)
        for generator in self._generators.values():
            written = {row for pending in generator.taken for row in pending.request.rows}
            generator.rows += sorted(row for row in left if row in written)
            left.difference_update(written)
        for row in sorted(left):
            self._flights.free(row)

    def reroute(self, generator: Member) -> None:
        """The Generator is lost: what waited for it goes to others."""
        for pending in self._batcher.drain(self._generators[generator].index):
            self._batcher.push(pending, self._route(pending.request.slot))

    def requeue(self, generator: Member) -> None:
        """The Generator's process is gone: what it was running is computed again."""
        state = self._generators[generator]
        self._free_rows(state)
        taken, state.taken = state.taken, []
        for pending in taken:
            if pending.cancelled:
                continue
            if pending.request.kind == "act":
                self._slots[pending.request.slot].at = At.QUEUED
            self._batcher.push(pending, self._route(pending.request.slot))
        self.reroute(generator)
