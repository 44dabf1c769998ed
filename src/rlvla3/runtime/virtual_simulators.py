"""Simulators of the virtual runtime: slots, lanes and what a real Simulator would object to."""

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rlvla3.core.settings import Topology
from rlvla3.costs import Costs
from rlvla3.messages import (
    End,
    Env,
    Event,
    Member,
    ObservationReady,
    Row,
    Slot,
    TrajectoryReady,
    TrajectoryStart,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the virtual simulators run."""

    chunk: int
    """C: sub-steps executed for one inference."""
    max_chunks: int
    """T: chunks of a trajectory."""
    episode_chunks: Callable[[int, int], int]
    """(task, episode) -> chunks after which the episode terminates."""
    success: Callable[[int, int], bool]
    """(task, episode) -> whether an episode that terminates is a success."""
    lanes: int
    """Slots that one Simulator steps at the same time."""
    streaming: bool
    """Whether half of an update's work is done as its micro-batches arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """A slot's observations are complete."""

    slot: Slot


class _Flying:
    """A trajectory that an env is running."""

    __slots__ = ("chunk", "left", "room", "row", "success")

    def __init__(self, row: Row, left: int, room: int, success: bool) -> None:
        self.row = row
        self.success = success
        self.chunk = 0
        """Chunks done."""
        self.left = left
        """Chunks until the episode ends."""
        self.room = room
        """Chunks that the row holds."""


class _Slot:
    __slots__ = ("asked", "flying", "member", "ready", "seq", "stepping", "waiting")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.reset()

    def reset(self) -> None:
        self.flying: dict[Env, _Flying] = {}
        self.ready: list[Env] = []
        """Envs that the next request asks for."""
        self.asked: list[Env] = []
        """Envs that the request which is out asks for."""
        self.seq = -1
        self.waiting = False
        """A request is out."""
        self.stepping = False


class VirtualSimulators:
    """All Simulators. ``at(time_s, member, event)`` schedules what they report."""

    def __init__(
        self,
        topology: Topology,
        costs: Costs,
        workload: Workload,
        seed: int,
        at: Callable[[float, Member, Event | Observe], None],
    ) -> None:
        self._costs = costs
        self._workload = workload
        self._random = random.Random(seed)
        self._at = at
        self._slots = {s.slot: _Slot(s.member) for s in topology.slots}
        self._slot_of = {e: s.slot for s in topology.slots for e in s.envs}
        self._lanes: dict[Member, list[float]] = {}
        self._stuck: set[Member] = set()
        self.rows: dict[int, tuple[Env, int, int]] = {}
        """Rows being written: env, episode, first chunk."""
        self.acted: dict[int, int] = {}
        """Newest chunk of each row that has actions."""
        variance = math.log(1.0 + costs.sub_step_cv**2)
        self._sigma = math.sqrt(variance)
        self._mu = math.log(costs.sub_step_s) - variance / 2 if costs.sub_step_s > 0 else -math.inf

    def boot(self, member: Member, at_s: float) -> None:
        """A process starts: all its envs are new."""
        self._lanes[member] = [at_s] * self._workload.lanes

    def stick(self, member: Member) -> None:
        """Nothing that it steps from now on ever returns."""
        self._stuck.add(member)

    def retire(self, member: Member) -> None:
        """The process is told to end.

        Raises:
            RuntimeError: one of its envs runs a trajectory.
        """
        if any(slot.flying for slot in self._slots.values() if slot.member == member):
            raise RuntimeError(f"{member} was recycled while it runs a trajectory")

    def reap(self, member: Member) -> None:
        """The process is gone."""
        self._stuck.discard(member)
        for slot in self._slots.values():
            if slot.member == member:
                for flying in slot.flying.values():
                    del self.rows[flying.row]
                slot.reset()

    def start(self, credits: tuple[TrajectoryStart, ...], now_s: float) -> None:
        """Begin trajectories; an env whose slot is under way joins its next request.

        Raises:
            RuntimeError: an env runs a trajectory already.
        """
        touched: dict[Slot, None] = {}
        for credit in credits:
            name = self._slot_of[credit.env]
            slot = self._slots[name]
            if credit.env in slot.flying:
                raise RuntimeError(f"env {credit.env} was started while it runs a trajectory")
            room = self._workload.max_chunks if credit.channel == "rollout" else sys.maxsize
            task, episode = credit.start.task, credit.episode
            left = self._workload.episode_chunks(task, episode) - credit.first_chunk
            flying = _Flying(credit.row, left, room, self._workload.success(task, episode))
            slot.flying[credit.env] = flying
            slot.ready.append(credit.env)
            self.rows[credit.row] = (credit.env, credit.episode, credit.first_chunk)
            self.acted[credit.row] = -1
            touched[name] = None
        for name in touched:
            slot = self._slots[name]
            if not slot.waiting and not slot.stepping:
                lane, lanes = self._free_lane(slot.member)
                lanes[lane] = max(lanes[lane], now_s) + self._costs.reset_s
                slot.stepping = True
                self._observe_at(name, slot, lanes[lane])

    def post(self, name: Slot) -> ObservationReady:
        """Ask for actions; envs that were started while the slot was rendered are part of it."""
        slot = self._slots[name]
        slot.stepping, slot.waiting = False, True
        slot.seq += 1
        slot.asked, slot.ready = slot.ready, []
        asked = [slot.flying[env] for env in slot.asked]
        return ObservationReady(
            member=slot.member,
            slot=name,
            seq=slot.seq,
            rows=tuple([flying.row for flying in asked]),
            chunks=tuple([flying.chunk for flying in asked]),
        )

    def cancel(self, name: Slot, seq: int) -> None:
        """The request will not be answered.

        Raises:
            RuntimeError: the slot does not wait for this answer.
        """
        slot = self._slots[name]
        if not slot.waiting or slot.seq != seq:
            raise RuntimeError(f"slot {name} at request {slot.seq} was told that {seq} is cancelled")
        slot.waiting = False

    def apply(self, name: Slot, seq: int, now_s: float) -> None:
        """Execute a chunk of actions.

        Raises:
            RuntimeError: the slot does not wait for these actions, or they were not computed.
        """
        slot = self._slots[name]
        if not slot.waiting or slot.seq != seq:
            raise RuntimeError(f"slot {name} at request {slot.seq} got actions for {seq}")
        slot.waiting, slot.stepping = False, True
        envs, slot.asked = slot.asked, []
        at_s = self._step(slot.member, len(envs), now_s)
        for env in envs:
            flying = slot.flying[env]
            if self.acted[flying.row] != flying.chunk:
                raise RuntimeError(f"env {env} got no actions for chunk {flying.chunk} of row {flying.row}")
            self._advance(slot, env, flying, at_s)
        self._observe_at(name, slot, at_s)

    def _advance(self, slot: _Slot, env: Env, flying: _Flying, at_s: float) -> None:
        flying.chunk += 1
        flying.left -= 1
        if flying.left > 0 and flying.chunk < flying.room:
            slot.ready.append(env)
            return
        if slot.member in self._stuck:
            return
        end: End = "terminated" if flying.left <= 0 else "segment"
        ready = TrajectoryReady(
            member=slot.member,
            env=env,
            row=flying.row,
            chunks=flying.chunk,
            sub_steps=flying.chunk * self._workload.chunk,
            end=end,
            success=end == "terminated" and flying.success,
            solved_at_reset=False,
            total_reward=float(flying.chunk),
        )
        self._at(at_s, slot.member, ready)

    def ended(self, event: TrajectoryReady) -> None:
        """The end of a trajectory is being reported: its env is free."""
        del self._slots[self._slot_of[event.env]].flying[event.env]
        del self.rows[event.row]

    def _step(self, member: Member, envs: int, now_s: float) -> float:
        """Occupy the first free lane; returns when the slot's chunk is done."""
        draw, mu, sigma = self._random.lognormvariate, self._mu, self._sigma
        cost_s = self._costs.chunk_s + self._costs.observe_s * envs
        if self._costs.sub_step_s > 0:
            for _ in range(self._workload.chunk):
                cost_s += max([draw(mu, sigma) for _ in range(envs)])
        lane, lanes = self._free_lane(member)
        lanes[lane] = max(lanes[lane], now_s + self._costs.message_s) + cost_s
        return lanes[lane]

    def _free_lane(self, member: Member) -> tuple[int, list[float]]:
        lanes = self._lanes[member]
        return lanes.index(min(lanes)), lanes

    def _observe_at(self, name: Slot, slot: _Slot, at_s: float) -> None:
        if slot.member in self._stuck:
            return
        if slot.ready:
            self._at(at_s, slot.member, Observe(slot=name))
        else:
            slot.stepping = False
