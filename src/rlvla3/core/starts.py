"""Which task and initial state the next episode gets.

The start belongs to the start index, not to the env that happens to be free, so tasks whose
episodes are short are not started more often than configured.
"""

from collections import deque
from typing import Any

from rlvla3.messages import Start


class Starts:
    """The sequence of training starts; a failed one is handed out again."""

    def __init__(self, weights: tuple[float, ...], states: int) -> None:
        total = sum(weights)
        self._shares = tuple(weight / total for weight in weights)
        self._states = states
        self._counts = [0] * len(weights)
        self._again: deque[tuple[Start, int]] = deque()

    def next(self) -> tuple[Start, int]:
        """The next start and how many times it has failed before."""
        if self._again:
            return self._again.popleft()
        index = sum(self._counts) + 1
        task = max(range(len(self._shares)), key=lambda t: (self._shares[t] * index - self._counts[t], -t))
        state = self._counts[task]
        self._counts[task] += 1
        if self._states:
            state %= self._states
        return Start(task=task, split="train", state=state), 0

    def again(self, start: Start, attempts: int) -> None:
        """Hand out ``start`` once more, before any new one."""
        self._again.append((start, attempts))

    def snapshot(self, unfinished: list[Start]) -> dict[str, Any]:
        """JSON-ready state; ``unfinished`` starts are handed out again after a resume."""
        again = [(s, a) for s, a in self._again] + [(s, 0) for s in unfinished]
        return {
            "counts": list(self._counts),
            "again": [[s.task, s.split, s.state, a] for s, a in again],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot.

        Raises:
            ValueError: the snapshot has another number of tasks.
        """
        if len(state["counts"]) != len(self._counts):
            tasks = len(state["counts"])
            raise ValueError(f"{tasks} tasks in the checkpoint, {len(self._counts)} configured")
        self._counts = list(state["counts"])
        self._again = deque(
            (Start(task=task, split=split, state=index), attempts)
            for task, split, index, attempts in state["again"]
        )
