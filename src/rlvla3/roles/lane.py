"""A lane: the thread of a Simulator that builds, resets, steps and renders the envs of its slots.

A GL context belongs to the thread that made it, so everything about an env happens in its lane.
"""

import heapq
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlvla3.errors import UserError
from rlvla3.messages import (
    End,
    Event,
    Member,
    MemberLost,
    ObservationReady,
    Row,
    Slot,
    TrajectoryReady,
    TrajectoryStart,
)
from rlvla3.roles.inbox import Inbox
from rlvla3.roles.lane_slots import Chunk, Flight, Group, LaneSlot, SlotPlan, build_groups, filming
from rlvla3.roles.slab import Slab, gather, misfit, put, stamp
from rlvla3.simulators.api import Observation, Simulator
from rlvla3.simulators.chunking import ChunkResult, chunk_steps
from rlvla3.usage import Usage
from rlvla3.video import VideoWriter


class Emit(Protocol):
    """Sends events, in this order; from any thread."""

    def __call__(self, *events: Event) -> None:
        """Send them together."""
        ...


class Lane(threading.Thread):
    """One thread with the slots it owns."""

    def __init__(
        self,
        member: Member,
        simulator: Simulator,
        plans: Sequence[SlotPlan],
        slab: Slab,
        emit: Emit,
        ready: threading.Semaphore,
        round_s: float = 0.0,
        replan: int = 0,
    ) -> None:
        """Make a lane.

        ``round_s``: waits end at multiples of this, several together; 0: each when it is over.
        ``replan``: sub-steps executed of each chunk; 0: all.
        """
        super().__init__(name=f"lane-{plans[0].lane}", daemon=True)
        self._member = member
        self._simulator = simulator
        self._plans = plans
        self._slab = slab
        self._emit = emit
        self._ready = ready
        self._round_s = round_s
        self._executed = replan or None
        self._unexecuted = [0.0] * (slab["reward"].shape[2] - replan) if replan else []
        self._inbox: Inbox[Sequence[tuple[Slot, Any] | None]] = Inbox()
        self._groups: list[Group] = []
        self._slots: dict[Slot, LaneSlot] = {}
        self._chunks = slab["stamp"].shape[1]
        self._observation = [
            (name.removeprefix("observation."), array)
            for name, array in slab.items()
            if name.startswith("observation.") and name not in ("observation.task", "observation.elapsed")
        ]
        self._begun: list[tuple[float, int, Chunk]] = []
        """Chunks whose envs wait for something outside, by the time until which they wait."""
        self._order = count()
        self._due: deque[Chunk] = deque()
        """Chunks of the present round: their waits are over."""
        self._held: list[Event] = []
        """Events of the present round, sent when it is done."""
        self._later: deque[tuple[Slot, Any] | None] = deque()
        """What came, before what is in the inbox."""
        self.usage = Usage(whole_process=False)
        self.failed = False
        self._doing = "building"
        self._slot: LaneSlot | None = None
        self.since_s = time.monotonic()

    def put(self, items: Sequence[tuple[Slot, Any] | None]) -> None:
        """Give the lane something to do, all at once: it would wake up for each alone. None ends it."""
        self._inbox.put(items)

    def run(self) -> None:
        """Build, then work until told to end. The first error is reported at once."""
        try:
            try:
                self._build()
            except BaseException:
                self.failed = True
                raise
            finally:
                self._ready.release()
            while True:
                item = self._next()
                if item is None:
                    break
                if isinstance(item, Chunk):
                    self._advance(item)
                else:
                    self._work(*item)
            self._close()
        except UserError as error:
            self._lose(str(error), refused=True)
        except BaseException as error:
            first = "".join(traceback.format_exception_only(error)).strip().replace("\n", "; ")
            self._lose(f"{first} ({self._where()})\n{traceback.format_exc()}", refused=False)

    def _lose(self, reason: str, refused: bool) -> None:
        self._held.append(MemberLost(member=self._member, reason=reason, refused=refused))
        self._tell()

    def _tell(self) -> None:
        """Send what is held."""
        if self._held:
            events, self._held = self._held, []
            self._emit(*events)

    def _next(self) -> Chunk | tuple[Slot, Any] | None:
        """What to do next: a chunk whose wait is over, or what came first."""
        self._doing = ""
        if self._due:
            return self._due.popleft()
        self._tell()
        if self._begun and self._begun[0][0] <= time.monotonic():
            return self._begin_round()
        if not self._later:
            items = self._inbox.take(self._begun[0][0] if self._begun else None)
            if items is None:
                return self._begin_round()
            self._later.extend(items)
        return self._later.popleft()

    def _rounded(self, until_s: float) -> float:
        """The end of the round in which a wait is over: one wake-up serves all that end in it."""
        return math.ceil(until_s / self._round_s) * self._round_s if self._round_s else until_s

    def _begin_round(self) -> Chunk:
        """Take all chunks whose waits are over; returns the first."""
        now_s = time.monotonic()
        while not self._due or (self._begun and self._begun[0][0] <= now_s):
            self._due.append(heapq.heappop(self._begun)[2])
        return self._due.popleft()

    def _build(self) -> None:
        self._groups = build_groups(self._simulator, self._plans)
        self._slots = {slot.slot: slot for group in self._groups for slot in group.slots}

    def _close(self) -> None:
        for group in self._groups:
            group.batch.close()

    def _begin(self, doing: str, slot: LaneSlot) -> None:
        self._doing, self._slot, self.since_s = doing, slot, time.monotonic()

    def describe(self) -> str:
        """What it has been doing, in which env, and since when; empty while it waits."""
        if not self._doing:
            return ""
        return f"{self.name}: {self._where()} for {time.monotonic() - self.since_s:.1f} s"

    def _where(self) -> str:
        slot = self._slot
        if slot is None or not self._doing:
            return f"while {self._doing or 'idle'}"
        index = slot.batch.busy
        slot = next((s for s in slot.group.slots if index in s.env), slot)
        flight = slot.flights.get(index)
        start = f", {flight.credit.start} at sub-step {slot.elapsed[index]}" if flight else ""
        return f"while {self._doing} env {slot.env[index]} of slot {slot.slot}{start}"

    def _work(self, name: Slot, what: Any) -> None:
        slot = self._slots[name]
        if not isinstance(what, list):
            self._take_actions(slot, what)
        elif slot.group.must_wait(slot):
            slot.group.newcomers.append((slot, what))
        else:
            self._launch(slot, what)
            if not slot.waiting and not slot.group.stepping:
                self._post(slot)

    # --- starting ------------------------------------------------------------------------------

    def _launch(self, slot: LaneSlot, credits: list[TrajectoryStart]) -> None:
        self._tell()  # resets may take long
        fresh = []
        for credit in credits:
            index = slot.index[credit.env]
            flight = slot.flights[index] = Flight(credit)
            self._slab["episode"][credit.row] = credit.episode
            if credit.first_chunk == 0:
                self._begin("resetting", slot)
                slot.elapsed[index] = 0
                with self.usage("simulate"):
                    solved = slot.batch.reset(index, credit.start, credit.step_limit)
                slot.solved[index] = bool(solved)
                if credit.video:
                    flight.video = VideoWriter(Path(credit.video))
                    flight.video.add(slot.batch.picture(index))
                fresh.append(index)
            elif slot.group.together:
                raise RuntimeError(f"env {credit.env} cannot wait for a segment: its batch steps as a whole")
            else:
                self._write(slot, index, slot.kept.pop(index))
        self._render(slot, fresh)

    def _render(self, slot: LaneSlot, indices: Sequence[int]) -> None:
        """Render the envs and write their observations where their trajectories stand."""
        if not indices:
            return
        self._begin("rendering", slot)
        with self.usage("render"):
            observations = slot.batch.observe(indices)
        for index, observation in zip(indices, observations, strict=True):
            self._write(slot, index, observation)

    def _write(self, slot: LaneSlot, index: int, observation: Observation) -> None:
        flight = slot.flights[index]
        credit, at = flight.credit, flight.position
        if credit.channel == "evaluation":
            at %= self._chunks
        row = credit.row
        for field, array in self._observation:
            value = observation[field]
            if wrong := misfit(value, array):
                raise ValueError(f"env {slot.env[index]}: observation {field!r} {wrong}")
            put(value, array, (row, at))
        self._slab["observation.task"][row, at] = credit.start.task
        limit = credit.step_limit
        self._slab["observation.elapsed"][row, at] = slot.elapsed[index] / limit if limit else 0.0
        self._slab["chunk_index"][row, at] = credit.first_chunk + flight.position

    def _post(self, slot: LaneSlot) -> None:
        if not slot.flights:
            return
        slot.asked = sorted(slot.flights)
        slot.seq += 1
        slot.waiting = True
        flights = [slot.flights[i] for i in slot.asked]
        self._held.append(
            ObservationReady(
                member=self._member,
                slot=slot.slot,
                seq=slot.seq,
                rows=tuple([f.credit.row for f in flights]),
                chunks=tuple([self._place(f) for f in flights]),
            )
        )

    def _place(self, flight: Flight) -> int:
        """Where the flight's present chunk lies in its row; evaluation wraps around."""
        return flight.position % self._chunks if flight.credit.channel == "evaluation" else flight.position

    # --- stepping ------------------------------------------------------------------------------

    def _take_actions(self, slot: LaneSlot, seq: int) -> None:
        """The slot has its actions; its group steps as soon as all of its slots have theirs."""
        if not slot.waiting or seq != slot.seq:
            raise RuntimeError(f"slot {slot.slot} waits for actions {slot.seq}, got those of {seq}")
        slot.waiting, slot.answered = False, True
        if slot.group.complete:
            self._step(slot.group)

    def _step(self, group: Group) -> None:
        slots = [slot for slot in group.slots if slot.answered]
        indices = [i for slot in slots for i in slot.asked]
        flights = [slot.flights[i] for slot in slots for i in slot.asked]
        places = [(f.credit.row, self._place(f)) for f in flights]
        self._check_stamps(flights, places)
        actions = gather(self._slab["record.action"], places)[:, : self._executed]
        group.stepping = True
        film = filming(group.batch, dict(zip(indices, flights, strict=True)))
        steps = chunk_steps(group.batch, indices, actions, film)
        self._advance(Chunk(group=group, slots=slots, steps=steps, places=places))

    def _advance(self, chunk: Chunk) -> None:
        """Go on with a chunk until its envs wait for something outside, or to its end."""
        self._begin("stepping", chunk.slots[0])
        with self.usage("simulate"):
            try:
                until_s = next(chunk.steps)
            except StopIteration as end:
                results: list[ChunkResult] = end.value
            else:
                heapq.heappush(self._begun, (self._rounded(until_s), next(self._order), chunk))
                return
        chunk.group.stepping = False
        reward, sub_steps = self._slab["reward"], self._slab["sub_steps"]
        for place, result in zip(chunk.places, results, strict=True):
            reward[place] = result.reward + self._unexecuted
            sub_steps[place] = result.sub_steps
        rest = iter(results)
        for slot in chunk.slots:
            slot.answered = False
            self._render(slot, self._finish(slot, list(islice(rest, len(slot.asked)))))
        for slot in chunk.group.slots:
            if not slot.waiting:
                self._join_newcomers(slot)
                self._post(slot)

    def _check_stamps(self, flights: list[Flight], places: list[tuple[Row, int]]) -> None:
        """The records must be those asked for: (episode, chunk) as the Generator wrote them."""
        stamps = self._slab["stamp"]
        wanted = [stamp(f.credit.episode, f.credit.first_chunk + f.position) for f in flights]
        found = [int(stamps[place]) for place in places]
        if found != wanted:
            raise RuntimeError(f"action records {found} where {wanted} were asked for")

    def _finish(self, slot: LaneSlot, results: list[ChunkResult]) -> list[int]:
        """Account for the chunk; report ended trajectories; returns the indices that go on."""
        going, cut = [], []
        for index, result in zip(slot.asked, results, strict=True):
            flight = slot.flights[index]
            flight.position += 1
            flight.sub_steps += result.sub_steps
            slot.elapsed[index] += result.sub_steps
            flight.reward += sum(result.reward)
            flight.success |= result.success
            if result.terminated:
                self._end(slot, index, "terminated")
            elif result.truncated and flight.credit.channel == "evaluation":
                self._end(slot, index, "truncated")
            elif result.truncated:
                cut.append((index, "truncated"))
            elif flight.position == self._chunks and flight.credit.channel == "rollout":
                cut.append((index, "segment"))
            else:
                going.append(index)
        self._cut(slot, cut)
        return going

    def _cut(self, slot: LaneSlot, cut: list[tuple[int, str]]) -> None:
        """End trajectories whose last observation is bootstrapped, so it is rendered first."""
        if not cut:
            return
        self._begin("rendering", slot)
        with self.usage("render"):
            observations = slot.batch.observe([index for index, _ in cut])
        for (index, end), observation in zip(cut, observations, strict=True):
            self._write(slot, index, observation)
            if end == "segment":
                slot.kept[index] = {name: np.array(value) for name, value in observation.items()}
                self._end(slot, index, "segment")
            else:
                self._end(slot, index, "truncated")

    def _end(self, slot: LaneSlot, index: int, end: End) -> None:
        flight = slot.flights.pop(index)
        if flight.video is not None:
            flight.video.close()
        self._held.append(
            TrajectoryReady(
                member=self._member,
                env=flight.credit.env,
                row=flight.credit.row,
                chunks=flight.position,
                sub_steps=flight.sub_steps,
                end=end,
                success=flight.success,
                solved_at_reset=slot.solved[index],
                total_reward=flight.reward,
            )
        )

    def _join_newcomers(self, slot: LaneSlot) -> None:
        """Starts that came for this slot while it was rendering are part of its next request.

        What came for others waits in its order, before anything that comes later.
        """
        while self._inbox:
            self._later.extend(self._inbox.take() or ())
        mine = slot.group.take_newcomers(slot)
        come = [item[1] for item in self._later if item is not None and _starts_in(item, slot.slot)]
        if come:
            self._later = deque(item for item in self._later if not _starts_in(item, slot.slot))
        for credits in mine + come:
            self._launch(slot, credits)


def _starts_in(item: tuple[Slot, Any] | None, slot: Slot) -> bool:
    return item is not None and item[0] == slot and isinstance(item[1], list)
