"""States and actions as vectors: put parts where they belong, pad, clip, cut a horizon."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlvla3.transforms.api import Array, Step, check_declared, check_last, factor_faults


@dataclass(frozen=True, slots=True)
class Rescale:
    """Numbers in another unit: times ``factor``, which is not 0."""

    factor: float

    def __post_init__(self) -> None:
        check_declared("rescaling", factor_faults("factor", self.factor))

    def apply(self, values: Array) -> Array:
        """Times the factor."""
        return np.multiply(values, self.factor, dtype=values.dtype)

    def invert(self, values: Array) -> Array:
        """Over the factor."""
        return np.divide(values, self.factor, dtype=values.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of a vector, and where what a step makes of it goes in another vector."""

    source: slice
    target: slice
    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A vector [..., n] made into another one [..., m], run by run.

    Lost: what no block reads. ``invert`` puts what it is at rest there.
    """

    blocks: tuple[Block, ...]
    source_rest: tuple[float, ...]
    """[n]: what ``invert`` gives where no block reads."""
    target_rest: tuple[float, ...]
    """[m]: what ``apply`` gives where no block writes."""

    def __post_init__(self) -> None:
        sources, targets = [b.source for b in self.blocks], [b.target for b in self.blocks]
        check_declared("source of blocks", _run_faults(sources, len(self.source_rest)))
        check_declared("target of blocks", _run_faults(targets, len(self.target_rest)))

    def apply(self, values: Array) -> Array:
        """[..., n] → [..., m]."""
        check_last(values, len(self.source_rest), "a vector")
        made = _filled(values, self.target_rest)
        for block in self.blocks:
            made[..., block.target] = block.step.apply(values[..., block.source])
        return made

    def invert(self, values: Array) -> Array:
        """[..., m] → [..., n]."""
        check_last(values, len(self.target_rest), "a vector")
        made = _filled(values, self.source_rest)
        for block in self.blocks:
            made[..., block.source] = block.step.invert(values[..., block.target])
        return made


def _run_faults(runs: Sequence[slice], size: int) -> Iterator[str]:
    """A line if runs of a vector of ``size`` numbers lie outside it, or over one another."""
    bounds = sorted((run.start, run.stop) for run in runs)
    ends = [0, *(stop for _, stop in bounds)]
    if any(not end <= start < stop <= size for end, (start, stop) in zip(ends, bounds, strict=False)):
        yield f"runs must lie within {size} numbers and not over one another, they are {bounds}"


def _filled(values: Array, rest: tuple[float, ...]) -> Array:
    made = np.empty((*values.shape[:-1], len(rest)), values.dtype)
    made[:] = rest
    return made


@dataclass(frozen=True, slots=True)
class Pad:
    """[..., size] → [..., width] with zeros at the end. ``invert`` cuts them off, whatever they hold."""

    size: int
    width: int

    def __post_init__(self) -> None:
        if not 0 <= self.size <= self.width:
            raise ValueError(f"{self.size} numbers do not fit into a width of {self.width}")

    @property
    def mask(self) -> Array:
        """[width] of bool: which numbers are real."""
        return np.arange(self.width) < self.size

    def apply(self, values: Array) -> Array:
        """Add zeros."""
        check_last(values, self.size, "a vector before padding")
        padded = np.zeros((*values.shape[:-1], self.width), values.dtype)
        padded[..., : self.size] = values
        return padded

    def invert(self, values: Array) -> Array:
        """Cut them off."""
        check_last(values, self.width, "a padded vector")
        return values[..., : self.size]


@dataclass(frozen=True, slots=True)
class Clip:
    """Numbers held within [low, high]. Lost: how far they were outside; ``invert`` changes nothing."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, they are {self.low:g} and {self.high:g}")

    def apply(self, values: Array) -> Array:
        """Hold within the bounds."""
        return np.clip(values, self.low, self.high)

    def invert(self, values: Array) -> Array:
        """The numbers as they are."""
        return values


@dataclass(frozen=True, slots=True)
class Executed:
    """The first ``chunk`` of ``horizon`` actions [..., H, A]. Lost: the others; ``invert`` repeats the
    last one."""

    horizon: int
    chunk: int

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= self.horizon:
            raise ValueError(f"a chunk of {self.chunk} must be 1 to {self.horizon}, the policy's horizon")

    def apply(self, values: Array) -> Array:
        """[..., H, A] → [..., C, A]."""
        self._check(values, self.horizon)
        return values[..., : self.chunk, :]

    def invert(self, values: Array) -> Array:
        """[..., C, A] → [..., H, A]."""
        self._check(values, self.chunk)
        return np.concatenate([values, np.repeat(values[..., -1:, :], self.horizon - self.chunk, -2)], -2)

    def _check(self, values: Array, length: int) -> None:
        if values.ndim < 2 or values.shape[-2] != length:
            raise ValueError(f"actions must be [..., {length}, A], are {list(values.shape)}")


@dataclass(frozen=True, slots=True)
class PlusState:
    """Actions that a policy says as differences to the state at the beginning of its chunk.

    No ``Step``: both ways need the state [..., S], in the policy's own parts and units.
    """

    pairs: tuple[tuple[int, int], ...]
    """(number of the action, number of the state that is added to it)."""

    def __post_init__(self) -> None:
        actions = [action for action, _ in self.pairs]
        if len(set(actions)) < len(actions) or min((n for pair in self.pairs for n in pair), default=0) < 0:
            raise ValueError(
                f"pairs must be of 0 or more, each number of the action once, are {list(self.pairs)}"
            )

    def apply(self, values: Array, state: Array) -> Array:
        """Differences [..., H, A] → actions."""
        return values + self._offset(values, state)

    def invert(self, values: Array, state: Array) -> Array:
        """Actions [..., H, A] → differences."""
        return values - self._offset(values, state)

    def _offset(self, values: Array, state: Array) -> Array:
        if state.shape[:-1] != values.shape[:-2]:
            raise ValueError(
                f"state must be [..., S] for actions {list(values.shape)}, is {list(state.shape)}"
            )
        offset = np.zeros((*state.shape[:-1], 1, values.shape[-1]), values.dtype)
        for action, number in self.pairs:
            offset[..., 0, action] = state[..., number]
        return offset
