"""The first pass of an update while its trajectories still arrive: gradients of sums, divided at the end.

Exact, in whatever micro-batches the chunks come, because nothing in the sum depends on what is still
missing: advantages are not normalised, or by statistics of earlier updates, or (``own_statistics``) the
loss is linear in them, and three gradients are kept apart until the update's own statistics are known.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlvla3.algorithms.normalise import EPSILON, Statistics
from rlvla3.learner.metrics import Means
from rlvla3.learner.objective import tell
from rlvla3.learner.parts import Parts
from rlvla3.learner.samples import Samples
from rlvla3.learner.sharding import synchronise_gradients

_EQUAL = 1e-6
"""Advantages whose deviation is this part of their mean, or less, differ by rounding only."""


class FirstPass:
    """Gradients of an update that is still filling."""

    def __init__(
        self,
        parts: Parts,
        *,
        version: int,
        given: Statistics | None,
        own_statistics: bool,
        centre: float,
        value_only: bool,
    ) -> None:
        """Begin one; ``given``, ``own_statistics``: what normalises the advantages, if anything does.
        ``centre``: about where the update's own mean will be, so that little is lost by taking it off later.
        """
        self._model, self._objective, self._optimiser = parts.model, parts.objective, parts.optimiser
        self._ranks, self._settings = parts.ranks, parts.settings
        self._version, self.given, self._own, self._value_only = version, given, own_statistics, value_only
        self._centre = centre
        self._means = Means()
        self._weight = 0.0
        self._finite = True
        self._ones: dict[str, Tensor] = {}
        """Gradients with every advantage 1."""
        self._zeros: dict[str, Tensor] = {}
        """Gradients with every advantage 0."""
        self._blank: Samples | None = None

    def add(self, part: Samples, blank: Samples) -> None:
        """Add the gradient of the chunks' summed loss. Ranks that share weights make equally many passes."""
        self._blank = blank
        size = self._settings.forward_batch or self._settings.minibatch
        pieces = list(part.pieces(part.in_order(), size))
        if self._ranks.sharded:
            pieces += [blank] * (self._ranks.highest(len(pieces)) - len(pieces))
        synchronise_gradients(self._model, False)
        for piece in pieces:
            self._add(piece)
            if piece is not blank:
                self._weight += float(piece.weight.sum())

    def _add(self, piece: Samples) -> None:
        if self._own:
            (loss, one, zero), figures = self._objective.by_advantage(
                piece, self._centre, value_only=self._value_only
            )
            for other, gradients in ((one, self._ones), (zero, self._zeros)):
                with self._optimiser.accumulating(gradients):
                    torch.autograd.backward(other, retain_graph=True)
        else:
            loss, figures = self._objective.of(piece, self.given, value_only=self._value_only)
        torch.autograd.backward(loss)
        self._finite &= bool(torch.isfinite(loss))
        if piece is not self._blank:
            tell(self._means, figures, piece, self._version)

    def finish(self, own: Statistics) -> tuple[bool, Means]:
        """Make the gradients those of the update's mean loss; whether all losses were finite, and their
        figures (of this rank).

        Args:
            own: advantage statistics of the update.
        """
        if self._ranks.sharded:
            # Gradients were only added up so far; a pass that adds nothing sums them over the ranks.
            assert self._blank is not None
            synchronise_gradients(self._model, True)
            loss, _ = self._objective.of(self._blank, self.given, value_only=self._value_only)
            torch.autograd.backward(loss)
        if self._own:
            self._normalise(own)
        (weight,) = self._ranks.sum([self._weight])
        self._optimiser.scale_gradients(1.0 / float(weight))
        return self._finite, self._means

    def _normalise(self, own: Statistics) -> None:
        mean, std = own.mean - self._centre, own.std + EPSILON
        # Equal advantages: what is left of their differences is rounding, which must not be blown up.
        equal = own.std <= _EQUAL * max(abs(own.mean), abs(self._centre))
        for name, gradient in self._optimiser.gradients().items():
            zero, one = self._zeros[name], self._ones[name]
            if equal:
                gradient.copy_(zero)
            else:
                gradient.sub_(zero).sub_(one - zero, alpha=mean).div_(std).add_(zero)
