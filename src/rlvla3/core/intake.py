"""Intake: finished units become rounds of micro-batches, rounds one update.

A unit is what is trained together: the members of a group, or a single trajectory.
"""

from itertools import pairwise
from typing import Literal

from rlvla3.core.settings import TrainingSettings
from rlvla3.core.staleness import Staleness
from rlvla3.messages import Trajectory, Version

Unit = tuple[Trajectory, ...]
"""Never empty; its number is the ``group`` of any of its trajectories."""
Round = tuple[tuple[Trajectory, ...], ...]
"""A micro-batch for each Trainer member."""


class Intake:
    """The queue of finished units and the update being filled."""

    def __init__(self, settings: TrainingSettings, staleness: Staleness, trainers: int) -> None:
        """``trainers``: Trainer members."""
        self._settings = settings
        self._staleness = staleness
        self._trainers = trainers
        self._round = trainers * (settings.micro_batch // settings.group_size)
        """Units of a full round."""
        self.version = Version(0)
        """The Trainer's version, which is also the number of the update being filled."""
        self.attempt = 0
        """Updates handed to the Trainer, skipped ones included: names an update uniquely."""
        self.phase: Literal["filling", "training"] = "filling"
        self.queue: list[Unit] = []
        self.admitted: list[Unit] = []
        self._sent = 0

    @property
    def filling(self) -> int:
        """The update that what finishes now may be part of."""
        return self.version + (self.phase == "training")

    @property
    def untrained(self) -> list[Trajectory]:
        """Everything that waits here, or is in the update under way."""
        return [trajectory for unit in self.queue + self.admitted for trajectory in unit]

    def add(self, unit: Unit) -> None:
        """Queue a finished unit."""
        self.queue.append(unit)

    def stale(self) -> list[Unit]:
        """Take out what can no longer be used in time (only ``on_stale: drop`` has such)."""
        late = [unit for unit in self.queue if self._deadline(unit) < self.version]
        if late:
            self.queue = [unit for unit in self.queue if self._deadline(unit) >= self.version]
        return late

    def round(self) -> Round:
        """Admit what may be admitted, earliest deadline first; a full round or nothing.

        The last round of an update may be smaller: it is dealt as evenly as whole units allow, and a member
        may get nothing. Nothing while the Trainer trains. With a quota, and where an update is ordered,
        nothing before all are there: then they go in an order that no delay can change.
        """
        if self.phase == "training":
            return ()
        self._admit()
        if self._settings.quota or self._settings.ordered:
            if not self.full:
                return ()
            if not self._sent:
                self.admitted.sort(key=lambda unit: (unit[0].episode, unit[0].first_chunk))
        unsent = len(self.admitted) - self._sent
        if unsent >= self._round or (unsent and self.full):
            taken = self.admitted[self._sent : self._sent + self._round]
            self._sent += len(taken)
            return _dealt(taken, self._trainers)
        return ()

    @property
    def full(self) -> bool:
        """Whether all places of the update are taken."""
        return len(self.admitted) == self._settings.units

    @property
    def complete(self) -> bool:
        """Whether everything of the update was sent, so that it can be finished."""
        return self.full and self._sent == len(self.admitted) and self.phase == "filling"

    def finish(self) -> None:
        """The Trainer was told to finish the update."""
        self.phase = "training"

    def done(self, skipped: bool) -> list[Trajectory]:
        """The update ended; returns its trajectories, whose rows are free again."""
        used = [trajectory for unit in self.admitted for trajectory in unit]
        self.admitted, self._sent = [], 0
        self.phase = "filling"
        self.attempt += 1
        if skipped:
            self._staleness.skip_update()
        else:
            self.version = Version(self.version + 1)
        return used

    def _deadline(self, unit: Unit) -> int:
        return self._staleness.deadline(unit[0].group)

    def _admit(self) -> None:
        if self.full or not self.queue:
            return
        self.queue.sort(key=self._deadline)
        left = []
        for index, unit in enumerate(self.queue):
            if self.full:
                left += self.queue[index:]
                break
            number = unit[0].group
            if self._settings.on_stale == "drop" or self._staleness.admissible(number, self.version):
                self._staleness.admit(number)
                self.admitted.append(unit)
            else:
                left.append(unit)
        self.queue = left


def _dealt(units: list[Unit], trainers: int) -> Round:
    """Whole units for each member, as evenly as possible, in their order."""
    size, larger = divmod(len(units), trainers)
    firsts = [member * size + min(member, larger) for member in range(trainers + 1)]
    return tuple(
        tuple(trajectory for unit in units[first:last] for trajectory in unit)
        for first, last in pairwise(firsts)
    )
