"""Training: finished trajectories become micro-batches, updates, versions."""

from rlvla3.core.evaluation import Evaluation
from rlvla3.core.flights import Flights
from rlvla3.core.health import Health
from rlvla3.core.intake import Intake
from rlvla3.core.outbox import Outbox
from rlvla3.core.settings import EngineSettings
from rlvla3.core.staleness import Staleness
from rlvla3.core.statistics import Statistics
from rlvla3.core.weights import Weights
from rlvla3.messages import FinishUpdate, TrainMicroBatch, Trajectory, UpdateDone, Version

UPDATE = "an update"


class Training:
    """Feeds the Trainer, counts its versions and asks for their publication."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        intake: Intake,
        staleness: Staleness,
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
        self._flights = flights
        self._weights = weights
        self._evaluation = evaluation
        self._health = health
        self._statistics = statistics
        self._outbox = outbox
        self._skipped_in_row = 0

    def add(self, trajectory: Trajectory) -> None:
        """Queue a finished trajectory."""
        self._intake.add(trajectory)
        self._drop_stale()

    def feed(self, now_s: float) -> None:
        """Send what the Trainer can take; finish the update when all of it was sent."""
        trainers = self._settings.topology.trainers
        if not trainers or not self._health.up(trainers[0]):
            return
        while micro_batch := self._intake.micro_batch():
            self._outbox.send(
                TrainMicroBatch(member=trainers[0], update=self._intake.attempt, trajectories=micro_batch)
            )
        if self._intake.complete and not self._weights.pending:
            self._intake.finish()
            self._health.begin(trainers[0], UPDATE, self._settings.health.update_timeout_s, now_s)
            self._outbox.send(FinishUpdate(member=trainers[0], update=self._intake.attempt))

    def done(self, event: UpdateDone, now_s: float) -> str:
        """An update ended; returns why the run must stop, if it must."""
        if event.update != self._intake.attempt:
            raise RuntimeError(f"update {event.update} ended, {self._intake.attempt} was under way")
        self._health.end(event.member, UPDATE, now_s)
        used_by = self._intake.version
        used = self._intake.done(event.skipped)
        for trajectory in used:
            self._flights.free(trajectory.row)
        if event.skipped:
            return self._skip(len(used))
        self._skipped_in_row = 0
        self._count(used, used_by)
        self._drop_stale()
        self.publish()
        return ""

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

    def _skip(self, trajectories: int) -> str:
        self._statistics.skipped_updates += 1
        self._statistics.drop("skipped_update", trajectories)
        self._flights.reopen_quota()
        self._skipped_in_row += 1
        if self._skipped_in_row < self._settings.training.max_skipped:
            return ""
        return f"{self._skipped_in_row} updates in a row were not finite"

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
        statistics.trained += len(used)

    def _drop_stale(self) -> None:
        for trajectory in self._intake.stale():
            self._staleness.drop(trajectory.row)
            self._statistics.drop("stale")
            self._flights.free(trajectory.row)
