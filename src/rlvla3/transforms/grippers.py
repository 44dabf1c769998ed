"""Grippers: what open and closed are, and whether anything between them is executed."""

from dataclasses import dataclass

import numpy as np

from rlvla3.transforms.api import (
    Array,
    Chain,
    Inverse,
    Step,
    check_declared,
    check_last,
    ends_faults,
    finite_faults,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Gripper numbers [..., n] → how open each is: 0 closed, 1 open. Exact both ways."""

    open: tuple[float, ...]
    """The numbers of an open gripper."""
    closed: tuple[float, ...]
    """The numbers of a closed one; each differs from that of an open one."""

    def __post_init__(self) -> None:
        check_declared("shares", ends_faults("open", self.open, "closed", self.closed))
        check_declared("shares", finite_faults("each number", *self.open, *self.closed))

    def apply(self, values: Array) -> Array:
        """Numbers → shares."""
        check_last(values, len(self.open), "a gripper")
        zero, span = self._of(values)
        return (values - zero) / span

    def invert(self, values: Array) -> Array:
        """Shares → numbers."""
        check_last(values, len(self.open), "a gripper")
        zero, span = self._of(values)
        return values * span + zero

    def _of(self, values: Array) -> tuple[Array, Array]:
        zero = np.asarray(self.closed, values.dtype)
        return zero, np.asarray(self.open, values.dtype) - zero


@dataclass(frozen=True, slots=True)
class Fingers:
    """Shares of ``source`` fingers → of ``target`` fingers: each of them gets the mean.

    Lost: how far the fingers of one gripper differ.
    """

    source: int
    target: int

    def __post_init__(self) -> None:
        if min(self.source, self.target) < 1:
            raise ValueError(f"fingers must be 1 or more, are {self.source} and {self.target}")

    def apply(self, values: Array) -> Array:
        """[..., source] → [..., target]."""
        return _repeat(values, self.source, self.target)

    def invert(self, values: Array) -> Array:
        """[..., target] → [..., source]."""
        return _repeat(values, self.target, self.source)


def _repeat(values: Array, source: int, target: int) -> Array:
    check_last(values, source, "a gripper")
    return np.repeat(values.mean(-1, keepdims=True, dtype=values.dtype), target, -1)


@dataclass(frozen=True, slots=True)
class Binarise:
    """Shares → 1 from ``threshold`` on, else 0. Lost: everything between; ``invert`` changes nothing."""

    threshold: float

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold must be a share from 0 to 1, it is {self.threshold:g}")

    def apply(self, values: Array) -> Array:
        """Shares → 0 or 1."""
        return (values >= self.threshold).astype(values.dtype)

    def invert(self, values: Array) -> Array:
        """The share that was executed."""
        return values


def regrip(source: Shares, target: Shares, threshold: float | None) -> Step:
    """Gripper numbers of one convention → of another.

    Args:
        source: what they mean now.
        target: what they shall mean.
        threshold: share from which a gripper counts as open; None: everything between is meant.
    """
    if source == target and threshold is None:
        return Chain()
    fingers = (len(source.open), len(target.open))
    steps: list[Step] = [source]
    if fingers[0] != fingers[1]:
        steps.append(Fingers(*fingers))
    if threshold is not None:
        steps.append(Binarise(threshold))
    return Chain((*steps, Inverse(target)))
