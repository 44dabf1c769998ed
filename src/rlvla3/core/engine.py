"""The engine: every scheduling decision, no effect.

``on(event, now_s) -> commands`` and ``next_deadline_s()``. What each loop of the system consumes,
produces and waits for:

==============  ===========================  ==========================  =========================
loop            consumes                     produces                    waits for
==============  ===========================  ==========================  =========================
credits         ended trajectories, loads    StartTrajectories           a credit, a row, an env
inference       ObservationReady             RunInference, ApplyActions  size, timeout, linger
training        finished trajectories        TrainMicroBatch, Finish     B admissible trajectories
publishing      UpdateDone                   PublishWeights, LoadWeights a free buffer, idle member
health          heartbeats, operations       ReplaceMember               deadlines
==============  ===========================  ==========================  =========================
"""

import json
from typing import Any

from rlvla3.core.batcher import Batcher, Pending
from rlvla3.core.evaluation import Evaluation
from rlvla3.core.flights import Flight, Flights
from rlvla3.core.health import Health, Up
from rlvla3.core.intake import Intake
from rlvla3.core.publishing import NONE, Publisher
from rlvla3.core.routing import Router
from rlvla3.core.settings import EngineSettings
from rlvla3.core.sharding import At, SlotTable
from rlvla3.core.staleness import Staleness
from rlvla3.core.statistics import Statistics
from rlvla3.messages import (
    ApplyActions,
    CancelRequests,
    Channel,
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
    ObservationReady,
    PublishWeights,
    ReplaceMember,
    ReportEvaluation,
    Request,
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


class Engine:
    """See the module docstring. Not thread-safe; one driver owns it."""

    def __init__(self, settings: EngineSettings, now_s: float, state: dict[str, Any] | None = None) -> None:
        """Build the engine, from a checkpoint's ``snapshot`` if ``state`` is given."""
        self.settings = settings
        topology = settings.topology
        self.statistics = Statistics()
        self.slots = SlotTable(topology.slots)
        self.batcher = Batcher(settings.batching, self.slots, len(topology.generators))
        self._router = Router(settings.batching)
        self.staleness = Staleness(settings.training.batch, settings.training.max_lag)
        self.intake = Intake(settings.training, self.staleness)
        self.evaluation = Evaluation(settings.evaluation)
        self.flights = Flights(settings, self.staleness, self.evaluation, self.statistics)
        members = topology.simulators + topology.generators + topology.trainers
        self.health = Health(settings.health, members, now_s)
        self.rollout = Publisher("rollout", settings.weight_buffers, topology.generators)
        self.pinned = Publisher("evaluation", 2, topology.generators)
        self._index = {g: i for i, g in enumerate(topology.generators)}
        self._free_s = dict.fromkeys(topology.generators, now_s)
        self._running: dict[Member, tuple[RunInference, list[Pending]]] = {}
        self._zombies: dict[Member, list[Row]] = {}
        self._batches = 0
        self._restarting: dict[Member, bool] = {}
        self._skipped_in_row = 0
        self._stopping = ""
        self._saving = NONE
        self._saved = NONE
        self.stopped = False
        self.incarnation = 0
        self._out: list[Command] = []
        if state is not None:
            self._restore(state)
        self._handlers: dict[type, Any] = {
            Tick: self._on_tick,
            MemberReady: self._on_member_ready,
            Heartbeat: self._on_heartbeat,
            MemberLost: self._on_member_lost,
            MemberReaped: self._on_member_reaped,
            ObservationReady: self._on_observation,
            TrajectoryReady: self._on_trajectory,
            InferenceDone: self._on_inference,
            WeightsLoaded: self._on_loaded,
            MicroBatchDone: self._on_heartbeat,
            UpdateDone: self._on_update,
            WeightsPublished: self._on_published,
            CheckpointSaved: self._on_saved,
            StopRequested: self._on_stop_requested,
        }

    # --- the driver's interface ---------------------------------------------------------------

    def on(self, event: Event, now_s: float) -> list[Command]:
        """Take in an event; returns what is to be done, in order."""
        if self.stopped:
            return []
        member = getattr(event, "member", None)
        if member is not None and not isinstance(event, (MemberReady, MemberLost, MemberReaped)):
            if not self.health.up(member):
                return []
            self.health.seen(member, now_s)
        self._handlers[type(event)](event, now_s)
        out, self._out = self._out, []
        return out

    def next_deadline_s(self) -> float:
        """When a Tick must come if nothing else happens; infinite if never."""
        deadline = self.health.deadline_s()
        if self.slots.stepping_since:
            oldest = next(iter(self.slots.stepping_since.values()))
            deadline = min(deadline, oldest + self.settings.health.step_timeout_s)
        for generator, index in self._index.items():
            if self._idle(generator):
                deadline = min(deadline, self.batcher.due_s(index, self._free_s[generator]))
        return deadline

    def accounting(self) -> dict[str, int]:
        """Where every started training trajectory is; ``started`` is the sum of the rest."""
        return {
            "started": self.statistics.started,
            "in_flight": self.flights.rollouts,
            "queued": len(self.intake.queue),
            "in_update": len(self.intake.admitted),
            "trained": self.statistics.trained,
            "dropped": sum(self.statistics.dropped.values()),
        }

    def snapshot(self) -> str:
        """JSON of what a resume needs. Unfinished episodes are started again from their starts."""
        flying = [f.start for f in self.flights if f.channel == "rollout"]
        unfinished = flying + [t.start for t in self.intake.queue + self.intake.admitted]
        return json.dumps(
            {
                "incarnation": self.incarnation,
                "version": self.intake.version,
                "next_episode": self.flights.next_episode,
                "starts": self.flights.starts.snapshot(unfinished),
                "unfinished": len(unfinished),
                "statistics": {
                    "started": self.statistics.started,
                    "finished": self.statistics.finished,
                    "trained": self.statistics.trained,
                    "dropped": self.statistics.dropped,
                    "sub_steps": self.statistics.sub_steps,
                    "skipped_updates": self.statistics.skipped_updates,
                },
            }
        )

    def _restore(self, state: dict[str, Any]) -> None:
        self.incarnation = state["incarnation"] + 1
        self.intake.version = Version(state["version"])
        self.staleness.reset(self.intake.version)
        self.flights.next_episode = state["next_episode"]
        self.flights.starts.restore(state["starts"])
        for name, value in state["statistics"].items():
            setattr(self.statistics, name, value)
        if state["unfinished"]:
            self.statistics.drop("resumed", state["unfinished"])

    # --- rollout -------------------------------------------------------------------------------

    def _grant(self, now_s: float) -> None:
        """Hand out credits and evaluation episodes."""
        if self._stopping:
            return
        lowest = self.rollout.lowest if self.settings.topology.trainers else NONE
        granted: dict[Member, list[TrajectoryStart]] = {}
        for member, credit in self.flights.grant(lowest, self._evaluating()):
            granted.setdefault(member, []).append(credit)
            slot = self.slots.of_env(credit.env)
            slot.active += 1
            if slot.at is At.IDLE:
                self.slots.move(slot, At.STEPPING, now_s)
        for member, credits in granted.items():
            self._out.append(StartTrajectories(member=member, starts=tuple(credits)))

    def _evaluating(self) -> bool:
        """Whether an evaluation goes on and every serving Generator holds its version."""
        version = self.evaluation.version
        return version is not None and all(
            self.pinned.serving[g] == version for g in self._index if self.health.up(g)
        )

    def _on_observation(self, event: ObservationReady, now_s: float) -> None:
        slot = self.slots[event.slot]
        if event.seq != slot.seq + 1:
            raise RuntimeError(f"slot {event.slot} sent request {event.seq} after {slot.seq}")
        slot.seq = event.seq
        self.slots.move(slot, At.QUEUED, now_s)
        if self._stopping:
            self._cancel({event.member: [(event.slot, event.seq)]})
            return
        parts: dict[Channel, list[int]] = {}
        for index, row in enumerate(event.rows):
            parts.setdefault(self.flights[Row(row)].channel, []).append(index)
        slot.unanswered = len(parts)
        for channel, indices in parts.items():
            self._push(self._part(event, channel, indices), slot.member, now_s)
        self._dispatch(now_s)

    @staticmethod
    def _part(event: ObservationReady, channel: Channel, indices: list[int]) -> Request:
        return Request(
            slot=event.slot,
            seq=event.seq,
            kind="act",
            channel=channel,
            rows=tuple([event.rows[i] for i in indices]),
            chunks=tuple([event.chunks[i] for i in indices]),
        )

    def _push(self, request: Request, member: Member, now_s: float) -> None:
        slot = self.slots[request.slot]
        versions = [self.flights[Row(row)].oldest_version for row in request.rows]
        pending = Pending(
            request,
            member=member,
            stage=slot.stage,
            arrival_s=now_s,
            served=slot.served,
            oldest_version=min((v for v in versions if v is not None), default=NONE),
        )
        self.statistics.requests += 1
        self.batcher.push(pending, self._route(request.slot))

    def _route(self, slot: Slot) -> int:
        serving = [i for g, i in self._index.items() if self._serves(g)]
        if not serving:
            serving = [i for g, i in self._index.items() if self.health.state[g] is not Up.GONE]
        return self._router.route(slot, serving, self._load)

    def _load(self, generator: int) -> int:
        running = self._running.get(self.settings.topology.generators[generator])
        return self.batcher.queued(generator) + (sum(p.samples for p in running[1]) if running else 0)

    def _serves(self, generator: Member) -> bool:
        """Whether the Generator is up and holds all the weights that requests may need."""
        if not self.health.up(generator):
            return False
        if self.settings.topology.trainers and self.rollout.serving[generator] == NONE:
            return False
        pinned = self.evaluation.version
        return pinned is None or self.pinned.newest != pinned or self.pinned.serving[generator] == pinned

    def _idle(self, generator: Member) -> bool:
        busy = generator in self._running or self.rollout.loading(generator) or self.pinned.loading(generator)
        return not busy and self._serves(generator)

    def _dispatch(self, now_s: float) -> None:
        """Start every inference batch that is due."""
        for generator, index in self._index.items():
            if not self._idle(generator):
                continue
            taken = self.batcher.take(index, self._free_s[generator], now_s)
            if taken:
                self._run(generator, taken, now_s)

    def _run(self, generator: Member, taken: list[Pending], now_s: float) -> None:
        statistics = self.statistics
        self._batches += 1
        statistics.batches += 1
        for pending in taken:
            statistics.samples += pending.samples
            delay = now_s - pending.arrival_s
            statistics.queue_delay_s += delay
            statistics.queue_delay_max_s = max(statistics.queue_delay_max_s, delay)
            if pending.request.kind == "act":
                slot = self.slots[pending.request.slot]
                slot.served += 1
                self.slots.move(slot, At.INFERENCE, now_s)
        command = RunInference(
            member=generator,
            batch=self._batches,
            channel=taken[0].request.channel,
            requests=tuple([pending.request for pending in taken]),
        )
        self._running[generator] = (command, taken)
        self.health.busy(generator, now_s + self.settings.health.inference_timeout_s, "an inference batch")
        self._out.append(command)

    def _on_inference(self, event: InferenceDone, now_s: float) -> None:
        command, taken = self._running.pop(event.member)
        if command.batch != event.batch:
            raise RuntimeError(f"{event.member} answered batch {event.batch}, not {command.batch}")
        self._free_generator(event.member, now_s)
        answered: dict[Member, list[tuple[Slot, int]]] = {}
        for pending in taken:
            request = pending.request
            if request.kind == "value":
                self._finish(self.flights[Row(request.rows[0])], now_s)
            elif not pending.cancelled and self._answer(request, event.version, now_s):
                answered.setdefault(pending.member, []).append((request.slot, request.seq))
        for member, slots in answered.items():
            if self.health.up(member):
                self._out.append(ApplyActions(member=member, slots=tuple(slots)))
        self._load_weights(event.member, now_s)
        self._dispatch(now_s)

    def _answer(self, request: Request, version: Version, now_s: float) -> bool:
        """Record the answer; whether the slot has all of its actions now."""
        if request.channel == "rollout":
            self._bind(request, version)
        slot = self.slots[request.slot]
        slot.unanswered -= 1
        if slot.unanswered:
            return False
        self.slots.move(slot, At.STEPPING, now_s)
        return True

    def _bind(self, request: Request, version: Version) -> None:
        for row in request.rows:
            flight = self.flights[Row(row)]
            if flight.oldest_version is None:
                flight.oldest_version = version
                self.staleness.bind(flight.row, version)

    def _free_generator(self, generator: Member, now_s: float) -> None:
        self._free_s[generator] = now_s
        self.health.idle(generator)
        for row in self._zombies.pop(generator, []):
            self.flights.free(row)

    def _on_trajectory(self, event: TrajectoryReady, now_s: float) -> None:
        flight = self.flights.ended(event)
        slot = self.slots.of_env(event.env)
        slot.active -= 1
        if slot.active == 0:
            self.slots.move(slot, At.IDLE, now_s)
        bootstrap = event.end != "terminated" and self.settings.training.bootstrap == "generator"
        if flight.channel == "rollout" and bootstrap and not self._stopping:
            request = Request(
                slot=slot.slot,
                seq=slot.seq,
                kind="value",
                channel="rollout",
                rows=(event.row,),
                chunks=(event.chunks,),
            )
            self._push(request, event.member, now_s)
        else:
            self._finish(flight, now_s)
        self._grant(now_s)
        self._dispatch(now_s)

    def _finish(self, flight: Flight, now_s: float) -> None:
        """The trajectory is complete, its bootstrap value included."""
        self.flights.close(flight.row)
        ended, oldest = flight.ended, flight.oldest_version
        assert ended is not None
        trajectory = Trajectory(
            row=flight.row,
            episode=flight.episode,
            start=flight.start,
            first_chunk=flight.first_chunk,
            chunks=ended.chunks,
            sub_steps=ended.sub_steps,
            end=ended.end,
            success=ended.success,
            total_reward=ended.total_reward,
            oldest_version=NONE if oldest is None else oldest,
        )
        if flight.channel == "evaluation":
            self._finish_evaluation(trajectory, now_s)
            return
        self.statistics.finished += 1
        self.statistics.sub_steps += ended.sub_steps
        if ended.end != "segment":
            self.statistics.episodes += 1
            self.statistics.successes += ended.success
        self.intake.add(trajectory)
        self._drop_stale()
        self._train(now_s)

    def _finish_evaluation(self, trajectory: Trajectory, now_s: float) -> None:
        self.statistics.evaluation_sub_steps += trajectory.sub_steps
        self.flights.free(trajectory.row)
        version = self.evaluation.version
        finished = self.evaluation.finished(trajectory)
        if finished and version is not None:
            self._out.append(ReportEvaluation(version=version, trajectories=finished))
            if not self.settings.topology.trainers:
                self._stop("all evaluation episodes are done", failed=False)
            self._end_if_done(now_s)

    # --- training ------------------------------------------------------------------------------

    def _drop_stale(self) -> None:
        for trajectory in self.intake.stale():
            self.staleness.drop(trajectory.row)
            self.statistics.drop("stale")
            self.flights.free(trajectory.row)

    def _train(self, now_s: float) -> None:
        """Send what the Trainer can take; finish the update when all of it was sent."""
        trainers = self.settings.topology.trainers
        if self._stopping or not trainers or not self.health.up(trainers[0]):
            return
        while micro_batch := self.intake.micro_batch():
            self._out.append(
                TrainMicroBatch(member=trainers[0], update=self.intake.attempt, trajectories=micro_batch)
            )
        if self.intake.complete and not self.rollout.pending and not self.pinned.pending:
            self.intake.finish()
            self.health.busy(trainers[0], now_s + self.settings.health.update_timeout_s, "an update")
            self._out.append(FinishUpdate(member=trainers[0], update=self.intake.attempt))

    def _on_update(self, event: UpdateDone, now_s: float) -> None:
        if event.update != self.intake.attempt:
            raise RuntimeError(f"update {event.update} ended, {self.intake.attempt} was under way")
        self.health.idle(event.member)
        used_by = self.intake.version
        used = self.intake.done(event.skipped)
        for trajectory in used:
            self.flights.free(trajectory.row)
        if event.skipped:
            self._skip_update(len(used))
        else:
            self._skipped_in_row = 0
            self._count_trained(used, used_by)
            self._drop_stale()
            self._new_version(event.member, now_s)
        self._train(now_s)
        self._grant(now_s)
        self._end_if_done(now_s)

    def _skip_update(self, trajectories: int) -> None:
        self.statistics.skipped_updates += 1
        self.statistics.drop("skipped_update", trajectories)
        self._skipped_in_row += 1
        if self._skipped_in_row >= self.settings.training.max_skipped:
            self._stop(f"{self._skipped_in_row} updates in a row were not finite", failed=True)

    def _count_trained(self, used: list[Trajectory], version: Version) -> None:
        statistics = self.statistics
        for trajectory in used:
            lag = version - trajectory.oldest_version
            if not 0 <= lag <= self.settings.training.max_lag:
                raise RuntimeError(f"lag {lag} of episode {trajectory.episode} at update {version}")
            statistics.lag_sum += lag
            statistics.lag_max = max(statistics.lag_max, lag)
            statistics.trained_sub_steps += trajectory.sub_steps
            statistics.trained_chunks += trajectory.chunks
        statistics.trained += len(used)

    def _new_version(self, trainer: Member, now_s: float) -> None:
        """Publish, evaluate and checkpoint the version that the Trainer holds now."""
        version = self.intake.version
        self.rollout.request(version)
        if self.evaluation.due(version) and self.evaluation.begin(version):
            self.pinned.request(version)
        self._publish(trainer)
        every = self.settings.training.checkpoint_every
        if every and version and version % every == 0 and not self._stopping:
            self._save(trainer)

    def _publish(self, trainer: Member) -> None:
        for publisher in (self.rollout, self.pinned):
            write = publisher.next_write()
            if write is not None:
                version, buffer = write
                self._out.append(
                    PublishWeights(member=trainer, channel=publisher.channel, version=version, buffer=buffer)
                )

    def _on_published(self, event: WeightsPublished, now_s: float) -> None:
        publisher = self.rollout if event.channel == "rollout" else self.pinned
        publisher.published(event.version, event.buffer)
        for generator in self._index:
            self._load_weights(generator, now_s)
        self._train(now_s)

    def _load_weights(self, generator: Member, now_s: float) -> None:
        """Let an idle Generator load what is newer than what it serves."""
        if generator in self._running or not self.health.up(generator):
            return
        for publisher in (self.rollout, self.pinned):
            if self.rollout.loading(generator) or self.pinned.loading(generator):
                return
            load = publisher.next_load(generator)
            if load is not None:
                version, buffer = load
                self.health.busy(generator, now_s + self.settings.health.inference_timeout_s, "a load")
                self._out.append(
                    LoadWeights(member=generator, channel=publisher.channel, version=version, buffer=buffer)
                )

    def _on_loaded(self, event: WeightsLoaded, now_s: float) -> None:
        publisher = self.rollout if event.channel == "rollout" else self.pinned
        publisher.loaded(event.member, event.version)
        if not self.settings.topology.trainers and self.evaluation.version is None:
            self.evaluation.begin(event.version)
        self._free_generator(event.member, now_s)
        for trainer in self.settings.topology.trainers:
            self._publish(trainer)
        self._load_weights(event.member, now_s)
        self._train(now_s)
        self._grant(now_s)
        self._dispatch(now_s)

    # --- members -------------------------------------------------------------------------------

    def _on_tick(self, event: Tick, now_s: float) -> None:
        for overdue in self.health.overdue(now_s):
            self._lose(overdue.member, overdue.reason, now_s)
        if self.slots.stepping_since:
            slot, since = next(iter(self.slots.stepping_since.items()))
            member = self.slots[slot].member
            if now_s - since >= self.settings.health.step_timeout_s and self.health.up(member):
                self._lose(member, f"slot {slot} has been stepping for {now_s - since:.1f} s", now_s)
        self._dispatch(now_s)

    def _on_heartbeat(self, event: Event, now_s: float) -> None:
        pass

    def _on_member_ready(self, event: MemberReady, now_s: float) -> None:
        member = event.member
        self.health.ready(member, now_s)
        if member in self.settings.topology.trainers:
            self._new_version(member, now_s)
            self._end_if_done(now_s)
        elif member in self._index:
            self._free_s[member] = now_s
            self._load_weights(member, now_s)
        else:
            for slot in self.slots.of_member(member):
                slot.seq = -1
                for env in slot.envs:
                    self.flights.wait(env)
            self._grant(now_s)

    def _on_member_lost(self, event: MemberLost, now_s: float) -> None:
        if self.health.state[event.member] in (Up.UP, Up.STARTING):
            self._lose(event.member, event.reason, now_s)

    def _lose(self, member: Member, reason: str, now_s: float) -> None:
        replace = self.health.lost(member)
        if member in self.settings.topology.trainers:
            self._stop(f"{member} was lost: {reason}", failed=True)
            return
        self._restarting[member] = replace and not self._stopping
        if replace:
            self.statistics.replaced[member] = self.health.restarts[member]
        self._out.append(ReplaceMember(member=member, reason=reason, restart=self._restarting[member]))

    def _on_member_reaped(self, event: MemberReaped, now_s: float) -> None:
        member = event.member
        if self.health.state[member] is not Up.LOST:
            raise RuntimeError(f"{member} was reaped while {self.health.state[member].value}")
        self.health.reaped(member, self._restarting.pop(member, False), now_s)
        if member in self._index:
            self._reap_generator(member, now_s)
        else:
            self._reap_simulator(member, now_s)
        alive = [m for m, state in self.health.state.items() if state is not Up.GONE]
        for role in (self.settings.topology.simulators, self.settings.topology.generators):
            if not any(m in alive for m in role):
                self._stop(f"no {role[0].rpartition('-')[0]} is left: see the errors above", failed=True)
                return
        self._grant(now_s)
        self._dispatch(now_s)

    def _reap_generator(self, member: Member, now_s: float) -> None:
        self.rollout.gone(member)
        self.pinned.gone(member)
        for row in self._zombies.pop(member, []):
            self.flights.free(row)
        again = self.batcher.drain(self._index[member])
        running = self._running.pop(member, None)
        if running is not None:
            again += [p for p in running[1] if not p.cancelled]
        for pending in again:
            slot = self.slots[pending.request.slot]
            if pending.request.kind == "act" and slot.at is At.INFERENCE:
                self.slots.move(slot, At.QUEUED, now_s)
            self.batcher.push(pending, self._route(pending.request.slot))

    def _reap_simulator(self, member: Member, now_s: float) -> None:
        gone = set(self.flights.discard(member))
        cancelled = self.batcher.remove(lambda p: p.member == member and p.request.kind == "act")
        self.statistics.cancelled += len(cancelled)
        for generator, (command, taken) in self._running.items():
            for pending in taken:
                pending.cancelled |= pending.member == member and pending.request.kind == "act"
            written = {Row(row) for request in command.requests for row in request.rows}
            self._zombies.setdefault(generator, []).extend(gone & written)
            gone -= written
        for row in sorted(gone):
            self.flights.free(row)
        for slot in self.slots.of_member(member):
            slot.active = 0
            if slot.at is not At.IDLE:
                self.slots.move(slot, At.IDLE, now_s)

    # --- the end -------------------------------------------------------------------------------

    def _save(self, trainer: Member) -> None:
        self._saving = self.intake.version
        self._out.append(
            SaveCheckpoint(member=trainer, version=self.intake.version, engine_state=self.snapshot())
        )

    def _on_saved(self, event: CheckpointSaved, now_s: float) -> None:
        self._saving, self._saved = NONE, event.version
        if self._stopping and event.version == self.intake.version:
            self._stop(self._stopping, failed=False)

    def _on_stop_requested(self, event: StopRequested, now_s: float) -> None:
        if not self._stopping:
            self._stopping = event.reason
            self._end_if_done(now_s)

    def _end_if_done(self, now_s: float) -> None:
        """Checkpoint and stop once nothing is left to do, or nothing more is wanted."""
        trainers = self.settings.topology.trainers
        if self.stopped:
            return
        if not self._stopping:
            if not trainers or self.intake.version < self.settings.training.updates:
                return
            if self.evaluation.version is not None:
                return
            self._stopping = f"all {self.settings.training.updates} versions are trained"
        if not trainers or not self.health.up(trainers[0]) or self._saved == self.intake.version:
            self._stop(self._stopping, failed=False)
        elif self.intake.phase == "filling" and self._saving != self.intake.version:
            self._save(trainers[0])

    def _stop(self, reason: str, failed: bool) -> None:
        if self.stopped:
            return
        self.stopped = True
        unanswered: dict[Member, list[tuple[Slot, int]]] = {}
        for slot in self.slots:
            if slot.at in (At.QUEUED, At.INFERENCE) and self.health.up(slot.member):
                unanswered.setdefault(slot.member, []).append((slot.slot, slot.seq))
        self._cancel(unanswered)
        self._out.append(Stop(reason=reason, failed=failed))

    def _cancel(self, slots: dict[Member, list[tuple[Slot, int]]]) -> None:
        for member, cancelled in slots.items():
            self.statistics.cancelled += len(cancelled)
            self._out.append(
                CancelRequests(member=member, slots=tuple(cancelled), reason=self._stopping or "the run ends")
            )
