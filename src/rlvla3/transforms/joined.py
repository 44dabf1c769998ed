"""The two transforms between a simulator and a policy, made by ``composing.compose``."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rlvla3.transforms.api import Array, Chain, Step
from rlvla3.transforms.vectors import Executed, Pad, PlusState

Observation = Mapping[str, Array]
"""Raw fields of a batch of observations [B, ...] (or of one), by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One camera of a policy."""

    role: str
    field: str
    """Observation field that is shown; empty: a black picture."""
    steps: Chain
    blank: tuple[int, int]
    """Height and width of the black picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a policy's network reads."""

    images: Mapping[str, Array]
    """By role, in the policy's order: [B, h, w, 3], float32 or bytes as it expects."""
    shown: Mapping[str, bool]
    """Whether a camera of this role is there; false: its picture is black and is to be masked."""
    state: Array
    """[B, state width] float32: normalised and padded."""
    raw_state: Array
    """[B, S] float32: the policy's parts in its units, not normalised; ``OutputTransform`` takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTransform:
    """A simulator's observations → what a policy reads."""

    views: tuple[View, ...]
    fields: tuple[str, ...]
    """Observation fields that are the simulator's state, one after the other."""
    select: Step
    """The simulator's state → the policy's parts. Invertible but for parts that the policy does not read."""
    prepare: Chain
    """The policy's parts → numbers of its network. Invertible but for what is clipped."""
    size: int
    """S: numbers of the policy's parts."""

    def apply(self, observation: Observation) -> Inputs:
        """Observations [B, ...] → inputs [B, ...]."""
        raw = self.raw_state(observation)
        return Inputs(
            images={view.role: self._image(view, observation, raw.shape[:-1]) for view in self.views},
            shown={view.role: bool(view.field) for view in self.views},
            state=self.prepare.apply(raw),
            raw_state=raw,
        )

    def raw_state(self, observation: Observation) -> Array:
        """[B, S] float32, not normalised: what statistics are computed of."""
        if not self.fields:
            shown = next((view.field for view in self.views if view.field), "")
            batch = observation[shown].shape[:-3] if shown else ()
            return self.select.apply(np.zeros((*batch, 0), np.float32))
        given = [np.asarray(observation[field], np.float32) for field in self.fields]
        return self.select.apply(np.concatenate(given, -1))

    def _image(self, view: View, observation: Observation, batch: tuple[int, ...]) -> Array:
        if view.field:
            return view.steps.apply(observation[view.field])
        return view.steps.apply(np.zeros((*batch, *view.blank, 3), np.uint8))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTransform:
    """What a policy says → actions of a simulator, and back (for demonstrations and replays)."""

    pad: Pad
    normalise: Chain
    """The policy's units → its network's numbers."""
    relative: PlusState | None
    executed: Executed
    convert: Step
    """The policy's action parts → the simulator's."""
    real: tuple[bool, ...]
    """Which of the policy's numbers reach the simulator."""

    @property
    def mask(self) -> Array:
        """[H, action width] of bool: what is executed. Nothing else belongs into a log-prob or a loss."""
        numbers = np.zeros(self.pad.width, bool)
        numbers[: self.pad.size] = self.real
        rows = np.arange(self.executed.horizon) < self.executed.chunk
        return rows[:, None] & numbers

    def apply(self, said: Array, raw_state: Array | None = None) -> Array:
        """[B, H, action width] as the network says it → [B, C, A] for the simulator, not clipped.

        ``raw_state``: ``Inputs.raw_state``; needed where the policy says differences to the state.
        """
        actions = self.normalise.invert(self.pad.invert(said))
        if self.relative is not None:
            actions = self.relative.apply(actions, self._needed(raw_state))
        return self.convert.apply(self.executed.apply(actions))

    def invert(self, actions: Array, raw_state: Array | None = None) -> Array:
        """[B, C, A] of the simulator → [B, H, action width] as the network would say it.

        Beyond C the last action is repeated; parts that the simulator has not are at rest, padding is 0.
        """
        said = self.executed.invert(self.convert.invert(actions))
        if self.relative is not None:
            said = self.relative.invert(said, self._needed(raw_state))
        return self.pad.apply(self.normalise.apply(said))

    @staticmethod
    def _needed(raw_state: Array | None) -> Array:
        if raw_state is None:
            raise ValueError("this policy says differences to the state: raw_state must be given")
        return raw_state
