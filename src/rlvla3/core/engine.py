"""The engine: every scheduling decision, no effect.

``on(event, now_s) -> commands`` and ``next_deadline_s()``. What each loop of the system consumes,
produces and waits for, and the part that owns it:

==============  ===========================  ==========================  =========================
loop, part      consumes                     produces                    waits for
==============  ===========================  ==========================  =========================
``flights``     ended trajectories, loads    StartTrajectories           a credit, a row, an env
``inference``   ObservationReady             RunInference, ApplyActions  size, timeout, linger
``training``    finished trajectories        TrainMicroBatch, Finish     B admissible trajectories
``weights``     UpdateDone                   PublishWeights, LoadWeights a free buffer, idle member
``membership``  heartbeats, operations       ReplaceMember, Recycle      deadlines, idle envs
``ending``      the last version, requests   SaveCheckpoint, Stop        a checkpoint
==============  ===========================  ==========================  =========================

Events of the step path (observations, inference, trajectories) do only what they can have changed;
after any other event ``_settle`` looks at every loop, so that none can be forgotten.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from rlvla3.core.ending import Ending
from rlvla3.core.evaluation import Evaluation
from rlvla3.core.flights import Flight, Flights
from rlvla3.core.groups import Groups
from rlvla3.core.health import Health
from rlvla3.core.inference import Inference
from rlvla3.core.intake import Intake
from rlvla3.core.membership import Membership
from rlvla3.core.outbox import Outbox
from rlvla3.core.publishing import NONE
from rlvla3.core.recycling import Recycling
from rlvla3.core.settings import EngineSettings
from rlvla3.core.sharding import At, SlotTable
from rlvla3.core.staleness import Staleness
from rlvla3.core.statistics import Statistics
from rlvla3.core.training import Training
from rlvla3.core.weights import Weights
from rlvla3.messages import (
    CheckpointSaved,
    Command,
    Event,
    Heartbeat,
    InferenceDone,
    Member,
    MemberLost,
    MemberReady,
    MemberReaped,
    MicroBatchDone,
    ObservationReady,
    ReportEvaluation,
    StartTrajectories,
    StopRequested,
    Tick,
    Trajectory,
    TrajectoryReady,
    TrajectoryStart,
    UpdateDone,
    Version,
    WeightsLoaded,
    WeightsPublished,
)

_ANYTIME = (MemberReady, MemberLost, MemberReaped, Tick, StopRequested)
"""Events that count whatever the state of the member they concern."""


class Engine:
    """See the module docstring. Not thread-safe; one driver owns it."""

    def __init__(self, settings: EngineSettings, now_s: float, state: dict[str, Any] | None = None) -> None:
        """Build the engine, from a checkpoint's ``snapshot`` if ``state`` is given.

        Raises:
            ValueError: the snapshot does not fit the settings.
        """
        self.settings = settings
        topology = settings.topology
        members = topology.simulators + topology.generators + topology.trainers
        self._outbox = outbox = Outbox()
        self.statistics = statistics = Statistics(trained_episodes=[0] * len(settings.training.tasks.weights))
        self.slots = slots = SlotTable(topology.slots)
        self.staleness = staleness = Staleness(settings.training.units, settings.training.max_lag)
        self.intake = intake = Intake(settings.training, staleness, max(len(topology.trainers), 1))
        self.groups = groups = Groups(
            settings.training, staleness, statistics, settings.health.start_attempts
        )
        self.evaluation = evaluation = Evaluation(settings.evaluation)
        recycling = Recycling(settings.health.recycle_after, topology.simulators)
        self.flights = flights = Flights(settings, staleness, groups, evaluation, statistics, recycling)
        self.health = health = Health(settings.health, members, now_s)
        self.weights = weights = Weights(settings, evaluation, health, outbox)
        self.inference = Inference(
            settings,
            slots=slots,
            flights=flights,
            groups=groups,
            weights=weights,
            health=health,
            statistics=statistics,
            outbox=outbox,
            now_s=now_s,
        )
        self.training = Training(
            settings,
            intake=intake,
            staleness=staleness,
            groups=groups,
            flights=flights,
            weights=weights,
            evaluation=evaluation,
            health=health,
            statistics=statistics,
            outbox=outbox,
        )
        self.ending = Ending(
            settings,
            slots=slots,
            intake=intake,
            evaluation=evaluation,
            health=health,
            statistics=statistics,
            outbox=outbox,
            snapshot=self.snapshot,
        )
        self.membership = Membership(
            settings,
            health=health,
            slots=slots,
            flights=flights,
            inference=self.inference,
            weights=weights,
            ending=self.ending,
            statistics=statistics,
            outbox=outbox,
            recycling=recycling,
        )
        self.incarnation = 0
        if state is not None:
            self._restore(state)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
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

    # --- the driver's interface ----------------------------------------------------------------

    @property
    def stopped(self) -> bool:
        """Whether Stop was sent; nothing follows it."""
        return self._outbox.closed

    def on(self, event: Event, now_s: float) -> list[Command]:
        """Take in an event; returns what is to be done, in order.

        Raises:
            RuntimeError: a member broke the protocol or a rule of the engine would be broken.
        """
        if self._outbox.closed:
            return []
        if not isinstance(event, _ANYTIME):
            if not self.health.up(event.member):
                return []
            self.health.seen(event.member, now_s)
        self._handlers[type(event)](event, now_s)
        return self._outbox.take()

    def next_deadline_s(self) -> float:
        """When a Tick must come if nothing else happens; infinite if never."""
        return min(self.membership.deadline_s(), self.inference.deadline_s())

    def accounting(self) -> dict[str, int]:
        """Where every started training trajectory is; ``started`` is the sum of the rest.

        ``in_group``: finished, waiting for the rest of its group. ``given_up``: in flight, of a group that
        was given up.
        """
        size = self.settings.training.group_size
        return {
            "started": self.statistics.started,
            "in_flight": self.flights.rollouts - self.groups.given_up,
            "given_up": self.groups.given_up,
            "in_group": self.groups.finished_members,
            "queued": size * len(self.intake.queue),
            "in_update": size * len(self.intake.admitted),
            "trained": self.statistics.trained,
            "dropped": sum(self.statistics.dropped.values()),
        }

    def snapshot(self) -> str:
        """JSON of what a resume needs. Unfinished episodes are started again from their starts."""
        return json.dumps(
            {
                "incarnation": self.incarnation,
                "version": self.intake.version,
                "evaluated": self.evaluation.reported,
                "flights": self.flights.snapshot(self.intake.untrained),
                "statistics": dataclasses.asdict(self.statistics),
            }
        )

    def _restore(self, state: dict[str, Any]) -> None:
        self.incarnation = state["incarnation"] + 1
        self.intake.version = Version(state["version"])
        evaluated = state["evaluated"]
        self.evaluation.reported = None if evaluated is None else Version(evaluated)
        self.ending.restored(self.intake.version)
        self.staleness.reset(self.intake.version)
        for name, value in state["statistics"].items():
            setattr(self.statistics, name, value)
        self.flights.restore(state["flights"])

    # --- the step path -------------------------------------------------------------------------

    def _on_observation(self, event: ObservationReady, now_s: float) -> None:
        slot = self.slots[event.slot]
        if event.seq != slot.seq + 1 or slot.at is not At.STEPPING:
            raise RuntimeError(
                f"slot {event.slot} sent request {event.seq} after {slot.seq} while it was {slot.at.value}"
            )
        slot.seq = event.seq
        self.statistics.turn(now_s - self.slots.stepping_since[event.slot])
        self.slots.move(slot, At.QUEUED, now_s)
        if self.ending.reason:
            self.ending.cancel([slot], now_s)
            return
        self.inference.observe(event, now_s)
        self.inference.dispatch(now_s)

    def _on_inference(self, event: InferenceDone, now_s: float) -> None:
        for flight in self.inference.done(event, now_s):
            self._finish(flight, now_s)
        self.weights.load(event.member, now_s)
        if self.flights.starved:
            self._grant(now_s)
        self.inference.dispatch(now_s)

    def _on_trajectory(self, event: TrajectoryReady, now_s: float) -> None:
        flight = self.flights.ended(event)
        slot = self.slots.of_env(event.env)
        slot.active -= 1
        if slot.active == 0:
            self.slots.move(slot, At.IDLE, now_s)
        bootstrap = event.end != "terminated" and self.settings.training.bootstrap == "generator"
        if flight.channel == "rollout" and bootstrap and not self.ending.reason:
            self.inference.ask_value(flight, now_s)
        else:
            self._finish(flight, now_s)
        self._grant(now_s)
        self.inference.dispatch(now_s)

    def _finish(self, flight: Flight, now_s: float) -> None:
        """The trajectory is complete, its bootstrap value included."""
        self.flights.close(flight.row)
        ended, oldest = flight.ended, flight.oldest_version
        assert ended is not None
        trajectory = Trajectory(
            row=flight.row,
            episode=flight.episode,
            group=flight.unit,
            start=flight.start,
            first_chunk=flight.first_chunk,
            chunks=ended.chunks,
            sub_steps=ended.sub_steps,
            end=ended.end,
            success=ended.success,
            solved_at_reset=ended.solved_at_reset,
            total_reward=ended.total_reward,
            oldest_version=NONE if oldest is None else oldest,
        )
        if flight.channel == "evaluation":
            self.statistics.evaluation_sub_steps += ended.sub_steps
            self.flights.free(flight.row)
            self.evaluation.finished(trajectory)
            self._settle(now_s)
            return
        self.statistics.finish(trajectory)
        self.training.add(trajectory)
        self._feed(now_s)

    def _grant(self, now_s: float) -> None:
        """Hand out credits and evaluation episodes."""
        if self.ending.reason:
            return
        granted: dict[Member, list[TrajectoryStart]] = {}
        for member, credit in self.flights.grant(self.weights.lowest, self.weights.evaluating):
            granted.setdefault(member, []).append(credit)
            slot = self.slots.of_env(credit.env)
            slot.active += 1
            if slot.at is At.IDLE:
                self.slots.move(slot, At.STEPPING, now_s)
        for member, starts in granted.items():
            self._outbox.send(StartTrajectories(member=member, starts=tuple(starts)))
        self.membership.recycle()

    def _feed(self, now_s: float) -> None:
        if not self.ending.reason:
            self.training.feed(now_s)

    # --- everything else -----------------------------------------------------------------------

    def _settle(self, now_s: float) -> None:
        """Let every loop do what has become possible."""
        self._report_evaluation()
        self.weights.write(now_s)
        for generator in self.settings.topology.generators:
            if not self.inference.running(generator):
                self.weights.load(generator, now_s)
        self._feed(now_s)
        self._grant(now_s)
        self.inference.dispatch(now_s)
        self.ending.settle(now_s)

    def _report_evaluation(self) -> None:
        version = self.evaluation.version
        trajectories = self.evaluation.report()
        if trajectories and version is not None:
            self._outbox.send(ReportEvaluation(version=version, trajectories=trajectories))
            if not self.settings.topology.trainers:
                self.ending.stop("all evaluation episodes are done", failed=False)
        if self.settings.topology.trainers and not self.ending.reason:
            self.training.evaluate_postponed()

    def _on_tick(self, event: Tick, now_s: float) -> None:
        self.membership.check(now_s)
        self._settle(now_s)

    def _on_heartbeat(self, event: Event, now_s: float) -> None:
        """It was seen; nothing else changed."""

    def _on_member_ready(self, event: MemberReady, now_s: float) -> None:
        trainers = self.settings.topology.trainers
        ready = self.membership.ready(event.member, now_s)
        if ready and event.member in trainers and self.health.all_up(trainers):
            self.training.publish()
        self._settle(now_s)

    def _on_member_lost(self, event: MemberLost, now_s: float) -> None:
        self.membership.lose(event.member, event.reason, now_s, refused=event.refused)
        self._settle(now_s)

    def _on_member_reaped(self, event: MemberReaped, now_s: float) -> None:
        self.membership.reaped(event.member, now_s)
        self._settle(now_s)

    def _on_loaded(self, event: WeightsLoaded, now_s: float) -> None:
        self.weights.loaded(event, now_s)
        self.inference.set_free(event.member, now_s)
        if not self.settings.topology.trainers and self.evaluation.version is None:
            self.evaluation.begin(event.version)
        self._settle(now_s)

    def _on_published(self, event: WeightsPublished, now_s: float) -> None:
        self.weights.published(event, now_s)
        self._settle(now_s)

    def _on_update(self, event: UpdateDone, now_s: float) -> None:
        failure = self.training.done(event, now_s)
        if failure is None:
            return
        if failure:
            self.ending.stop(failure, failed=True)
        elif not event.skipped:
            self.ending.save_if_due(now_s)
        self._settle(now_s)

    def _on_saved(self, event: CheckpointSaved, now_s: float) -> None:
        self.ending.saved(event, now_s)
        self._settle(now_s)

    def _on_stop_requested(self, event: StopRequested, now_s: float) -> None:
        self.ending.ask(event.reason)
        self._settle(now_s)
