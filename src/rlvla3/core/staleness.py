"""Bounded staleness: the one owner of credits and deadlines.

B trajectories make a version, L = ``max_lag``, u = the Trainer's version, v = the lowest version
over the serving Generators. A trajectory whose oldest chunk was acted by version b has the
deadline b + L: it must be used by update b + L at the latest.

*Credits.* A trajectory may start only while ``consumed + outstanding < B * (v + L + 1)``. Hence,
for every deadline d, all trajectories with a deadline <= d fit into the updates 0..d: the last of
them started while v <= d - L, when at most B * (d + 1) had ever been started and not dropped.

*Admission.* Update u may take a trajectory with a later deadline D only if for every d in [u, D)
the outstanding trajectories with deadline <= d still fit into the places that remain in the
updates up to d (Hall's condition for unit jobs with deadlines). Then every trajectory can be
trained in time in whatever order they finish.
"""

from rlvla3.messages import Row, Version


class Staleness:
    """Counts trajectories by deadline. A dropped one gives its credit back."""

    def __init__(self, batch: int, max_lag: int) -> None:
        self._batch = batch
        self._max_lag = max_lag
        self._deadline: dict[Row, int] = {}
        self._outstanding: dict[int, int] = {}
        self.consumed = 0
        """Places taken in closed updates and in the one being filled."""

    @property
    def outstanding(self) -> int:
        """Trajectories in flight or queued."""
        return len(self._deadline)

    def reset(self, version: Version) -> None:
        """Start counting at ``version`` (a resume): nothing is outstanding."""
        self._deadline.clear()
        self._outstanding.clear()
        self.consumed = self._batch * version

    def may_start(self, lowest: Version) -> bool:
        """Whether one more credit exists while the lowest serving version is ``lowest``."""
        return self.consumed + len(self._deadline) < self._batch * (lowest + self._max_lag + 1)

    def start(self, row: Row, lowest: Version) -> None:
        """Take a credit; the deadline is the earliest possible one until the version is known."""
        self._add(row, lowest + self._max_lag)

    def bind(self, row: Row, version: Version) -> None:
        """The first chunk was acted by ``version``.

        Raises:
            RuntimeError: it is older than the lowest version at the start: a version went back.
        """
        deadline = version + self._max_lag
        if deadline < self._deadline[row]:
            raise RuntimeError(f"version {version} served after a newer one had been promised")
        self._remove(row)
        self._add(row, deadline)

    def drop(self, row: Row) -> None:
        """Give the credit of an outstanding trajectory back."""
        self._remove(row)

    def deadline(self, row: Row) -> int:
        """The last update that may use this trajectory."""
        return self._deadline[row]

    def admissible(self, row: Row, update: int) -> bool:
        """Whether ``update`` may take this trajectory without making another one late."""
        late = sum(n for deadline, n in self._outstanding.items() if deadline < update)
        for deadline in range(update, self._deadline[row]):
            late += self._outstanding.get(deadline, 0)
            if late > self._batch * (deadline + 1) - self.consumed - 1:
                return False
        return True

    def admit(self, row: Row) -> None:
        """The update being filled takes this trajectory."""
        self._remove(row)
        self.consumed += 1

    def skip_update(self) -> None:
        """An update changed nothing: its B places exist again."""
        self.consumed -= self._batch

    def _add(self, row: Row, deadline: int) -> None:
        self._deadline[row] = deadline
        self._outstanding[deadline] = self._outstanding.get(deadline, 0) + 1

    def _remove(self, row: Row) -> None:
        deadline = self._deadline.pop(row)
        left = self._outstanding[deadline] - 1
        if left:
            self._outstanding[deadline] = left
        else:
            del self._outstanding[deadline]
