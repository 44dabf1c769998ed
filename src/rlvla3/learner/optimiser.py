"""AdamW with a group for the policy and one for the value head, and averaged weights.

Everything here is about this rank's part of the weights; only norms are of the whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.learner.ranks import Ranks
from rlvla3.learner.sharding import like, local

_STATE = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a skipped update puts back."""

    parameters: dict[str, Tensor]
    average: dict[str, Tensor]
    state: dict[str, Tensor]


class Optimiser:
    """Steps named parameters and keeps their exponential moving average."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        value_names: frozenset[str],
        lr: float,
        value_lr: float,
        weight_decay: float,
        gradient_clip: float,
        ema: float,
        ranks: Ranks | None = None,
        offload: bool = False,
    ) -> None:
        """``offload``: step copies of the weights in host memory, where the optimiser's state then lies."""
        self._parameters = dict(parameters)
        self._ranks = ranks or Ranks()
        self._offload = offload
        self._value_names = value_names
        self._base = {"policy": lr, "value": value_lr}
        self._clip, self._ema = gradient_clip, ema
        self._parts = {name: local(p.detach()) for name, p in parameters.items()}
        """This rank's part of each parameter, sharing its memory."""
        self._stepped = {
            name: nn.Parameter(part.to("cpu", copy=True) if offload else part)
            for name, part in self._parts.items()
        }
        """What AdamW knows: the parts, or copies of them in host memory."""
        groups = [
            {
                "name": group,
                "lr": rate,
                "params": [
                    p for name, p in self._stepped.items() if (name in value_names) == (group == "value")
                ],
            }
            for group, rate in self._base.items()
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], weight_decay=weight_decay, fused=True
        )
        self.average: dict[str, Tensor] = {}
        """Averaged parts."""
        self.restart_average()

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """What is stepped, by name."""
        return self._parameters

    @property
    def rates(self) -> dict[str, float]:
        """Present learning rate of each group."""
        return dict.fromkeys(self._base, 0.0) | {g["name"]: float(g["lr"]) for g in self._adam.param_groups}

    def set_rate(self, factor: float) -> None:
        """Set both rates to ``factor`` of their start."""
        for group in self._adam.param_groups:
            group["lr"] = self._base[group["name"]] * factor

    def zero_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def gradients(self) -> dict[str, Tensor]:
        """This rank's gradients, where there are any, sharing their memory."""
        return {name: local(p.grad) for name, p in self._parameters.items() if p.grad is not None}

    @contextlib.contextmanager
    def accumulating(self, gradients: dict[str, Tensor]) -> Iterator[None]:
        """Let backward passes add to ``gradients`` (by name) instead of the parameters' own."""
        own = {name: p.grad for name, p in self._parameters.items()}
        for name, p in self._parameters.items():
            p.grad = gradients.get(name)
        try:
            yield
        finally:
            for name, p in self._parameters.items():
                if p.grad is not None:
                    gradients[name] = p.grad
                p.grad = own[name]

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients."""
        for gradient in self.gradients().values():
            gradient.mul_(factor)

    def step(self, *, value_only: bool = False) -> float | None:
        """Sum over ranks, clip, step and average the parameters that have a gradient.

        ``value_only``: the value head alone, whatever else its loss reaches.

        Returns:
            The norm of the gradient before clipping, or None (and no step) if it is not finite.
        """
        if value_only:
            for name in self._parameters.keys() - self._value_names:
                self._parameters[name].grad = None
        self._ranks.sum_gradients(list(self._parameters.values()))
        gradients = self.gradients()
        norm = self._norm(list(gradients.values()))
        if not math.isfinite(norm):
            return None
        if norm > self._clip:
            self.scale_gradients(self._clip / (norm + 1e-6))
        for name, gradient in gradients.items():
            self._stepped[name].grad = gradient.to(self._stepped[name].device)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        if self._offload:
            for name in gradients:
                self._parts[name].copy_(self._stepped[name].detach())
        self._follow(list(gradients))
        return norm

    def _norm(self, tensors: list[Tensor]) -> float:
        """Norm over all ranks' parts."""
        if not tensors and not self._ranks.sharded:
            return 0.0
        norms = torch._foreach_norm(tensors) if tensors else [torch.zeros(())]
        square = float(torch.linalg.vector_norm(torch.stack([n.float() for n in norms]))) ** 2
        if self._ranks.sharded:
            square = float(self._ranks.sum([square])[0])
        return math.sqrt(square) if math.isfinite(square) else square

    def _follow(self, moved: list[str]) -> None:
        if self.average and moved:
            torch._foreach_lerp_(
                [self.average[name] for name in moved], [self._parts[name] for name in moved], 1.0 - self._ema
            )

    @contextlib.contextmanager
    def exchanged(self, parts: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the model compute with other weights for a while."""
        own = {name: part.clone() for name, part in self._parts.items()}
        try:
            self._put(parts)
            yield
        finally:
            self._put(own)

    def _put(self, parts: Mapping[str, Tensor]) -> None:
        torch._foreach_copy_(list(self._parts.values()), [parts[name] for name in self._parts])

    def copies(self) -> dict[str, Tensor]:
        """Copies of the parts as they are now."""
        return {name: part.clone() for name, part in self._parts.items()}

    def finite(self) -> bool:
        """Whether every trained weight is a finite number (and so is the sum of their squares)."""
        return math.isfinite(self._norm(list(self._parts.values())))

    def restart_average(self) -> None:
        """Make the average equal to the present weights."""
        if self._ema:
            self.average = self.copies()

    # --- state ------------------------------------------------------------------------------

    def shared(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Parts by parameter name as tensors that are shared between ranks as the parameters are."""
        return {name: like(part, self._parameters[name].detach()) for name, part in parts.items()}

    def state(self) -> dict[str, Tensor]:
        """Optimiser state as ``<kind>:<parameter name>`` parts; parameters without one are absent."""
        found = {}
        for name, parameter in self._stepped.items():
            for kind, tensor in self._adam.state.get(parameter, {}).items():
                found[f"{kind}:{name}"] = tensor
        return found

    def shared_state(self) -> dict[str, Tensor]:
        """``state()`` with moments that are shared between ranks as their parameters are."""
        return {key: self._as_shared(key, tensor) for key, tensor in self.state().items()}

    def room_for_state(self, keys: list[str], source: str) -> dict[str, Tensor]:
        """Empty tensors that the state named by ``keys`` can be read into.

        Raises:
            UserError: one belongs to no parameter.
        """
        room = {}
        for key in keys:
            kind, _, name = key.partition(":")
            if kind not in _STATE or name not in self._stepped:
                raise UserError(f"{source}: optimiser state {key!r} does not belong to this model")
            part = torch.zeros(()) if kind == "step" else torch.zeros_like(self._stepped[name].detach())
            room[key] = self._as_shared(key, part)
        return room

    def _as_shared(self, key: str, part: Tensor) -> Tensor:
        kind, _, name = key.partition(":")
        # Torch's safetensors writer leaves out what is in a tensor without dimensions.
        return part.reshape(1) if kind == "step" else like(part, self._parameters[name].detach())

    def load_state(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Restore ``state()`` of an optimiser over equal parameters.

        Raises:
            UserError: a tensor belongs to no parameter, or a parameter's state is not whole.
        """
        state: dict[Tensor, dict[str, Any]] = {}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(":")
            parameter, part = self._stepped.get(name), local(tensor)
            if parameter is None or kind not in _STATE or (kind != "step" and part.shape != parameter.shape):
                raise UserError(f"{source}: optimiser state {key!r} does not belong to this model")
            value = part.reshape(()) if kind == "step" else part
            state.setdefault(parameter, {})[kind] = value.clone().to(parameter.device)
        if any(len(kinds) != len(_STATE) for kinds in state.values()):
            raise UserError(f"{source}: optimiser state is not whole; use another checkpoint")
        self._adam.state.clear()
        self._adam.state.update(state)

    def weights_changed(self) -> None:
        """The parameters were written from outside: copies in host memory follow."""
        if self._offload:
            for name, part in self._parts.items():
                self._stepped[name].data.copy_(part)

    def snapshot(self) -> Snapshot:
        """Copies of weights, average and optimiser state."""
        return Snapshot(
            parameters=self.copies(),
            average={name: tensor.clone() for name, tensor in self.average.items()},
            state={name: tensor.clone() for name, tensor in self.state().items()},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back, bit-equal."""
        self._put(snapshot.parameters)
        for name, tensor in snapshot.average.items():
            self.average[name].copy_(tensor)
        self.load_state(snapshot.state, "snapshot")
        self.weights_changed()
