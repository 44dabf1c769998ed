"""Normalisation by statistics that travel with a policy's weights."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from rlvla3.errors import UserError
from rlvla3.transforms.api import Array, check_last

Mode = Literal["mean_std", "quantile", "min_max"]
_NAMES: Mapping[Mode, tuple[str, str]] = {
    "mean_std": ("mean", "std"),
    "quantile": ("q01", "q99"),
    "min_max": ("min", "max"),
}
_TINY = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Two numbers of each dimension of a state or an action.

    ``mean_std``: mean → 0, one deviation → 1. ``quantile`` and ``min_max``: the lower number → −1, the
    upper one → 1.
    """

    mode: Mode
    first: tuple[float, ...]
    """Mean, 1 % quantile or least value."""
    second: tuple[float, ...]
    """Standard deviation, 99 % quantile or greatest value."""
    mask: tuple[bool, ...] = ()
    """Which dimensions are normalised, the others are left alone; empty: all."""
    epsilon: float = 0.0
    """Added to the deviation or the range, as the authors of a checkpoint did."""

    def __post_init__(self) -> None:
        sizes = {len(self.first), len(self.second), len(self.mask) or len(self.first)}
        if len(sizes) > 1:
            raise UserError(
                f"statistics of mode {self.mode} need equally many numbers everywhere, they have "
                f"{len(self.first)} and {len(self.second)} and a mask of {len(self.mask)}; take all from one "
                "file"
            )
        if not np.isfinite([*self.first, *self.second]).all():
            raise UserError(f"statistics of mode {self.mode} must be finite; compute them again")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.mode not in get_args(Mode):
            raise UserError(
                f"there is no mode of statistics {self.mode!r}; modes are {', '.join(get_args(Mode))}"
            )
        if not 0 <= self.epsilon < float("inf"):
            raise UserError(f"epsilon of statistics must be 0 or more, it is {self.epsilon:g}")
        lower = (0.0,) * self.size if self.mode == "mean_std" else self.first
        wrong = [i for i, (low, high) in enumerate(zip(lower, self.second, strict=True)) if high < low]
        if wrong:
            names = (
                "std is below 0" if self.mode == "mean_std" else "{1} is below {0}".format(*_NAMES[self.mode])
            )
            raise UserError(
                f"statistics of mode {self.mode}: {names} in dimensions {wrong}; take the numbers of one file"
            )

    @property
    def size(self) -> int:
        """How many dimensions they are of."""
        return len(self.first)

    def digest(self) -> str:
        """A short hash of all that matters; equal where normalisation is equal."""
        content = hashlib.sha256(f"{self.mode} {self.epsilon!r} {self.mask}".encode())
        for numbers in (self.first, self.second):
            content.update(np.asarray(numbers, np.float64).tobytes())
        return content.hexdigest()[:16]

    def shift_and_scale(self) -> tuple[Array, Array]:
        """x → (x − shift) / scale, each [size] float64. A dimension that never varies has scale ``epsilon``,
        or 1 without one, and warns."""
        first, second = np.asarray(self.first, np.float64), np.asarray(self.second, np.float64)
        centred = self.mode == "mean_std"
        span = second if centred else (second - first) / 2
        constant = np.abs(span) < _TINY
        scale = span + self.epsilon / (1 if centred else 2)
        scale = np.where(scale == 0, 1.0, scale)
        shift = first if centred else np.where(constant & (self.epsilon == 0), first, first + scale)
        used = np.asarray(self.mask or (True,) * self.size)
        if (constant & used).any():
            named = np.flatnonzero(constant & used)
            warnings.warn(
                f"statistics: dimensions {named.tolist()} never vary; their scale is {scale[named[0]]:g}",
                stacklevel=2,
            )
        return np.where(used, shift, 0.0), np.where(used, scale, 1.0)


def read_statistics(found: Mapping[str, Any], mode: Mode, where: str, epsilon: float = 0.0) -> Statistics:
    """The statistics of one vector from the content of a JSON file.

    Args:
        found: lists by name: ``mean`` and ``std``, ``q01`` and ``q99``, or ``min`` and ``max``; maybe
            ``mask``.
        mode: which of them.
        where: the file and the place in it, for messages.
        epsilon: see ``Statistics``.

    Raises:
        UserError: no such mode, or the numbers that it needs are not there.
    """
    if mode not in get_args(Mode):
        raise UserError(f"{where}: there is no mode {mode!r}; modes are {', '.join(get_args(Mode))}")
    names = _NAMES[mode]
    if missing := [name for name in names if name not in found]:
        raise UserError(
            f"{where}: mode {mode} needs {' and '.join(missing)}; there are {', '.join(found) or 'none'}; "
            "choose the mode that the weights were trained with"
        )
    first, second = (tuple(float(number) for number in found[name]) for name in names)
    mask = tuple(bool(used) for used in found.get("mask", ()))
    return Statistics(mode=mode, first=first, second=second, mask=mask, epsilon=epsilon)


def choose(found: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """The statistics of one data set of several.

    Raises:
        UserError: there is none of that name, with those there are.
    """
    if key not in found:
        raise UserError(f"{where}: there are no statistics {key!r}; there are {', '.join(found) or 'none'}")
    chosen: Mapping[str, Any] = found[key]
    return chosen


class Normalise:
    """Raw numbers [..., n] → normalised ones. Exact both ways, for numbers of any size."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self._shift, self._scale = statistics.shift_and_scale()

    def apply(self, values: Array) -> Array:
        """(x − shift) / scale."""
        check_last(values, self.statistics.size, "numbers to normalise")
        normal: Array = (values - self._shift.astype(values.dtype)) / self._scale.astype(values.dtype)
        return normal

    def invert(self, values: Array) -> Array:
        """x · scale + shift."""
        check_last(values, self.statistics.size, "normalised numbers")
        raw: Array = values * self._scale.astype(values.dtype) + self._shift.astype(values.dtype)
        return raw
