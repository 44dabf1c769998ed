"""What the Trainer computes anew of a trajectory: prefixes, log-probs under other policies, values.

One trajectory at a time, in passes of at most ``forward_batch`` chunks. Where ranks share the weights,
each pass gathers them from all ranks, so that every rank must make equally many: one that has
fewer trajectories computes on a blank chunk and forgets the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlvla3.learner.api import Slab
from rlvla3.learner.optimiser import Optimiser
from rlvla3.learner.ranks import Ranks
from rlvla3.policies.api import PREFIX

_A = TypeVar("_A")
_B = TypeVar("_B")
Fields = dict[str, npt.NDArray[Any]]
Prefix = tuple[Tensor, ...]
Inputs = tuple[Prefix, Fields, Fields]
"""Prefix, observation and record of some chunks."""


class Recomputing:
    """Everything about trajectories that comes from the model and not from the slab."""

    def __init__(
        self,
        model: Any,
        optimiser: Optimiser,
        ranks: Ranks,
        *,
        proximal: bool,
        reference: Mapping[str, Tensor],
        values: bool,
        final_values: bool,
        forward_batch: int,
    ) -> None:
        """Say what is wanted.

        Args:
            model: the policy's network.
            optimiser: exchanges its weights.
            ranks: who else computes.
            proximal: whether log-probs under the present policy are.
            reference: parts of the trained weights that the run started from; empty: nobody needs them.
            values: whether V of every observation is.
            final_values: whether V of the last observation is.
            forward_batch: chunks of one pass; 0: all of a trajectory.
        """
        self._model, self._optimiser, self._ranks = model, optimiser, ranks
        self._proximal, self.reference_parts = proximal, reference
        self._values, self._final_values = values, final_values
        self._forward_batch = forward_batch
        self._stored: Fields = {}
        """The prefix of a blank chunk, where rollouts store prefixes."""

    def blank(self, slab: Slab) -> Inputs:
        """One chunk of zeros, as the slab would hold it; its prefix is added where ranks compute on it."""
        observation = {
            name.removeprefix("observation."): np.zeros((1, *array.shape[2:]), array.dtype)
            for name, array in slab.items()
            if name.startswith("observation.")
        }
        record = {
            name.removeprefix("record."): np.zeros((1, *array.shape[2:]), array.dtype)
            for name, array in slab.items()
            if name.startswith("record.")
        }
        prefix = self._prefix(observation, record) if self._ranks.sharded else ()
        stored = {PREFIX: record.pop(PREFIX)} if PREFIX in record else {}
        self._stored = stored
        return prefix, observation, record

    def prefixes(self, chunks: Sequence[tuple[Fields, Fields]], blank: Inputs) -> list[Prefix]:
        """What no trained weight touches, of each trajectory."""
        # A stored prefix saves passes, which a blank must then save too.
        nothing = (blank[1], blank[2] | self._stored)
        return self._each(list(chunks), lambda pair: self._prefix(*pair), nothing)

    def proximal(
        self, inputs: Sequence[Inputs], stale: Sequence[bool], blank: Inputs
    ) -> list[npt.NDArray[np.float32]]:
        """Log-probs under the present policy, of trajectories that an earlier one acted (at least in part);
        of others, and where nobody needs them, the record's own."""
        if not self._proximal:
            return [record["log_prob"] for _, _, record in inputs]
        if self._ranks.sharded:
            return self._each(inputs, self._log_prob, blank)
        return [
            self._log_prob(given) if old else given[2]["log_prob"]
            for given, old in zip(inputs, stale, strict=True)
        ]

    def reference(self, inputs: Sequence[Inputs], blank: Inputs) -> list[npt.NDArray[np.float32]]:
        """Log-probs under the policy that the run started from, or the record's own."""
        if not self.reference_parts:
            return [record["log_prob"] for _, _, record in inputs]
        with self._optimiser.exchanged(self.reference_parts):
            return self._each(inputs, self._log_prob, blank)

    def values(self, inputs: Sequence[Inputs], blank: Inputs) -> list[npt.NDArray[np.float32]]:
        """V of every chunk's observation: under the present weights, or the record's."""
        if not self._values:
            return [np.asarray(record["value"], np.float32) for _, _, record in inputs]
        return self._each(inputs, self._value, blank)

    def final_values(self, observations: Sequence[Fields], blank: Inputs) -> list[float | None]:
        """V of the observation after the last chunk under the present weights; None: the rollout's counts."""
        if not self._final_values:
            return [None] * len(observations)
        record = blank[2]
        return self._each(
            list(observations),
            lambda o: float(self._value((self._prefix(o, record), o, record))[0]),
            blank[1],
        )

    def log_prob(self, given: Inputs) -> npt.NDArray[np.float32]:
        """Log-probs under the present weights, of the record's shape."""
        return self._log_prob(given)

    def _each(self, inputs: Sequence[_A], compute: Callable[[_A], _B], blank: _A) -> list[_B]:
        # Asked before anything is computed: ranks must meet in the same order.
        most = self._ranks.highest(len(inputs)) if self._ranks.sharded else len(inputs)
        found = [compute(given) for given in inputs]
        for _ in range(most - len(inputs)):
            compute(blank)
        return found

    def _prefix(self, observation: Fields, record: Fields) -> Prefix:
        prefix = self._model.prefix(observation, record)
        return prefix if isinstance(prefix, tuple) else (prefix,)

    @torch.no_grad()
    def _log_prob(self, given: Inputs) -> npt.NDArray[np.float32]:
        parts = [self._model.evaluate(*piece).log_prob for piece in self._pieces(given)]
        return torch.cat(parts).float().cpu().numpy()

    @torch.no_grad()
    def _value(self, given: Inputs) -> npt.NDArray[np.float32]:
        parts = [self._model.value(*piece[:2]) for piece in self._pieces(given)]
        return torch.cat(parts).float().cpu().numpy()

    def _pieces(self, given: Inputs) -> list[Inputs]:
        """Cut where a pass would be too large; never where ranks must make equally many passes."""
        prefix, observation, record = given
        size, count = self._forward_batch, len(observation["task"])
        if not size or count <= size or self._ranks.sharded:
            return [given]
        return [
            (
                tuple(tensor[first : first + size] for tensor in prefix),
                {name: array[first : first + size] for name, array in observation.items()},
                {name: array[first : first + size] for name, array in record.items()},
            )
            for first in range(0, count, size)
        ]
