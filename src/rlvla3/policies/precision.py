"""Forward passes in bfloat16, for any policy, with float32 where it counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.policies.api import Arrays, Evaluation, NoiseKey
from rlvla3.policies.wrapping import Wrapped


class FullLinear(nn.Linear):
    """A linear layer that computes in float32 also under autocast."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out], float32."""
        with torch.autocast(input.device.type, enabled=False):
            return F.linear(input.float(), self.weight, self.bias)


_LOWERED = (nn.Linear, nn.Conv2d, nn.Embedding)


def lower_frozen(model: Any, trained: Collection[str]) -> None:
    """Hold in bfloat16 what does not train of linear layers, convolutions and embeddings, in place. Norms and
    statistics stay as they are."""
    for prefix, module in model.named_modules():
        if not isinstance(module, _LOWERED):
            continue
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if name not in trained:
                parameter.data = parameter.data.to(torch.bfloat16)


class Autocast(Wrapped):
    """A model whose matrix products are computed in bfloat16; results, value head and weights are float32.

    Trainer and Generator wrap their models alike, so that both compute the same log-probs. A policy makes
    its transition and log-prob arithmetic of ``.float()`` tensors, which autocast leaves alone.
    """

    def __init__(self, model: Any, device: str) -> None:
        super().__init__(model)
        self._kind = torch.device(device).type
        for name, _ in model.trainable("value"):
            layer = model.get_submodule(name.rpartition(".")[0])
            if type(layer) is nn.Linear:
                layer.__class__ = FullLinear

    def _lower(self) -> torch.autocast:
        return torch.autocast(self._kind, torch.bfloat16)

    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """As the model's."""
        with self._lower():
            record: Arrays = self._model.act(observation, keys, explore)
            return record

    def values(self, observation: Arrays) -> npt.NDArray[np.float32]:
        """As the model's."""
        with self._lower():
            return np.asarray(self._model.values(observation), np.float32)

    def prefix(self, observation: Arrays, record: Arrays) -> Any:
        """As the model's; its tensors may be bfloat16."""
        with self._lower():
            return self._model.prefix(observation, record)

    def evaluate(self, prefix: Any, observation: Arrays, record: Arrays) -> Evaluation:
        """As the model's, float32."""
        with self._lower():
            found = self._model.evaluate(prefix, observation, record)
        return Evaluation(
            log_prob=found.log_prob.float(), entropy=found.entropy.float(), value=found.value.float()
        )

    def value(self, prefix: Any, observation: Arrays) -> Tensor:
        """As the model's, float32."""
        with self._lower():
            value: Tensor = self._model.value(prefix, observation)
        return value.float()

    def imitation_loss(
        self, observation: Arrays, actions: npt.NDArray[np.float32], generator: torch.Generator
    ) -> Tensor:
        """As the model's, float32."""
        with self._lower():
            loss: Tensor = self._model.imitation_loss(observation, actions, generator)
        return loss.float()
