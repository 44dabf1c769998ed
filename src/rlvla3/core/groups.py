"""Groups: G episodes from one start, compared with each other and trained whole or not at all.

A group takes one credit. Its members run in whichever envs are free, before any new start. One that
is lost runs again inside its group; when it may not be tried any more the whole group is given up:
its credit exists again at once, and members that are still in flight are dropped as they end.

A group whose members all have the same score teaches nothing. A few for each version are replaced by
fresh ones; further ones are trained as they are, so that a version never waits for luck.

Without groups (G = 1) every trajectory is a unit of its own, and nothing is kept about it here.
"""

from collections import deque
from dataclasses import dataclass

from rlvla3.core.intake import Unit
from rlvla3.core.settings import TrainingSettings
from rlvla3.core.staleness import Staleness
from rlvla3.core.statistics import Statistics
from rlvla3.messages import Episode, Start, Trajectory, Version

NO_UNIT = -1
"""Of an evaluation episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A member of a group that waits for an env."""

    unit: int
    start: Start
    episode: Episode
    attempts: int
    """Times that it was lost before."""


class _Group:
    __slots__ = ("finished", "flying", "start")

    def __init__(self, start: Start) -> None:
        self.start = start
        self.flying = 0
        self.finished: list[Trajectory] = []


class Groups:
    """Units from their credit until all of their trajectories have finished."""

    def __init__(
        self, settings: TrainingSettings, staleness: Staleness, statistics: Statistics, attempts: int
    ) -> None:
        """``attempts``: times that a member is tried."""
        self._settings = settings
        self._staleness = staleness
        self._statistics = statistics
        self._attempts = attempts
        self._size = settings.group_size
        self._open: dict[int, _Group] = {}
        self._places: deque[Place] = deque()
        self._replaced = [NO_UNIT, 0]
        """The version being filled, and how many groups were replaced for it."""
        self.units = 0
        """Units that were ever started: the number of the next one."""
        self.given_up = 0
        """Members in flight of groups that were given up."""

    @property
    def waiting(self) -> bool:
        """Whether a member of a group that was begun waits for an env; it needs no further credit."""
        return bool(self._places)

    @property
    def finished_members(self) -> int:
        """Trajectories that wait for the rest of their group."""
        return sum(len(group.finished) for group in self._open.values())

    # --- what starts ---------------------------------------------------------------------------

    def take(self, lowest: Version) -> int:
        """Take a credit while the lowest serving version is ``lowest``; returns the new unit's number."""
        unit, self.units = self.units, self.units + 1
        self._staleness.start(unit, lowest)
        return unit

    def open(self, start: Start, episodes: list[Episode], attempts: int, lowest: Version) -> None:
        """Begin a group: its members wait for envs."""
        unit = self.take(lowest)
        self._open[unit] = _Group(start)
        self._places += [Place(unit=unit, start=start, episode=e, attempts=attempts) for e in episodes]

    def next(self) -> Place:
        """The member that the next free env runs."""
        place = self._places.popleft()
        self._open[place.unit].flying += 1
        return place

    def acted(self, unit: int, version: Version) -> None:
        """The first chunk of a trajectory was acted by ``version``."""
        if self._size == 1:
            self._staleness.bind(unit, version)

    # --- what ends -----------------------------------------------------------------------------

    def finished(self, trajectory: Trajectory, filling: int) -> tuple[Unit, str]:
        """A trajectory is complete, while version ``filling`` is being filled.

        Returns the trajectories that leave now, and the reason if they are dropped. Nothing leaves while
        others of the group are missing.
        """
        if self._size == 1:
            return (trajectory,), ""
        group = self._open.get(trajectory.group)
        if group is None:
            self.given_up -= 1
            return (trajectory,), "group_given_up"
        group.flying -= 1
        group.finished.append(trajectory)
        if len(group.finished) < self._size:
            return (), ""
        del self._open[trajectory.group]
        unit = tuple(sorted(group.finished, key=lambda t: t.episode))
        if self._is_replaced(unit, filling):
            self._staleness.drop(trajectory.group)
            return unit, "equal_group"
        self._staleness.bind(trajectory.group, min(t.oldest_version for t in unit))
        return unit, ""

    def _is_replaced(self, unit: Unit, filling: int) -> bool:
        """Whether a fresh group takes the place of this one, whose members may all have the same score."""
        by_success = self._settings.group_score == "success"
        if len({t.success if by_success else t.total_reward for t in unit}) > 1:
            return False
        self._statistics.equal_groups += 1
        if self._replaced[0] != filling:
            self._replaced = [filling, 0]
        if self._replaced[1] >= self._settings.group_replacements:
            return False
        self._replaced[1] += 1
        self._statistics.replaced_groups += 1
        return True

    def lost(self, unit: int, attempts: int, episode: Episode) -> Unit:
        """The Simulator of a member in flight is gone: run it again, as ``episode``.

        Returns the finished members that are dropped with their group because this was its last attempt.
        """
        group = self._open.get(unit)
        if group is None:
            self.given_up -= 1
            return ()
        group.flying -= 1
        if attempts + 1 < self._attempts:
            again = Place(unit=unit, start=group.start, episode=episode, attempts=attempts + 1)
            self._places.appendleft(again)
            return ()
        del self._open[unit]
        self._places = deque(place for place in self._places if place.unit != unit)
        self._staleness.drop(unit)
        self.given_up += group.flying
        self._statistics.given_up += 1
        return tuple(group.finished)

    # --- checkpoints ---------------------------------------------------------------------------

    def unfinished(self, untrained: list[Trajectory]) -> list[Start]:
        """The start of every group that is not trained yet, once: a resume begins the whole group anew.

        ``untrained``: trajectories of complete groups.
        """
        starts = {trajectory.group: trajectory.start for trajectory in untrained}
        starts |= {unit: group.start for unit, group in self._open.items()}
        return [starts[unit] for unit in sorted(starts)]
