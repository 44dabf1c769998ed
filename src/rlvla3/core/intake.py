"""Intake: finished trajectories become micro-batches, micro-batches one update."""

from typing import Literal

from rlvla3.core.settings import TrainingSettings
from rlvla3.core.staleness import Staleness
from rlvla3.messages import Trajectory, Version


class Intake:
    """The queue of finished trajectories and the update being filled."""

    def __init__(self, settings: TrainingSettings, staleness: Staleness) -> None:
        self._settings = settings
        self._staleness = staleness
        self.version = Version(0)
        """The Trainer's version, which is also the number of the update being filled."""
        self.attempt = 0
        """Updates handed to the Trainer, skipped ones included: names an update uniquely."""
        self.phase: Literal["filling", "training"] = "filling"
        self.queue: list[Trajectory] = []
        self.admitted: list[Trajectory] = []
        self._sent = 0

    def add(self, trajectory: Trajectory) -> None:
        """Queue a finished trajectory."""
        self.queue.append(trajectory)

    def stale(self) -> list[Trajectory]:
        """Take out what can no longer be used in time (only ``on_stale: drop`` has such)."""
        late = [t for t in self.queue if self._staleness.deadline(t.row) < self.version]
        if late:
            self.queue = [t for t in self.queue if self._staleness.deadline(t.row) >= self.version]
        return late

    def micro_batch(self) -> tuple[Trajectory, ...]:
        """Admit what may be admitted, earliest deadline first; a full micro-batch or nothing.

        The last micro-batch of an update may be smaller. Nothing while the Trainer trains. With a
        quota nothing before all are there: then they go in an order that no delay can change.
        """
        if self.phase == "training":
            return ()
        self._admit()
        if self._settings.quota:
            if not self.full:
                return ()
            if not self._sent:
                self.admitted.sort(key=lambda t: (t.episode, t.first_chunk))
        unsent = len(self.admitted) - self._sent
        size = self._settings.micro_batch
        if unsent >= size or (unsent and self.full):
            taken = self.admitted[self._sent : self._sent + size]
            self._sent += len(taken)
            return tuple(taken)
        return ()

    @property
    def full(self) -> bool:
        """Whether all places of the update are taken."""
        return len(self.admitted) == self._settings.batch

    @property
    def complete(self) -> bool:
        """Whether everything of the update was sent, so that it can be finished."""
        return self.full and self._sent == len(self.admitted) and self.phase == "filling"

    def finish(self) -> None:
        """The Trainer was told to finish the update."""
        self.phase = "training"

    def done(self, skipped: bool) -> list[Trajectory]:
        """The update ended; returns its trajectories, whose rows are free again."""
        used, self.admitted, self._sent = self.admitted, [], 0
        self.phase = "filling"
        self.attempt += 1
        if skipped:
            self._staleness.skip_update()
        else:
            self.version = Version(self.version + 1)
        return used

    def _admit(self) -> None:
        if self.full or not self.queue:
            return
        deadline = self._staleness.deadline
        self.queue.sort(key=lambda t: deadline(t.row))
        left = []
        for index, trajectory in enumerate(self.queue):
            if self.full:
                left += self.queue[index:]
                break
            if self._settings.on_stale == "drop" or self._staleness.admissible(trajectory.row, self.version):
                self._staleness.admit(trajectory.row)
                self.admitted.append(trajectory)
            else:
                left.append(trajectory)
        self.queue = left
