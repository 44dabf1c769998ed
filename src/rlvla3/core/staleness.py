"""Bounded staleness: the one owner of credits and deadlines.

What is started and trained together is a unit: a group of G trajectories, or a single one (G = 1).
N = B / G units make a version, L = ``max_lag``, u = the Trainer's version, v = the lowest version
over the serving Generators. A unit whose oldest chunk was acted by version b has the deadline
b + L: it must be used by update b + L at the latest.

*Credits.* A unit may start only while ``consumed + outstanding < N * (v + L + 1)``. Hence, for
every deadline d, all units with a deadline <= d fit into the updates 0..d: the last of them
started while v <= d - L, when at most N * (d + 1) had ever been started and not dropped.

*Admission.* Update u may take a unit with a later deadline D only if for every d in [u, D) the
outstanding units with deadline <= d still fit into the places that remain in the updates up to d
(Hall's condition for unit jobs with deadlines). Then every unit can be trained in time in whatever
order they finish.

*Deadlines only rise.* Until b is known a unit counts with the deadline v + L of its start, the
earliest possible: v never decreases, and no Generator serves less. For a single trajectory b is
known with its first chunk. For a group it is known when all members have finished, and is the
lowest of their versions; not before, since a member may yet begin in an env that comes free, and
one that is lost begins anew, with a later version. A group so counts too early at worst, with a
deadline that it meets whatever its members do. Moving a unit from deadline d to a later one takes it out
of the sums of the deadlines between and adds it to none: what fitted before still fits, and the
unit started while v <= d - L, so the bound of the credits holds for the later deadline too.
"""

from rlvla3.messages import Version


class Staleness:
    """Counts units by deadline. A dropped one gives its credit back."""

    def __init__(self, units: int, max_lag: int) -> None:
        """``units``: N, of one version."""
        self._units = units
        self._max_lag = max_lag
        self._deadline: dict[int, int] = {}
        self._outstanding: dict[int, int] = {}
        self.consumed = 0
        """Places taken in closed updates and in the one being filled."""

    @property
    def outstanding(self) -> int:
        """Units in flight or queued."""
        return len(self._deadline)

    def reset(self, version: Version) -> None:
        """Start counting at ``version`` (a resume): nothing is outstanding."""
        self._deadline.clear()
        self._outstanding.clear()
        self.consumed = self._units * version

    def may_start(self, lowest: Version) -> bool:
        """Whether one more credit exists while the lowest serving version is ``lowest``."""
        return self.consumed + len(self._deadline) < self._units * (lowest + self._max_lag + 1)

    def start(self, unit: int, lowest: Version) -> None:
        """Take a credit; the deadline is the earliest possible one until the version is known."""
        self._add(unit, lowest + self._max_lag)

    def bind(self, unit: int, version: Version) -> None:
        """The oldest chunk was acted by ``version``.

        Raises:
            RuntimeError: it is older than the lowest version at the start: a version went back.
        """
        deadline = version + self._max_lag
        if deadline < self._deadline[unit]:
            raise RuntimeError(f"version {version} served after a newer one had been promised")
        self._remove(unit)
        self._add(unit, deadline)

    def drop(self, unit: int) -> None:
        """Give the credit of an outstanding unit back."""
        self._remove(unit)

    def deadline(self, unit: int) -> int:
        """The last update that may use this unit."""
        return self._deadline[unit]

    def admissible(self, unit: int, update: int) -> bool:
        """Whether ``update`` may take this unit without making another one late."""
        late = sum(n for deadline, n in self._outstanding.items() if deadline < update)
        for deadline in range(update, self._deadline[unit]):
            late += self._outstanding.get(deadline, 0)
            if late > self._units * (deadline + 1) - self.consumed - 1:
                return False
        return True

    def admit(self, unit: int) -> None:
        """The update being filled takes this unit."""
        self._remove(unit)
        self.consumed += 1

    def skip_update(self) -> None:
        """An update changed nothing: its N places exist again."""
        self.consumed -= self._units

    def _add(self, unit: int, deadline: int) -> None:
        self._deadline[unit] = deadline
        self._outstanding[deadline] = self._outstanding.get(deadline, 0) + 1

    def _remove(self, unit: int) -> None:
        deadline = self._deadline.pop(unit)
        left = self._outstanding[deadline] - 1
        if left:
            self._outstanding[deadline] = left
        else:
            del self._outstanding[deadline]
