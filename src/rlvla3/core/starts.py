"""Which task and initial state the next episode gets.

The start belongs to the start index, not to the env that happens to be free, so tasks whose
episodes are short are not started more often than configured.
"""

from collections import deque
from typing import Any

from rlvla3.messages import Env, Start


class _Sequence:
    """The endless sequence of starts: each task as close to its share as whole numbers allow."""

    def __init__(self, weights: tuple[float, ...], states: int) -> None:
        total = sum(weights)
        self._shares = tuple(weight / total for weight in weights)
        self._states = states
        self.counts = [0] * len(weights)

    def draw(self) -> Start:
        index = sum(self.counts) + 1
        task = max(range(len(self._shares)), key=lambda t: (self._shares[t] * index - self.counts[t], -t))
        state = self.counts[task]
        self.counts[task] += 1
        if self._states:
            state %= self._states
        return Start(task=task, split="train", state=state)


class Starts:
    """Hands out training starts; a failed one is handed out again.

    With ``fixed`` envs, the k-th new start of the i-th of E envs is number k * E + i of the
    sequence: what an env runs then depends on nothing but itself.
    """

    def __init__(self, weights: tuple[float, ...], states: int, fixed: tuple[Env, ...] = ()) -> None:
        self._sequence = _Sequence(weights, states)
        self._rank = {env: rank for rank, env in enumerate(fixed)}
        self._fixed = fixed
        self._drawn: dict[int, Start] = {}
        """What was drawn for envs that have not come to it yet, by its number."""
        self._count = 0
        self._taken = dict.fromkeys(fixed, 0)
        self._again: dict[Env, deque[tuple[Start, int]]] = {}

    def next(self, env: Env) -> tuple[Start, int]:
        """The next start and how many times it has failed before."""
        again = self._again.get(self._queue(env))
        if again:
            return again.popleft()
        if not self._rank:
            return self._sequence.draw(), 0
        index = self._taken[env] * len(self._rank) + self._rank[env]
        while self._count <= index:
            self._draw()
        self._taken[env] += 1
        return self._drawn.pop(index), 0

    def _draw(self) -> None:
        """Draw the next start, and keep it if its env has not had it (before a resume)."""
        start, (turn, rank) = self._sequence.draw(), divmod(self._count, len(self._fixed))
        if turn >= self._taken[self._fixed[rank]]:
            self._drawn[self._count] = start
        self._count += 1

    def again(self, env: Env, start: Start, attempts: int) -> None:
        """Hand out ``start`` once more, before any new one."""
        self._again.setdefault(self._queue(env), deque()).append((start, attempts))

    def _queue(self, env: Env) -> Env:
        return env if self._rank else Env(-1)

    def snapshot(self, unfinished: list[tuple[Env, Start]]) -> dict[str, Any]:
        """JSON-ready state; ``unfinished`` starts are handed out again after a resume."""
        again = [(env, s, a) for env, queue in self._again.items() for s, a in queue]
        again += [(self._queue(env), s, 0) for env, s in unfinished]
        return {
            "counts": [] if self._rank else list(self._sequence.counts),
            "taken": [[env, taken] for env, taken in self._taken.items()],
            "again": [[env, s.task, s.split, s.state, a] for env, s, a in again],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot.

        Raises:
            ValueError: the snapshot has another number of tasks, or other envs with a fixed quota.
        """
        tasks = len(self._sequence.counts)
        if not self._rank and len(state["counts"]) != tasks:
            raise ValueError(f"{len(state['counts'])} tasks in the checkpoint, {tasks} configured")
        if [env for env, _ in state["taken"]] != list(self._taken):
            envs = len(state["taken"])
            raise ValueError(f"{envs} envs with a quota in the checkpoint, {len(self._taken)} configured")
        if not self._rank:
            self._sequence.counts = list(state["counts"])
        self._taken = {Env(env): taken for env, taken in state["taken"]}
        self._again = {}
        for env, task, split, index, attempts in state["again"]:
            self.again(Env(env), Start(task=task, split=split, state=index), attempts)
