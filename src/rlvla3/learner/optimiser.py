"""AdamW with a group for the policy and one for the value head, and averaged weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.policies.weights import copy_into

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
    ) -> None:
        self._parameters = dict(parameters)
        self._base = {"policy": lr, "value": value_lr}
        self._clip, self._ema = gradient_clip, ema
        groups = [
            {
                "name": group,
                "lr": rate,
                "params": [
                    p for name, p in parameters.items() if (name in value_names) == (group == "value")
                ],
            }
            for group, rate in self._base.items()
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], weight_decay=weight_decay, fused=True
        )
        self.average: dict[str, Tensor] = {}
        self.restart_average()

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
        self._adam.zero_grad(set_to_none=True)

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients."""
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self) -> float | None:
        """Clip, step and average the parameters that have a gradient.

        Returns:
            The norm of the gradient before clipping, or None (and no step) if it is not finite.
        """
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._clip)
        if not torch.isfinite(norm):
            return None
        self._adam.step()
        moved = {name: p for name, p in self._parameters.items() if p.grad is not None}
        if self.average and moved:
            with torch.no_grad():
                torch._foreach_lerp_(
                    [self.average[name] for name in moved], list(moved.values()), 1.0 - self._ema
                )
        return float(norm)

    @contextlib.contextmanager
    def exchanged(self, parameters: Mapping[str, Tensor]) -> Iterator[None]:
        """Let the model compute with other weights for a while; nothing is copied."""
        own = {name: p.data for name, p in self._parameters.items()}
        try:
            for name, p in self._parameters.items():
                p.data = parameters[name]
            yield
        finally:
            for name, p in self._parameters.items():
                p.data = own[name]

    def finite(self) -> bool:
        """Whether every trained weight is a finite number (and so is the sum of their squares)."""
        norms = torch._foreach_norm([p.detach() for p in self._parameters.values()])
        return bool(torch.isfinite(torch.stack([norm.float() for norm in norms])).all())

    def restart_average(self) -> None:
        """Make the average equal to the present weights."""
        if self._ema:
            self.average = {name: p.detach().clone() for name, p in self._parameters.items()}

    # --- state ------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Optimiser state as ``<kind>:<parameter name>`` tensors; parameters without one are absent."""
        found = {}
        for name, parameter in self._parameters.items():
            for kind, tensor in self._adam.state.get(parameter, {}).items():
                found[f"{kind}:{name}"] = tensor
        return found

    def load_state(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Restore ``state()`` of an optimiser over equal parameters.

        Raises:
            UserError: a tensor belongs to no parameter, or a parameter's state is not whole.
        """
        state: dict[Tensor, dict[str, Any]] = {}
        for key, tensor in tensors.items():
            kind, _, name = key.partition(":")
            parameter = self._parameters.get(name)
            if (
                parameter is None
                or kind not in _STATE
                or (kind != "step" and tensor.shape != parameter.shape)
            ):
                raise UserError(f"{source}: optimiser state {key!r} does not belong to this model")
            device = parameter.device
            state.setdefault(parameter, {})[kind] = tensor.clone().to(device)
        if any(len(kinds) != len(_STATE) for kinds in state.values()):
            raise UserError(f"{source}: optimiser state is not whole; use another checkpoint")
        self._adam.state.clear()
        self._adam.state.update(state)

    def snapshot(self) -> Snapshot:
        """Copies of weights, average and optimiser state."""
        return Snapshot(
            parameters={name: p.detach().clone() for name, p in self._parameters.items()},
            average={name: tensor.clone() for name, tensor in self.average.items()},
            state={name: tensor.clone() for name, tensor in self.state().items()},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot back, bit-equal."""
        copy_into({n: p.detach() for n, p in self._parameters.items()}, snapshot.parameters, "snapshot")
        copy_into(self.average, snapshot.average, "snapshot")
        self.load_state(snapshot.state, "snapshot")
