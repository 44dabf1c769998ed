"""A policy of which only a part trains: adapters, or what its own settings leave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.policies.choosing import choose, matching
from rlvla3.policies.folding import UP, is_adapter
from rlvla3.policies.lora import LowRankLinear, adapt, check_rank, linear_layers
from rlvla3.policies.settings import LoraSettings, ModelSettings
from rlvla3.policies.weights import copy_into, whole
from rlvla3.policies.wrapping import Wrapped

Arrays = Mapping[str, npt.NDArray[Any]]


class Adapted(Wrapped):
    """A model with adapters, or with none, that knows which of its tensors train.

    ``arrays`` is what it publishes: the whole policy under its own names with the adapters folded in, or
    (``publish: trained``) the tensors that train. Everything else keeps its bits for ever.
    """

    def __init__(self, model: Any, settings: ModelSettings, seed: int) -> None:
        """Put adapters into ``model``, a ``torch.nn.Module``.

        Raises:
            UserError: the settings do not fit the model.
        """
        super().__init__(model)
        self._parts_only = settings.publish == "trained"
        value = {name for name, _ in model.trainable("value")}
        trains = {name for name, _ in model.trainable("reinforcement")} | value
        if settings.lora.rank:
            trains = value | _put_in(model, settings.lora, trains - value, seed)
        self._trains = trains
        if self._parts_only and len(self._trained) == len(dict(model.named_parameters())):
            raise UserError(
                "policy.publish = trained: every weight of this policy trains, so everything is published; "
                "use whole, or freeze a part (policy.lora.rank, or the policy's own settings)"
            )

    # --- what trains ------------------------------------------------------------------------

    @property
    def _trained(self) -> dict[str, nn.Parameter]:
        """Asked for each time: ranks that share the weights exchange the parameters."""
        return {name: p for name, p in self._model.named_parameters() if name in self._trains}

    def trainable(self, stage: str) -> list[tuple[str, nn.Parameter]]:
        """As the model's; ``reinforcement``: adapters, value head and what trains as well."""
        if stage == "reinforcement":
            return list(self._trained.items())
        return [(name, p) for name, p in self._model.trainable(stage) if not is_adapter(name)]

    # --- what is published ------------------------------------------------------------------

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of what is published; the whole policy has no adapters left."""
        if self._parts_only:
            return {name: _copy(p) for name, p in self._trained.items()}
        plain = {name: array for name, array in self._model.arrays().items() if not is_adapter(name)}
        return plain | {f"{name}.weight": _copy(layer.effective()) for name, layer in self._adapters()}

    def base(self) -> Arrays:
        """Copies of what is not published: frozen weights, statistics, the adapters' scales."""
        if not self._parts_only:
            return {}
        return {name: array for name, array in self._model.arrays().items() if name not in self._trained}

    def load_arrays(self, weights: Arrays) -> None:
        """Take over what an equal model publishes, all of its tensors, or a plain policy's weights, which
        leave the adapters without effect; copies, never aliases.

        Raises:
            UserError: names or shapes differ; nothing was copied.
        """
        if self._parts_only and weights.keys() == self._trained.keys():
            given = {name: torch.from_numpy(np.asarray(array)) for name, array in weights.items()}
            copy_into({n: p.detach() for n, p in self._trained.items()}, given, "published weights")
            return
        if not any(is_adapter(name) for name in weights):
            weights = {**weights, **self._without_effect()}
        self._model.load_arrays(weights)

    def _without_effect(self) -> dict[str, npt.NDArray[Any]]:
        own = {name: _copy(t) for name, t in self._model.state_dict().items() if is_adapter(name)}
        return {n: np.zeros_like(a) if n.rpartition(".")[2] == UP else a for n, a in own.items()}

    def _adapters(self) -> list[tuple[str, LowRankLinear]]:
        return [(n, m) for n, m in self._model.named_modules() if isinstance(m, LowRankLinear)]


def _put_in(model: nn.Module, settings: LoraSettings, trains: set[str], seed: int) -> set[str]:
    """Put adapters into a model; returns the names of what trains: adapters and ``settings.train``.

    ``trains``: parameters that would train without adapters. Only these may change, because what a policy
    computes once for each observation (``prefix``) rests on all others.
    """
    extra = set(matching([n for n, _ in model.named_parameters() if n in trains], settings.train,
                         "policy.lora.train"))  # fmt: skip
    layers = linear_layers(model)
    open_to = [name for name in layers if f"{name}.weight" in trains - extra]
    chosen = choose(layers, open_to, settings)
    check_rank([layers[name] for name in chosen], settings.rank)
    for name in chosen:
        adapt(layers[name], name, settings.rank, settings.alpha, seed)
    return extra | {name for name, _ in model.named_parameters() if is_adapter(name)}


def _copy(tensor: Tensor) -> npt.NDArray[Any]:
    copied: npt.NDArray[Any] = whole(tensor).detach().cpu().numpy().copy()
    return copied
