"""The virtual runtime: the same engine in virtual time, with cost models and injected faults.

It tests scheduling (a run of a hundred thousand requests takes seconds, and is a pure function of
its seed) and predicts throughput. Its members check what reaches them: actions for a (slot, seq)
that does not wait for them, a batch that is too large or a row in use twice raise at once.
"""

import heapq
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from rlvla3.core.engine import Engine
from rlvla3.core.settings import EngineSettings
from rlvla3.costs import Costs
from rlvla3.messages import (
    ApplyActions,
    CancelRequests,
    CheckpointSaved,
    Command,
    End,
    Event,
    FinishUpdate,
    Heartbeat,
    InferenceDone,
    LoadWeights,
    Member,
    MemberLost,
    MemberReady,
    MemberReaped,
    MicroBatchDone,
    ObservationReady,
    PublishWeights,
    ReplaceMember,
    ReportEvaluation,
    Row,
    RunInference,
    SaveCheckpoint,
    Slot,
    StartTrajectories,
    Stop,
    StopRequested,
    Tick,
    TrainMicroBatch,
    Trajectory,
    TrajectoryReady,
    TrajectoryStart,
    UpdateDone,
    Version,
    WeightsLoaded,
    WeightsPublished,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at a moment. ``hang`` stops heartbeats too (like SIGSTOP);
    ``stuck`` keeps them (one env or kernel that never returns)."""

    at_s: float
    kind: Literal["crash", "hang", "stuck", "skip_update", "stop"]
    member: Member
    """Empty where the kind concerns no member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the virtual simulators run."""

    chunk: int
    """C: sub-steps executed for one inference."""
    max_chunks: int
    """T: chunks of a trajectory."""
    episode_chunks: Callable[[int, int], int]
    """(task, episode) -> chunks after which the episode terminates."""
    lanes: int
    """Slots that one Simulator steps at the same time."""
    streaming: bool
    """Whether half of an update's work is done as its micro-batches arrive."""


@dataclass(slots=True)
class Report:
    """What happened."""

    seconds: float = 0.0
    trained: list[Trajectory] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    applied: int = 0
    cancelled: int = 0
    evaluations: list[ReportEvaluation] = field(default_factory=list)
    checkpoints: list[tuple[Version, str]] = field(default_factory=list)
    replaced: list[tuple[Member, str]] = field(default_factory=list)
    stop: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observe:
    """A slot's observations are complete."""

    slot: Slot


class _Slot:
    __slots__ = ("flying", "member", "ready", "seq", "stepping", "waiting")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.flying: dict[int, list[int]] = {}
        """env -> [row, chunks done, chunks until the episode ends, chunks that the row holds]."""
        self.ready: list[int] = []
        self.seq = -1
        self.waiting = False
        """A request is out."""
        self.stepping = False


class VirtualRuntime:
    """Drives an engine until it stops, or until ``until_s``."""

    def __init__(
        self,
        settings: EngineSettings,
        costs: Costs,
        workload: Workload,
        *,
        seed: int = 0,
        faults: tuple[Fault, ...] = (),
        state: dict[str, object] | None = None,
        restart_s: float = 1.0,
    ) -> None:
        self.engine = Engine(settings, 0.0, state)
        self.report = Report()
        self._settings = settings
        self._costs = costs
        self._workload = workload
        self._random = random.Random(seed)
        self._restart_s = restart_s
        self._now_s = 0.0
        self._order = count()
        self._heap: list[tuple[float, int, Member, int, Event | Fault | _Observe]] = []
        self._life = dict.fromkeys(self._members(), 0)
        """Bumped when a member dies: what its old life had scheduled is void."""
        self._mute: set[Member] = set()
        self._stuck: set[Member] = set()
        self._slots = {s.slot: _Slot(s.member) for s in settings.topology.slots}
        self._slot_of = {e: s.slot for s in settings.topology.slots for e in s.envs}
        self._lanes: dict[Member, list[float]] = {}
        self._version = Version(self.engine.intake.version)
        self._serving: dict[Member, dict[str, Version]] = {g: {} for g in settings.topology.generators}
        self._trainer_free_s = 0.0
        self._micro_chunks = 0
        self._skip_next = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            StartTrajectories: self._start,
            ApplyActions: self._apply_all,
            CancelRequests: self._cancel,
            RunInference: self._infer,
            LoadWeights: self._load,
            TrainMicroBatch: self._take_in,
            FinishUpdate: self._finish_update,
            PublishWeights: self._publish,
            SaveCheckpoint: self._save,
            ReplaceMember: self._replace,
            ReportEvaluation: self._report_evaluation,
            Stop: self._stop,
        }
        variance = math.log(1.0 + costs.sub_step_cv**2)
        self._sigma = math.sqrt(variance)
        self._mu = math.log(costs.sub_step_s) - variance / 2 if costs.sub_step_s > 0 else -math.inf
        for member in self._members():
            self._boot(member, 0.0)
        for fault in faults:
            self._at(fault.at_s, Member(""), fault)

    def _members(self) -> tuple[Member, ...]:
        topology = self._settings.topology
        return topology.simulators + topology.generators + topology.trainers

    # --- the event loop ------------------------------------------------------------------------

    def run(self, until_s: float = math.inf) -> Report:
        """Run to the end; returns the report.

        Raises:
            RuntimeError: a rule was broken, or nothing can happen any more (a hang).
        """
        engine, heap = self.engine, self._heap
        while not engine.stopped:
            deadline = engine.next_deadline_s()
            due = heap[0][0] if heap else math.inf
            if min(deadline, due) > until_s:
                break
            if min(deadline, due) == math.inf:
                raise RuntimeError(f"nothing can happen any more at {self._now_s:.3f} s")
            if deadline < due:
                self._now_s = max(deadline, self._now_s)
                self._execute(engine.on(Tick(), self._now_s))
                continue
            self._now_s, _, member, life, event = heapq.heappop(heap)
            if isinstance(event, Fault):
                self._strike(event)
            elif not member or (self._life[member] == life and member not in self._mute):
                self._deliver(member, event)
        self.report.seconds = self._now_s
        return self.report

    def _deliver(self, member: Member, event: Event | _Observe) -> None:
        if isinstance(event, Heartbeat):
            self._at(self._now_s + 1.0, member, event)
        elif isinstance(event, _Observe):
            event = self._post(event.slot)
        elif isinstance(event, InferenceDone) and member in self._stuck:
            return
        elif isinstance(event, UpdateDone) and not event.skipped:
            self._version = Version(self._version + 1)
        self._execute(self.engine.on(event, self._now_s))

    def _post(self, name: Slot) -> ObservationReady:
        """Envs that were started while the slot was being rendered are part of its request."""
        slot = self._slots[name]
        slot.stepping, slot.waiting = False, True
        slot.seq += 1
        return ObservationReady(
            member=slot.member,
            slot=name,
            seq=slot.seq,
            rows=tuple([slot.flying[e][0] for e in slot.ready]),
            chunks=tuple([slot.flying[e][1] for e in slot.ready]),
        )

    def _at(self, time_s: float, member: Member, event: Event | Fault | _Observe) -> None:
        heapq.heappush(self._heap, (time_s, next(self._order), member, self._life.get(member, 0), event))

    def _boot(self, member: Member, at_s: float) -> None:
        if member in self._settings.topology.simulators:
            self._lanes[member] = [at_s] * self._workload.lanes
        self._at(at_s, member, MemberReady(member=member))
        self._at(at_s + 1.0, member, Heartbeat(member=member))
        if member in self._serving and not self._settings.topology.trainers:
            self._at(at_s, member, WeightsLoaded(member=member, channel="evaluation", version=Version(0)))

    def _strike(self, fault: Fault) -> None:
        member = fault.member
        if fault.kind == "crash":
            self._life[member] += 1
            self._execute(self.engine.on(MemberLost(member=member, reason="exit code -9"), self._now_s))
        elif fault.kind == "hang":
            self._mute.add(member)
        elif fault.kind == "stuck":
            self._stuck.add(member)
        elif fault.kind == "skip_update":
            self._skip_next = True
        else:
            self._execute(self.engine.on(StopRequested(reason="asked to"), self._now_s))

    # --- commands ------------------------------------------------------------------------------

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            self._handlers[type(command)](command)

    def _apply_all(self, command: ApplyActions) -> None:
        for slot, seq in command.slots:
            self._apply(slot, seq)

    def _publish(self, command: PublishWeights) -> None:
        if command.version != self._version:
            raise RuntimeError(f"version {command.version} published, the Trainer has {self._version}")
        done = WeightsPublished(
            member=command.member,
            channel=command.channel,
            version=command.version,
            buffer=command.buffer,
        )
        self._at(max(self._now_s, self._trainer_free_s) + self._costs.publish_s, command.member, done)

    def _load(self, command: LoadWeights) -> None:
        self._serving[command.member][command.channel] = command.version
        loaded = WeightsLoaded(member=command.member, channel=command.channel, version=command.version)
        self._at(self._now_s + self._costs.load_s, command.member, loaded)

    def _save(self, command: SaveCheckpoint) -> None:
        self.report.checkpoints.append((command.version, command.engine_state))
        saved = CheckpointSaved(member=command.member, version=command.version)
        self._at(max(self._now_s, self._trainer_free_s), command.member, saved)

    def _cancel(self, command: CancelRequests) -> None:
        self.report.cancelled += len(command.slots)

    def _report_evaluation(self, command: ReportEvaluation) -> None:
        self.report.evaluations.append(command)

    def _stop(self, command: Stop) -> None:
        self.report.stop = command

    def _infer(self, command: RunInference) -> None:
        samples = sum(len(request.rows) for request in command.requests)
        if samples > self._settings.batching.max_batch_size:
            raise RuntimeError(f"a batch of {samples} samples")
        self.report.batch_sizes.append(samples)
        version = self._serving[command.member].get(command.channel, Version(0))
        done = InferenceDone(member=command.member, batch=command.batch, version=version)
        cost_s = self._costs.inference_s + self._costs.inference_per_sample_s * samples
        self._at(self._now_s + self._costs.message_s + cost_s, command.member, done)

    def _start(self, command: StartTrajectories) -> None:
        touched: dict[Slot, None] = {}
        for credit in command.starts:
            slot = self._slots[self._slot_of[credit.env]]
            if credit.env in slot.flying:
                raise RuntimeError(f"env {credit.env} was started while it runs a trajectory")
            room = self._workload.max_chunks if credit.channel == "rollout" else sys.maxsize
            slot.flying[credit.env] = [credit.row, 0, self._episode_left(credit), room]
            slot.ready.append(credit.env)
            touched[self._slot_of[credit.env]] = None
        for name in touched:
            slot = self._slots[name]
            if not slot.waiting and not slot.stepping:
                self._observe(name, slot, self._costs.reset_s)

    def _episode_left(self, credit: TrajectoryStart) -> int:
        return self._workload.episode_chunks(credit.start.task, credit.episode) - credit.first_chunk

    def _apply(self, name: Slot, seq: int) -> None:
        slot = self._slots[name]
        if not slot.waiting or slot.seq != seq:
            raise RuntimeError(f"slot {name} at request {slot.seq} got actions for {seq}")
        self.report.applied += 1
        slot.waiting = False
        envs, slot.ready = slot.ready, []
        slot.stepping = True
        at_s = self._step(slot.member, len(envs))
        for env in envs:
            self._advance(slot, env, at_s)
        self._observe_at(name, slot, at_s)

    def _advance(self, slot: _Slot, env: int, at_s: float) -> None:
        flying = slot.flying[env]
        flying[1] += 1
        flying[2] -= 1
        if flying[2] > 0 and flying[1] < flying[3]:
            slot.ready.append(env)
            return
        del slot.flying[env]
        end: End = "terminated" if flying[2] <= 0 else "segment"
        ready = TrajectoryReady(
            member=slot.member,
            env=env,  # type: ignore[arg-type]
            row=Row(flying[0]),
            chunks=flying[1],
            sub_steps=flying[1] * self._workload.chunk,
            end=end,
            success=end == "terminated",
            total_reward=float(flying[1]),
        )
        self._at(at_s, slot.member, ready)

    def _step(self, member: Member, envs: int) -> float:
        """Occupy the first free lane; returns when the slot's chunk is done."""
        lanes = self._lanes[member]
        lane = min(range(len(lanes)), key=lanes.__getitem__)
        draw, mu, sigma = self._random.lognormvariate, self._mu, self._sigma
        cost_s = self._costs.chunk_s + self._costs.observe_s * envs
        if self._costs.sub_step_s > 0:
            for _ in range(self._workload.chunk):
                cost_s += max([draw(mu, sigma) for _ in range(envs)])
        lanes[lane] = max(lanes[lane], self._now_s + self._costs.message_s) + cost_s
        return lanes[lane]

    def _observe(self, name: Slot, slot: _Slot, cost_s: float) -> None:
        lanes = self._lanes[slot.member]
        lane = min(range(len(lanes)), key=lanes.__getitem__)
        lanes[lane] = max(lanes[lane], self._now_s) + cost_s
        slot.stepping = True
        self._observe_at(name, slot, lanes[lane])

    def _observe_at(self, name: Slot, slot: _Slot, at_s: float) -> None:
        """Post the slot's observation; envs that were started meanwhile join at their start."""
        if slot.member in self._stuck:
            return
        if not slot.ready:
            slot.stepping = False
            return
        self._at(at_s, slot.member, _Observe(slot=name))

    def _take_in(self, command: TrainMicroBatch) -> None:
        for trajectory in command.trajectories:
            self.report.lags.append(self._version - trajectory.oldest_version)
            self.report.trained.append(trajectory)
        chunks = sum(t.chunks for t in command.trajectories)
        self._micro_chunks += chunks
        if self._workload.streaming:
            self._trainer_free_s = max(self._now_s, self._trainer_free_s) + 0.5 * (
                chunks * self._costs.train_per_chunk_s
            )
        done = MicroBatchDone(member=command.member, update=command.update)
        self._at(max(self._now_s, self._trainer_free_s), command.member, done)

    def _finish_update(self, command: FinishUpdate) -> None:
        part = 0.5 if self._workload.streaming else 1.0
        cost_s = part * self._micro_chunks * self._costs.train_per_chunk_s
        self._trainer_free_s = max(self._now_s, self._trainer_free_s) + cost_s
        done = UpdateDone(member=command.member, update=command.update, skipped=self._skip_next)
        self._micro_chunks, self._skip_next = 0, False
        self._at(self._trainer_free_s, command.member, done)

    def _replace(self, command: ReplaceMember) -> None:
        member = command.member
        self.report.replaced.append((member, command.reason))
        self._life[member] += 1
        self._mute.discard(member)
        self._stuck.discard(member)
        if member in self._serving:
            self._serving[member] = {}
        for slot in self._slots.values():
            if slot.member == member:
                slot.__init__(member)  # type: ignore[misc]
        if command.restart:
            self._boot(member, self._now_s + self._restart_s)
        self._at(self._now_s, Member(""), MemberReaped(member=member))
