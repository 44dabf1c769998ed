"""The virtual runtime: the same engine in virtual time, with cost models and injected faults.

It tests scheduling (a run of a hundred thousand requests takes seconds, and is a pure function of
its seed) and predicts throughput. Its members check what reaches them: actions for a (slot, seq)
that does not wait for them or were not computed, a batch that is too large, a row that is in use,
a trajectory trained twice, a command to a member that is lost: each raises at once.
"""

import heapq
import math
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
    PublishWeights,
    RecycleMember,
    ReplaceMember,
    ReportEvaluation,
    RunInference,
    SaveCheckpoint,
    StartTrajectories,
    Stop,
    StopRequested,
    Tick,
    TrainMicroBatch,
    Trajectory,
    TrajectoryReady,
    UpdateDone,
    Version,
    WeightsLoaded,
    WeightsPublished,
)
from rlvla3.runtime.virtual_simulators import Observe, VirtualSimulators, Workload

__all__ = ["Fault", "Report", "VirtualRuntime", "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at a moment. ``hang`` stops heartbeats too (like SIGSTOP);
    ``stuck`` keeps them (one env or kernel that never returns)."""

    at_s: float
    kind: Literal["crash", "hang", "stuck", "skip_update", "stop"]
    member: Member
    """Empty where the kind concerns no member."""


@dataclass(slots=True)
class Report:
    """What happened."""

    seconds: float = 0.0
    trained: list[Trajectory] = field(default_factory=list)
    """Sent to the Trainer, those of skipped updates included."""
    lags: list[int] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    applied: int = 0
    cancelled: int = 0
    evaluations: list[ReportEvaluation] = field(default_factory=list)
    checkpoints: list[tuple[Version, str]] = field(default_factory=list)
    replaced: list[tuple[Member, str]] = field(default_factory=list)
    recycled: list[Member] = field(default_factory=list)
    stop: Stop | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reap:
    """A killed process is gone; a replacement starts if ``restart``."""

    member: Member
    restart: bool


_Scheduled = Event | Fault | Observe | _Reap
Watch = Callable[[float, Event, list[Command]], None]
"""Called with the time, an event and the commands it led to."""


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
        state: dict[str, Any] | None = None,
        start_s: float = 0.0,
        restart_s: float = 1.0,
        reap_s: float = 0.0,
        watch: Watch | None = None,
    ) -> None:
        """``start_s``, ``restart_s``: from a process's start to ready, at first and as a replacement.

        ``reap_s``: from the order to replace a member until its process is gone.
        """
        self.engine = Engine(settings, 0.0, state)
        self.report = Report()
        self._settings = settings
        self._costs = costs
        self._workload = workload
        self._restart_s = restart_s
        self._reap_s = reap_s
        self._watch = watch
        self._now_s = 0.0
        self._order = count()
        self._heap: list[tuple[float, int, Member, int, _Scheduled]] = []
        topology = settings.topology
        members = topology.simulators + topology.generators + topology.trainers
        self._life = dict.fromkeys(members, 0)
        """Bumped when a member dies: what its old life had scheduled is void."""
        self._mute: set[Member] = set()
        self._stuck: set[Member] = set()
        self._lost: set[Member] = set()
        """Members that the engine gave up and that are not ready again."""
        self._reaping: set[Member] = set()
        self._simulators = VirtualSimulators(topology, costs, workload, seed, self._at)
        self._version = Version(self.engine.intake.version)
        self._serving: dict[Member, dict[str, Version]] = {g: {} for g in topology.generators}
        self._batches: dict[Member, RunInference] = {}
        self._trainer_free_s = dict.fromkeys(topology.trainers, 0.0)
        self._micro_chunks = dict.fromkeys(topology.trainers, 0)
        self._updating: set[Member] = set()
        """Trainer members that are to report the end of the update under way."""
        self._in_update: set[int] = set()
        self._content: dict[int, tuple[int, int]] = {}
        """(episode, first chunk) of the complete trajectory in each row."""
        self._seen: set[tuple[int, int]] = set()
        self._skip_next = self._skipping = ""
        self._handlers: dict[type, Callable[[Any], None]] = {
            StartTrajectories: self._start,
            ApplyActions: self._apply,
            CancelRequests: self._cancel,
            RunInference: self._infer,
            LoadWeights: self._load,
            TrainMicroBatch: self._take_in,
            FinishUpdate: self._finish_update,
            PublishWeights: self._publish,
            SaveCheckpoint: self._save,
            ReplaceMember: self._replace,
            RecycleMember: self._recycle,
            ReportEvaluation: self.report.evaluations.append,
            Stop: self._stop,
        }
        for member in members:
            self._boot(member, start_s)
        for fault in faults:
            self._at(fault.at_s, Member(""), fault)

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
                self._tell(Tick())
                continue
            self._now_s, _, member, life, event = heapq.heappop(heap)
            if not member or (self._life[member] == life and member not in self._mute):
                self._deliver(member, event)
        self.report.seconds = self._now_s
        return self.report

    def _deliver(self, member: Member, event: _Scheduled) -> None:
        if isinstance(event, Observe):
            self._tell(self._simulators.post(event.slot))
        elif isinstance(event, Fault):
            self._strike(event)
        elif isinstance(event, _Reap):
            self._reap(event)
        elif not (member in self._stuck and isinstance(event, (InferenceDone, UpdateDone))):
            self._prepare(member, event)
            self._tell(event)

    def _prepare(self, member: Member, event: Event) -> None:
        """What an event changes on the members' side when it is sent."""
        if isinstance(event, InferenceDone):
            for request in self._batches.pop(member).requests:
                if request.kind == "act":
                    self._simulators.acted.update(zip(request.rows, request.chunks, strict=True))
        elif isinstance(event, TrajectoryReady):
            _, episode, first_chunk = self._simulators.rows[event.row]
            self._content[event.row] = (episode, first_chunk)
            self._simulators.ended(event)
        elif isinstance(event, Heartbeat):
            self._at(self._now_s + 1.0, member, event)
        elif isinstance(event, MemberReady):
            self._lost.discard(member)
        elif isinstance(event, UpdateDone):
            self._updating.discard(member)
            if not self._updating:
                self._in_update.clear()
                self._version = Version(self._version + (not event.skipped))

    def _tell(self, event: Event) -> None:
        commands = self.engine.on(event, self._now_s)
        if self._watch is not None:
            self._watch(self._now_s, event, commands)
        for command in commands:
            if isinstance(command, (Stop, ReportEvaluation, ReplaceMember)):
                pass
            elif command.member in self._lost:
                raise RuntimeError(f"{type(command).__name__} for {command.member}, which is lost")
            self._handlers[type(command)](command)

    def _at(self, time_s: float, member: Member, event: _Scheduled) -> None:
        heapq.heappush(self._heap, (time_s, next(self._order), member, self._life.get(member, 0), event))

    # --- life and death ------------------------------------------------------------------------

    def _boot(self, member: Member, at_s: float) -> None:
        if member in self._settings.topology.simulators:
            self._simulators.boot(member, at_s)
        self._at(at_s, member, MemberReady(member=member))
        self._at(at_s + 1.0, member, Heartbeat(member=member))
        if member in self._serving and not self._settings.topology.trainers:
            self._at(at_s, member, WeightsLoaded(member=member, channel="evaluation", version=Version(0)))

    def _strike(self, fault: Fault) -> None:
        member = fault.member
        if fault.kind == "crash":
            self._life[member] += 1
            self._tell(MemberLost(member=member, reason="exit code -9"))
        elif fault.kind == "hang":
            self._mute.add(member)
        elif fault.kind == "stuck":
            self._stuck.add(member)
            self._simulators.stick(member)
        elif fault.kind == "skip_update":
            self._skip_next = "an injected fault"
        else:
            self._tell(StopRequested(reason="asked to"))

    def _replace(self, command: ReplaceMember) -> None:
        self.report.replaced.append((command.member, command.reason))
        self._bury(command.member, command.restart)

    def _recycle(self, command: RecycleMember) -> None:
        self._simulators.retire(command.member)
        self.report.recycled.append(command.member)
        self._bury(command.member, restart=True)

    def _bury(self, member: Member, restart: bool) -> None:
        if member in self._reaping:
            raise RuntimeError(f"{member} was replaced twice at once")
        self._reaping.add(member)
        self._lost.add(member)
        self._life[member] += 1
        self._at(self._now_s + self._reap_s, Member(""), _Reap(member=member, restart=restart))

    def _reap(self, reap: _Reap) -> None:
        member = reap.member
        self._reaping.discard(member)
        self._mute.discard(member)
        self._stuck.discard(member)
        self._simulators.reap(member)
        self._batches.pop(member, None)
        if member in self._serving:
            self._serving[member] = {}
        self._life[member] += 1
        if reap.restart:
            self._boot(member, self._now_s + self._restart_s)
        self._tell(MemberReaped(member=member))

    def _stop(self, command: Stop) -> None:
        self.report.stop = command

    # --- Simulators and Generators -------------------------------------------------------------

    def _start(self, command: StartTrajectories) -> None:
        written = {row for b in self._batches.values() for r in b.requests for row in r.rows}
        for credit in command.starts:
            if credit.row in self._simulators.rows or credit.row in written or credit.row in self._in_update:
                raise RuntimeError(f"row {credit.row} was given to episode {credit.episode} while in use")
            self._content.pop(credit.row, None)
        self._simulators.start(command.starts, self._now_s)

    def _apply(self, command: ApplyActions) -> None:
        self.report.applied += len(command.slots)
        self._simulators.apply(command.slots, self._now_s)

    def _cancel(self, command: CancelRequests) -> None:
        self.report.cancelled += len(command.slots)
        for slot, seq in command.slots:
            self._simulators.cancel(slot, seq)

    def _infer(self, command: RunInference) -> None:
        if command.member in self._batches:
            raise RuntimeError(f"{command.member} got a batch while it runs another one")
        samples = sum([len(request.rows) for request in command.requests])
        if samples > self._settings.batching.max_batch_size:
            raise RuntimeError(f"a batch of {samples} samples")
        self.report.batch_sizes.append(samples)
        self._batches[command.member] = command
        version = self._serving[command.member].get(command.channel, Version(0))
        done = InferenceDone(member=command.member, batch=command.batch, version=version)
        cost_s = self._costs.inference_s + self._costs.inference_per_sample_s * samples
        self._at(self._now_s + self._costs.message_s + cost_s, command.member, done)

    def _load(self, command: LoadWeights) -> None:
        if command.member in self._batches:
            raise RuntimeError(f"{command.member} was told to load while it runs a batch")
        self._serving[command.member][command.channel] = command.version
        loaded = WeightsLoaded(member=command.member, channel=command.channel, version=command.version)
        self._at(self._now_s + self._costs.load_s, command.member, loaded)

    # --- the Trainer ---------------------------------------------------------------------------

    def _work(self, trainer: Member, seconds: float) -> None:
        self._trainer_free_s[trainer] = max(self._now_s, self._trainer_free_s[trainer]) + seconds

    def _take_in(self, command: TrainMicroBatch) -> None:
        if command.member in self._updating:
            raise RuntimeError(f"{command.member} got a micro-batch while it finishes an update")
        for trajectory in command.trajectories:
            self._check_trained(trajectory)
            self.report.lags.append(self._version - trajectory.oldest_version)
            self.report.trained.append(trajectory)
        chunks = sum(t.chunks for t in command.trajectories)
        self._micro_chunks[command.member] += chunks
        if self._workload.streaming:
            self._work(command.member, 0.5 * chunks * self._costs.train_per_chunk_s)
        done = MicroBatchDone(member=command.member, update=command.update)
        self._at(max(self._now_s, self._trainer_free_s[command.member]), command.member, done)

    def _check_trained(self, trajectory: Trajectory) -> None:
        key = (trajectory.episode, trajectory.first_chunk)
        if key in self._seen:
            raise RuntimeError(f"chunk {key[1]} of episode {key[0]} is trained twice")
        if self._content.get(trajectory.row) != key:
            raise RuntimeError(f"row {trajectory.row} does not hold chunk {key[1]} of episode {key[0]}")
        self._seen.add(key)
        self._in_update.add(trajectory.row)

    def _finish_update(self, command: FinishUpdate) -> None:
        if not self._updating:
            # The first of the members: what happens to an update happens to all of them.
            self._skipping, self._skip_next = self._skip_next, ""
        self._updating.add(command.member)
        part = 0.5 if self._workload.streaming else 1.0
        self._work(command.member, part * self._micro_chunks[command.member] * self._costs.train_per_chunk_s)
        self._micro_chunks[command.member] = 0
        done = UpdateDone(member=command.member, update=command.update, skipped=self._skipping)
        self._at(self._trainer_free_s[command.member], command.member, done)

    def _publish(self, command: PublishWeights) -> None:
        if command.version != self._version:
            raise RuntimeError(f"version {command.version} published, the Trainer has {self._version}")
        if command.member != self._settings.topology.trainers[0]:
            return
        done = WeightsPublished(
            member=command.member,
            channel=command.channel,
            version=command.version,
            buffer=command.buffer,
        )
        free_s = max(self._now_s, self._trainer_free_s[command.member])
        self._at(free_s + self._costs.publish_s, command.member, done)

    def _save(self, command: SaveCheckpoint) -> None:
        if command.member != self._settings.topology.trainers[0]:
            return
        self.report.checkpoints.append((command.version, command.engine_state))
        saved = CheckpointSaved(member=command.member, version=command.version)
        self._at(max(self._now_s, self._trainer_free_s[command.member]), command.member, saved)
