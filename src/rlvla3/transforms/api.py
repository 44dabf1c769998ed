"""What a transform is: an invertible pair of functions of one array."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import numpy.typing as npt

Array = npt.NDArray[Any]
"""Leading dimensions are free: [..., n] of numbers, [..., H, W, 3] of pixels."""


class Step(Protocol):
    """One transform. ``invert`` undoes ``apply`` exactly (to rounding), or the class says what is lost."""

    def apply(self, values: Array) -> Array:
        """Transform; never changes ``values``; floats keep their precision unless the class says so."""
        ...

    def invert(self, values: Array) -> Array:
        """Undo ``apply``."""
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps applied one after the other; inverted from the last to the first. Without steps: identity."""

    steps: tuple[Step, ...] = ()

    def apply(self, values: Array) -> Array:
        """All steps in their order."""
        for step in self.steps:
            values = step.apply(values)
        return values

    def invert(self, values: Array) -> Array:
        """All steps undone, the last one first."""
        for step in reversed(self.steps):
            values = step.invert(values)
        return values


@dataclass(frozen=True, slots=True)
class Inverse:
    """A step the other way round."""

    step: Step

    def apply(self, values: Array) -> Array:
        """What the step undoes."""
        return self.step.invert(values)

    def invert(self, values: Array) -> Array:
        """What the step does."""
        return self.step.apply(values)


def check_declared(what: str, faults: Iterable[str]) -> None:
    """Refuse a declaration that cannot be meant, when it is built.

    Raises:
        ValueError: one line with everything that is wrong with it; ``what`` names it.
    """
    if found := "; ".join(faults):
        raise ValueError(f"{what}: {found}")


def choice_faults(what: str, value: object, choices: Any) -> Iterator[str]:
    """A line if a value is none of a Literal's."""
    known = get_args(choices)
    if value not in known:
        yield f"{what} must be {', '.join(map(repr, known))}, it is {value!r}"


def factor_faults(what: str, value: float) -> Iterator[str]:
    """A line if nothing can be divided by a factor."""
    if value == 0 or not math.isfinite(value):
        yield f"{what} must be a finite number other than 0, it is {value:g}"


def finite_faults(what: str, *values: float) -> Iterator[str]:
    """A line if a number is none that arrays can be filled with."""
    if not all(map(math.isfinite, values)):
        yield f"{what} must be finite, it is {', '.join(f'{value:g}' for value in values)}"


def ends_faults(one: str, ends: tuple[float, ...], other: str, opposite: tuple[float, ...]) -> Iterator[str]:
    """A line if the numbers of two ends do not say how far between them something is."""
    if not ends or len(ends) != len(opposite) or any(a == b for a, b in zip(ends, opposite, strict=False)):
        yield f"{one} {ends} and {other} {opposite} must be equally many numbers that differ"


def check_last(values: Array, size: int, what: str) -> None:
    """Refuse an array whose last dimension is not ``size``.

    Raises:
        ValueError: with the shape that was expected and the one that came.
    """
    if values.ndim < 1 or values.shape[-1] != size:
        raise ValueError(f"{what} must be [..., {size}], is {list(values.shape)}")


def check_pixels(values: Array, height: int, width: int, what: str) -> None:
    """Refuse an array that is not [..., height, width, 3].

    Raises:
        ValueError: with the shape that was expected and the one that came.
    """
    if values.ndim < 3 or values.shape[-3:] != (height, width, 3):
        raise ValueError(f"{what} must be [..., {height}, {width}, 3], is {list(values.shape)}")
