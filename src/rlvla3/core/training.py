"""Training: finished trajectories become rounds of micro-batches, updates, versions.

The Trainer may have several members (ranks). What they do is collective, so all of them get the same
commands in one order: each round a micro-batch, maybe an empty one, each update its end. An update
is done when all of them say so.
"""

from rlvla3.core.evaluation import Evaluation
from rlvla3.core.flights import Flights
from rlvla3.core.groups import Groups
from rlvla3.core.health import Health
from rlvla3.core.intake import Intake, Unit
from rlvla3.core.outbox import Outbox
from rlvla3.core.settings import EngineSettings
from rlvla3.core.staleness import Staleness
from rlvla3.core.statistics import Statistics
from rlvla3.core.weights import Weights
from rlvla3.messages import FinishUpdate, Member, TrainMicroBatch, Trajectory, UpdateDone, Version

UPDATE = "an update"


class Training:
    """Feeds the Trainer, counts its versions and asks for their publication."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        intake: Intake,
        staleness: Staleness,
        groups: Groups,
        flights: Flights,
        weights: Weights,
        evaluation: Evaluation,
        health: Health,
        statistics: Statistics,
        outbox: Outbox,
    ) -> None:
        self._settings = settings
        self._intake = intake
        self._staleness = staleness
        self._groups = groups
        self._flights = flights
        self._weights = weights
        self._evaluation = evaluation
        self._health = health
        self._statistics = statistics
        self._outbox = outbox
        self._trainers = settings.topology.trainers
        self._done: dict[Member, str] = {}
        """Trainer members that finished the update under way, and why they skipped it, if they did."""
        self._skipped_in_row = 0
        self._replaced: list[Trajectory] = []
        """Members of groups that were replaced since the last update: how they ended counts for the law of
        sampling, or it would know mixed groups only."""

    def add(self, trajectory: Trajectory) -> None:
        """A trajectory is complete: queue it, with its group once that is complete too."""
        unit, reason = self._groups.finished(trajectory, self._intake.filling)
        if reason:
            if reason == "equal_group":
                self._replaced += unit
            self._drop(unit, reason)
        elif unit:
            self._intake.add(unit)
            self._drop_stale()

    def feed(self, now_s: float) -> None:
        """Send what the Trainer can take; finish the update when all of it was sent."""
        trainers = self._trainers
        if not trainers or not self._health.all_up(trainers):
            return
        update = self._intake.attempt
        while dealt := self._intake.round():
            for trainer, trajectories in zip(trainers, dealt, strict=True):
                self._outbox.send(TrainMicroBatch(member=trainer, update=update, trajectories=trajectories))
        if self._intake.complete and not self._weights.pending:
            self._intake.finish()
            for trainer in trainers:
                self._health.begin(trainer, UPDATE, self._settings.health.update_timeout_s, now_s)
                self._outbox.send(FinishUpdate(member=trainer, update=update))

    def done(self, event: UpdateDone, now_s: float) -> str | None:
        """A Trainer member ended an update; None while others are still at it.

        Returns why the run must stop, if it must, once the update is done.
        """
        if event.update != self._intake.attempt:
            raise RuntimeError(f"update {event.update} ended, {self._intake.attempt} was under way")
        self._health.end(event.member, UPDATE, now_s)
        self._done[event.member] = event.skipped
        if len(self._done) < len(self._trainers):
            return None
        self._agree()
        used_by = self._intake.version
        used = self._intake.done(skipped=bool(event.skipped))
        for trajectory in used:
            self._flights.free(trajectory.row)
        if event.skipped:
            return self._skip(event.skipped, len(used))
        self._skipped_in_row = 0
        self._count(used, used_by)
        self._flights.trained(used + self._replaced)
        self._replaced = []
        self._drop_stale()
        self.publish()
        return ""

    def _agree(self) -> None:
        done, self._done = self._done, {}
        if len({bool(why) for why in done.values()}) > 1:
            skipped = ", ".join(member for member, why in done.items() if why)
            raise RuntimeError(f"update {self._intake.attempt} was skipped by {skipped} only")

    def publish(self) -> None:
        """Publish the version that the Trainer holds now, for evaluation too where one is due."""
        version = self._intake.version
        self._weights.request("rollout", version)
        if self._evaluation.due(version) and self._evaluation.begin(version):
            self._weights.request("evaluation", version)

    def evaluate_postponed(self) -> None:
        """Evaluate the newest version if it was due while another one was being evaluated."""
        version = self._intake.version
        if self._intake.phase == "filling" and self._evaluation.resume_postponed(version):
            self._weights.request("evaluation", version)

    def _skip(self, why: str, trajectories: int) -> str:
        self._statistics.skipped_updates += 1
        self._statistics.drop("skipped_update", trajectories)
        self._flights.reopen_quota()
        self._skipped_in_row += 1
        if self._skipped_in_row < self._settings.training.max_skipped:
            return ""
        return (
            f"{self._skipped_in_row} updates in a row were skipped, which is trainer.max_skipped; "
            f"the last one because of {why}"
        )

    def _count(self, used: list[Trajectory], version: Version) -> None:
        statistics = self._statistics
        for trajectory in used:
            lag = version - trajectory.oldest_version
            if not 0 <= lag <= self._settings.training.max_lag:
                raise RuntimeError(f"lag {lag} of episode {trajectory.episode} at update {version}")
            statistics.lag_sum += lag
            statistics.lag_max = max(statistics.lag_max, lag)
            statistics.trained_sub_steps += trajectory.sub_steps
            statistics.trained_chunks += trajectory.chunks
            statistics.trained_episodes[trajectory.start.task] += trajectory.first_chunk == 0
        statistics.trained += len(used)

    def _drop_stale(self) -> None:
        for unit in self._intake.stale():
            self._staleness.drop(unit[0].group)
            self._drop(unit, "stale")

    def _drop(self, unit: Unit, reason: str) -> None:
        self._statistics.drop(reason, len(unit))
        for trajectory in unit:
            self._flights.free(trajectory.row)
