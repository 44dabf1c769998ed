"""Which task and initial state the next start has.

The start belongs to the start index, not to the env that happens to be free, so tasks whose
episodes are short are not started more often than configured.
"""

from collections import deque
from typing import Any

from rlvla3.core.sampling import law
from rlvla3.core.settings import TaskSettings
from rlvla3.messages import Env, Episode, Start, Trajectory


class _Sequence:
    """The endless sequence of starts: tasks by their law, states of each task one after the other."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self.law = law(settings)
        self.counts = [0] * len(settings.weights)
        """Starts drawn of each task."""

    def draw(self) -> Start:
        task = self.law.draw()
        state = self.counts[task]
        self.counts[task] += 1
        if self._settings.states:
            state %= self._settings.states
        return Start(task=task, split="train", state=state)

    def snapshot(self) -> dict[str, Any]:
        return {
            "counts": list(self.counts),
            "sampling": self._settings.sampling,
            "law": self.law.snapshot(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        if len(state["counts"]) != len(self.counts):
            raise ValueError(f"{len(state['counts'])} tasks in the checkpoint, {len(self.counts)} configured")
        self.counts = list(state["counts"])
        # A law that was configured instead of the checkpoint's begins at its beginning.
        if state["sampling"] == self._settings.sampling:
            self.law.restore(state["law"])


class Starts:
    """Hands out training starts; a failed one is handed out again.

    With ``fixed`` envs, the k-th new start of the i-th of E envs is number k * E + i of the
    sequence: what an env runs then depends on nothing but itself.
    """

    def __init__(self, settings: TaskSettings, fixed: tuple[Env, ...] = ()) -> None:
        self._sequence = _Sequence(settings)
        self._rank = {env: rank for rank, env in enumerate(fixed)}
        self._drawn: dict[int, Start] = {}
        """What was drawn for envs that have not come to it yet, by its number."""
        self._taken = dict.fromkeys(fixed, 0)
        self._again: dict[Env, deque[tuple[Start, int]]] = {}

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each task among the starts to come."""
        return self._sequence.law.shares

    def next(self, env: Env) -> tuple[Start, int]:
        """The next start and how many times it has failed before."""
        again = self._again.get(self._queue(env))
        if again:
            return again.popleft()
        if not self._rank:
            return self._sequence.draw(), 0
        index = self._taken[env] * len(self._rank) + self._rank[env]
        for number in range(sum(self._sequence.counts), index + 1):
            self._drawn[number] = self._sequence.draw()
        self._taken[env] += 1
        return self._drawn.pop(index), 0

    def again(self, env: Env, start: Start, attempts: int) -> None:
        """Hand out ``start`` once more, before any new one."""
        self._again.setdefault(self._queue(env), deque()).append((start, attempts))

    def trained(self, trajectories: list[Trajectory]) -> None:
        """An update is done: tell the law how the episodes ended that it trained the end of."""
        outcomes: dict[int, tuple[int, int]] = {}
        for trajectory in trajectories:
            if trajectory.end != "segment" and not trajectory.solved_at_reset:
                episodes, successes = outcomes.get(trajectory.start.task, (0, 0))
                outcomes[trajectory.start.task] = (episodes + 1, successes + trajectory.success)
        self._sequence.law.learn(outcomes)

    def _queue(self, env: Env) -> Env:
        return env if self._rank else Env(-1)

    def snapshot(self, unfinished: list[tuple[Env, Start]]) -> dict[str, Any]:
        """JSON-ready state; ``unfinished`` starts are handed out again after a resume."""
        again = [(env, s, a) for env, queue in self._again.items() for s, a in queue]
        again += [(self._queue(env), s, 0) for env, s in unfinished]
        return {
            "sequence": self._sequence.snapshot(),
            "drawn": [[number, s.task, s.split, s.state] for number, s in self._drawn.items()],
            "taken": [[env, taken] for env, taken in self._taken.items()],
            "again": [[env, s.task, s.split, s.state, a] for env, s, a in again],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot.

        Raises:
            ValueError: the snapshot has another number of tasks, or other envs with a fixed quota.
        """
        if [env for env, _ in state["taken"]] != list(self._taken):
            envs = len(state["taken"])
            raise ValueError(f"{envs} envs with a quota in the checkpoint, {len(self._taken)} configured")
        self._sequence.restore(state["sequence"])
        self._taken = {Env(env): taken for env, taken in state["taken"]}
        self._drawn = {
            number: Start(task=task, split=split, state=index)
            for number, task, split, index in state["drawn"]
        }
        self._again = {}
        for env, task, split, index, attempts in state["again"]:
            self.again(Env(env), Start(task=task, split=split, state=index), attempts)


class Numbers:
    """Training episode numbers. With ``fixed`` envs the k-th of the i-th of E envs is k * E + i."""

    def __init__(self, fixed: tuple[Env, ...]) -> None:
        self._fixed = fixed
        self._rank = {env: rank for rank, env in enumerate(fixed)}
        self._next = [0] * max(1, len(fixed))

    def next(self, env: Env) -> Episode:
        """A number for the env's next episode."""
        rank = self._rank.get(env, 0)
        self._next[rank] += 1
        return Episode((self._next[rank] - 1) * len(self._next) + rank)

    def env(self, episode: Episode) -> Env:
        """Whose episode it is; any env where none is fixed."""
        return self._fixed[episode % len(self._fixed)] if self._fixed else Env(-1)

    def snapshot(self) -> list[int]:
        """JSON-ready state."""
        return list(self._next)

    def restore(self, state: list[int]) -> None:
        """Continue from a snapshot."""
        self._next = list(state)
