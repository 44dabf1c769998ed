"""The loss of some chunks, and what its figures tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvla3.algorithms.api import Algorithm, Figures, LossInputs
from rlvla3.algorithms.normalise import Statistics, normalise
from rlvla3.learner.metrics import Means
from rlvla3.learner.samples import Samples

BY_LAG = ("ratio_mean", "ratio_square", "clip_fraction")
"""Figures that are also told for each lag."""


class Objective:
    """What a policy model and an algorithm minimise."""

    def __init__(self, model: Any, algorithm: Algorithm) -> None:
        self._model, self._algorithm = model, algorithm

    def of(self, piece: Samples, given: Statistics | None, *, value_only: bool) -> tuple[Tensor, Figures]:
        """Sum of the chunks' weighted losses, with gradient, and figures of each chunk [B].

        Args:
            piece: the chunks.
            given: what normalises advantages; None: nothing does.
            value_only: hold the policy.
        """
        evaluation = self._model.evaluate(piece.prefix, piece.observation, piece.record)
        advantage = piece.advantage.to(evaluation.value.device)
        if given is not None:
            advantage = normalise(advantage, given)
        inputs = self._inputs(piece, evaluation, advantage)
        return self._weighted(piece, self._algorithm.loss(inputs, value_only=value_only))

    def by_advantage(
        self, piece: Samples, *, value_only: bool
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Figures]:
        """Three losses from one evaluation: with the chunks' own advantages, with 1 and with 0.

        Where the loss is linear in the advantage, their gradients g, g_1, g_0 give that of normalised
        advantages, (A − m)/s, whatever m and s turn out to be: g_0 + (g − g_0)/s − m/s·(g_1 − g_0).
        """
        evaluation = self._model.evaluate(piece.prefix, piece.observation, piece.record)
        own = piece.advantage.to(evaluation.value.device)
        losses, figures = [], []
        for advantage in (own, torch.ones_like(own), torch.zeros_like(own)):
            inputs = self._inputs(piece, evaluation, advantage)
            loss, found = self._weighted(piece, self._algorithm.loss(inputs, value_only=value_only))
            losses.append(loss)
            figures.append(found)
        return (losses[0], losses[1], losses[2]), figures[0]

    def of_values(self, piece: Samples) -> Tensor:
        """Sum of the chunks' weighted value losses, with gradient."""
        value = self._model.value(piece.prefix, piece.observation)
        behaviour = torch.from_numpy(piece.record["log_prob"]).to(value.device)
        zeros = torch.zeros_like(value)
        inputs = LossInputs(
            log_prob=behaviour,
            behaviour_log_prob=behaviour,
            proximal_log_prob=behaviour,
            reference_log_prob=behaviour,
            mask=torch.from_numpy(piece.mask()).to(value.device),
            value=value,
            behaviour_value=torch.from_numpy(piece.value).to(value.device),
            entropy=zeros,
            advantage=zeros,
            returns=piece.returns.to(value.device),
        )
        loss, _ = self._weighted(piece, self._algorithm.loss(inputs, value_only=True))
        return loss

    def _inputs(self, piece: Samples, evaluation: Any, advantage: Tensor) -> LossInputs:
        device = evaluation.value.device
        return LossInputs(
            log_prob=evaluation.log_prob,
            behaviour_log_prob=torch.from_numpy(piece.record["log_prob"]).to(device),
            proximal_log_prob=torch.from_numpy(piece.proximal).to(device),
            reference_log_prob=torch.from_numpy(piece.reference).to(device),
            mask=torch.from_numpy(piece.mask()).to(device),
            value=evaluation.value,
            behaviour_value=torch.from_numpy(piece.value).to(device),
            entropy=evaluation.entropy,
            advantage=advantage,
            returns=piece.returns.to(device),
        )

    @staticmethod
    def _weighted(piece: Samples, computed: tuple[Tensor, Figures]) -> tuple[Tensor, Figures]:
        loss, figures = computed
        weight = torch.from_numpy(piece.weight).to(loss.device, loss.dtype)
        return (weight * loss).sum(), figures


def tell(means: Means, figures: Figures, piece: Samples, version: int) -> None:
    """Add the figures of some chunks, those of ``BY_LAG`` for each lag as well."""
    numbers = {name: values.detach().double().cpu().numpy() for name, values in figures.items()}
    means.add_each(numbers)
    lags = version - piece.version
    for lag in np.unique(lags):
        own = lags == lag
        means.add_each({f"lag_{lag}/{name}": numbers[name][own] for name in BY_LAG if name in numbers})
