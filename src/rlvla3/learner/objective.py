"""The loss of some chunks, and what its figures tell."""

from __future__ import annotations

from dataclasses import replace
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
        inputs = self._evaluated(piece)
        if given is not None:
            inputs = replace(inputs, advantage=normalise(inputs.advantage, given))
        return self._weighted(piece, inputs, value_only=value_only)

    def by_advantage(
        self, piece: Samples, centre: float, *, value_only: bool
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Figures]:
        """Three losses from one evaluation: with advantages less ``centre``, with 1 and with 0.

        Where the loss is linear in the advantage, their gradients g, g_1, g_0 give that of normalised
        advantages, (A − m)/s, whatever m and s turn out to be: g_0 + (g − g_0)/s − m/s·(g_1 − g_0).
        """
        inputs = self._evaluated(piece)
        inputs = replace(inputs, advantage=inputs.advantage - centre)
        own, figures = self._weighted(piece, inputs, value_only=value_only)
        ones, zeros = torch.ones_like(inputs.advantage), torch.zeros_like(inputs.advantage)
        one, _ = self._weighted(piece, replace(inputs, advantage=ones), value_only=value_only)
        zero, _ = self._weighted(piece, replace(inputs, advantage=zeros), value_only=value_only)
        return (own, one, zero), figures

    def of_values(self, piece: Samples) -> tuple[Tensor, Figures]:
        """Sum of the chunks' weighted value losses, with gradient, and figures of each chunk [B]."""
        value = self._model.value(piece.prefix, piece.observation)
        behaviour = torch.from_numpy(piece.record["log_prob"]).to(value.device)
        inputs = self._inputs(piece, behaviour, value, torch.zeros_like(value))
        return self._weighted(piece, inputs, value_only=True)

    def _evaluated(self, piece: Samples) -> LossInputs:
        found = self._model.evaluate(piece.prefix, piece.observation, piece.record)
        return self._inputs(piece, found.log_prob, found.value, found.entropy)

    @staticmethod
    def _inputs(piece: Samples, log_prob: Tensor, value: Tensor, entropy: Tensor) -> LossInputs:
        """Everything with the precision of the policy's numbers, float32 at least."""
        wide = torch.promote_types(value.dtype, torch.float32)

        def given(array: Any) -> Tensor:
            return torch.as_tensor(array).to(value.device, wide)

        return LossInputs(
            log_prob=log_prob.to(wide),
            behaviour_log_prob=given(piece.record["log_prob"]),
            proximal_log_prob=given(piece.proximal),
            reference_log_prob=given(piece.reference),
            mask=torch.from_numpy(piece.mask()).to(value.device),
            value=value.to(wide),
            behaviour_value=given(piece.value),
            entropy=entropy.to(wide),
            advantage=given(piece.advantage),
            returns=given(piece.returns),
        )

    def _weighted(self, piece: Samples, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, Figures]:
        loss, figures = self._algorithm.loss(inputs, value_only=value_only)
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
