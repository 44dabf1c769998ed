"""The laws by which tasks take turns. Each is a sequence of tasks that depends on nothing but its
settings, what it was told of trained episodes, and how often it was asked.
"""

import hashlib
from bisect import bisect_right
from itertools import accumulate
from typing import Any, Protocol

from rlvla3.core.settings import TaskSettings

_RATE = 0.05
"""How far a trained episode moves its task's estimate of success: about the last 20 count."""
_PRIOR = 0.5
"""Estimate of success before the first episode: the one that gives a task the largest share."""


class Law(Protocol):
    """Which task comes next."""

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each task among the starts to come, as things are; they sum to 1."""
        ...

    def draw(self) -> int:
        """The task of the next start."""
        ...

    def learn(self, outcomes: dict[int, tuple[int, int]]) -> None:
        """An update is done: (episodes, successes) of each task that it trained."""
        ...

    def snapshot(self) -> dict[str, Any]:
        """JSON-ready state."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot of the same law over equally many tasks."""
        ...


class Balances:
    """Turns by share: each draw adds the shares, the largest balance goes and pays 1.

    Balances sum to 0 after each draw and never fall to -1, so a task whose share grows has less than one
    start to pay back first. Equal balances: the lowest task first. Between two changes of the shares a
    balance is computed from the number of draws, not summed up, so that no rounding decides whose turn it is.
    """

    def __init__(self, shares: tuple[float, ...]) -> None:
        self.shares = shares
        self._before = [0.0] * len(shares)
        """Balances when the shares last changed."""
        self._counts = [0] * len(shares)
        """Turns of each task since then."""

    def draw(self) -> int:
        """Whose turn it is."""
        draws = sum(self._counts) + 1
        rows = zip(self._before, self.shares, self._counts, strict=True)
        balances = [before + share * draws - count for before, share, count in rows]
        task = balances.index(max(balances))
        self._counts[task] += 1
        return task

    def change(self, shares: tuple[float, ...]) -> None:
        """Other shares hold from now on."""
        draws = sum(self._counts)
        for task, share in enumerate(self.shares):
            self._before[task] += share * draws - self._counts[task]
        self.shares, self._counts = shares, [0] * len(shares)

    def snapshot(self) -> dict[str, Any]:
        """JSON-ready state."""
        return {"shares": list(self.shares), "before": list(self._before), "counts": list(self._counts)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot; shares that were configured anew hold from here on."""
        configured, self.shares = self.shares, tuple(state["shares"])
        self._before, self._counts = list(state["before"]), list(state["counts"])
        if configured != self.shares:
            self.change(configured)


class RoundRobin:
    """Each task as close to its share as whole numbers allow."""

    def __init__(self, settings: TaskSettings) -> None:
        self.shares = _normalised(settings.weights)
        self._balances = Balances(self.shares)

    def draw(self) -> int:
        """The task with the largest balance."""
        return self._balances.draw()

    def learn(self, outcomes: dict[int, tuple[int, int]]) -> None:
        """Shares are fixed."""

    def snapshot(self) -> dict[str, Any]:
        """The balances."""
        return self._balances.snapshot()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._balances.restore(state)


class Uniform:
    """At random with probability by weight; draw number i is a function of the seed and i alone."""

    def __init__(self, settings: TaskSettings) -> None:
        self.shares = _normalised(settings.weights)
        self._sums = tuple(accumulate(self.shares))
        self._last = max(task for task, share in enumerate(self.shares) if share)
        self._seed = settings.seed
        self._index = 0

    def draw(self) -> int:
        """The task whose part of [0, 1) a number drawn from it falls into."""
        key = f"{self._seed}:{self._index}".encode()
        self._index += 1
        digest = hashlib.blake2b(key, digest_size=8, person=b"rlvla3.tasks").digest()
        # Rounding may leave the last sum below 1; a task without weight is never the answer.
        return min(bisect_right(self._sums, int.from_bytes(digest, "big") / 2**64), self._last)

    def learn(self, outcomes: dict[int, tuple[int, int]]) -> None:
        """Shares are fixed."""

    def snapshot(self) -> dict[str, Any]:
        """The number of the next draw."""
        return {"index": self._index}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._index = state["index"]


class Listed:
    """The tasks of a list in its order, again and again."""

    def __init__(self, settings: TaskSettings) -> None:
        self._order = settings.order
        tasks = range(len(settings.weights))
        self.shares = tuple(self._order.count(task) / len(self._order) for task in tasks)
        self._index = 0

    def draw(self) -> int:
        """The next of the list."""
        task = self._order[self._index % len(self._order)]
        self._index += 1
        return task

    def learn(self, outcomes: dict[int, tuple[int, int]]) -> None:
        """Shares are fixed."""

    def snapshot(self) -> dict[str, Any]:
        """The number of the next draw."""
        return {"index": self._index}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._index = state["index"]


class SuccessWeighted:
    """More of the tasks that succeed now and then: share ∝ weight · max(4 p (1 - p), floor).

    p is a task's running success. 4 p (1 - p) is the variance of an outcome, 1 at most. A task that is solved
    or hopeless keeps the floor, so that its estimate goes on being measured.
    """

    def __init__(self, settings: TaskSettings) -> None:
        self._weights, self._floor = settings.weights, settings.floor
        self._success = [_PRIOR] * len(settings.weights)
        self._balances = Balances(self._shares())

    @property
    def shares(self) -> tuple[float, ...]:
        """By weight and estimate."""
        return self._balances.shares

    def _shares(self) -> tuple[float, ...]:
        chance = [max(4 * p * (1 - p), self._floor) for p in self._success]
        return _normalised(tuple(w * c for w, c in zip(self._weights, chance, strict=True)))

    def draw(self) -> int:
        """The task with the largest balance."""
        return self._balances.draw()

    def learn(self, outcomes: dict[int, tuple[int, int]]) -> None:
        """Move the estimates, by all episodes of the update at once: their order does not matter."""
        for task, (episodes, successes) in outcomes.items():
            weight = 1 - (1 - _RATE) ** episodes
            self._success[task] += weight * (successes / episodes - self._success[task])
        self._balances.change(self._shares())

    def snapshot(self) -> dict[str, Any]:
        """The balances and the estimates."""
        return {"balances": self._balances.snapshot(), "success": list(self._success)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._success = list(state["success"])
        self._balances.shares = self._shares()
        self._balances.restore(state["balances"])


LAWS: dict[str, type[RoundRobin | Uniform | Listed | SuccessWeighted]] = {
    "round_robin": RoundRobin,
    "uniform": Uniform,
    "success_weighted": SuccessWeighted,
    "list": Listed,
}


def law(settings: TaskSettings) -> Law:
    """The configured law."""
    return LAWS[settings.sampling](settings)


def _normalised(weights: tuple[float, ...]) -> tuple[float, ...]:
    total = sum(weights)
    return tuple(weight / total for weight in weights)
