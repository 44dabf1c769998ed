"""The passes of one update over its chunks: minibatches, guards, steps."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rlvla3.algorithms.normalise import Statistics
from rlvla3.learner.guards import not_finite, too_far
from rlvla3.learner.metrics import Means
from rlvla3.learner.minibatches import Chunks, Minibatch
from rlvla3.learner.objective import tell
from rlvla3.learner.parts import Parts
from rlvla3.learner.samples import Samples
from rlvla3.learner.sharding import synchronise_gradients

_LOSS = ("loss", "the loss of a minibatch")
_GRADIENT = ("gradient", "the norm of a gradient")


class Update:
    """One update under way."""

    def __init__(
        self,
        parts: Parts,
        *,
        samples: Samples,
        chunks: Chunks,
        blank: Samples,
        shuffle: tuple[int, int],
        given: Statistics | None,
        value_only: bool,
    ) -> None:
        """Prepare the passes.

        Args:
            parts: the learner's.
            samples: this rank's chunks.
            chunks: those of all ranks.
            blank: a chunk without weight, for ranks that must compute and have nothing left.
            shuffle: seed and version, which name every order.
            given: what normalises advantages.
            value_only: whether the policy is held.
        """
        self._model, self._objective, self._optimiser = parts.model, parts.objective, parts.optimiser
        self._ranks, self._settings = parts.ranks, parts.settings
        self._samples, self._chunks, self._blank = samples, chunks, blank
        self._shuffle, self._given, self._value_only = shuffle, given, value_only
        self.means = Means()
        self.value_means = Means()
        """Figures of passes of the value head alone."""
        self.steps = 0
        """Optimiser steps made."""
        self.shortened = False
        """Whether the guard ended it early."""

    @property
    def version(self) -> int:
        """The version that it starts from."""
        return self._shuffle[1]

    def epoch(self, number: int) -> None:
        """One pass over all chunks in minibatches; ``number`` names its shuffle. Ends early where the guard
        says so.

        Raises:
            SkippedError: a loss or gradient is not finite, or the first minibatch is too far off policy.
        """
        for batch in self._minibatches(number):
            means, finite = Means(), True
            self._optimiser.zero_gradients()
            for piece in self._pieces(batch):
                loss, figures = self._objective.of(piece, self._given, value_only=self._value_only)
                finite &= bool(torch.isfinite(loss))
                torch.autograd.backward(loss / batch.weight)
                if piece is not self._blank:
                    tell(means, figures, piece, self.version)
            if not self.step(means, finite=finite):
                return

    def value_pass(self, number: int) -> None:
        """One pass of the value head alone; ``number`` names its shuffle.

        Raises:
            SkippedError: a loss or gradient is not finite.
        """
        for batch in self._minibatches(number):
            finite = True
            self._optimiser.zero_gradients()
            for piece in self._pieces(batch):
                loss, figures = self._objective.of_values(piece)
                finite &= bool(torch.isfinite(loss))
                torch.autograd.backward(loss / batch.weight)
                if piece is not self._blank:
                    told = {name: figures[name] for name in ("value_loss",) if name in figures}
                    tell(self.value_means, told, piece, self.version)
            self._must_be_finite(self._ranks.sum([float(not finite)])[0] == 0, _LOSS)
            self._must_be_finite(self._optimiser.step(value_only=True) is not None, _GRADIENT)

    def step(self, means: Means, *, finite: bool) -> bool:
        """Step with the gradients at hand, unless the guard forbids it; returns whether to go on.

        Args:
            means: figures of the chunks that made the gradients, of this rank.
            finite: whether their losses were.

        Raises:
            SkippedError: as for ``epoch``.
        """
        total, count = means.sum_of("kl")
        total, count, broken = self._ranks.sum([total, count, float(not finite)])
        self._must_be_finite(not broken, _LOSS)
        limit = self._settings.target_kl
        if limit and not self._value_only and count and total / count > limit:
            if not self.steps:
                raise too_far(total / count, limit, means.over(self._ranks).values())
            self.shortened = True
            return False
        norm = self._optimiser.step(value_only=self._value_only)
        self._must_be_finite(norm is not None, _GRADIENT)
        assert norm is not None
        self.steps += 1
        self.means.merge(means)
        self.means.add({"grad_norm": norm})  # the same on every rank, and so their mean
        return True

    def _must_be_finite(self, finite: bool, what: tuple[str, str]) -> None:
        if not finite:
            raise not_finite(*what)

    def _minibatches(self, number: int) -> Iterator[Minibatch]:
        settings = self._settings
        yield from self._chunks.minibatches(
            (*self._shuffle, number), settings.minibatch, settings.forward_batch
        )

    def _pieces(self, batch: Minibatch) -> Iterator[Samples]:
        """What this rank computes of a minibatch; gradients are summed over ranks with the last pass.

        Where weights are shared all ranks make equally many passes, with blanks if need be.
        """
        size = self._settings.forward_batch or max(len(batch.mine), 1)
        pieces = list(self._samples.pieces(batch.mine, size))
        if self._ranks.sharded:
            pieces += [self._blank] * (batch.passes - len(pieces))
        for number, piece in enumerate(pieces):
            synchronise_gradients(self._model, number == len(pieces) - 1)
            yield piece
