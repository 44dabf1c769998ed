"""What a transform is: an invertible pair of functions of one array."""

from dataclasses import dataclass
from typing import Any, Protocol

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
