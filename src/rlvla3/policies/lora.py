"""Low-rank adapters (LoRA, arXiv 2106.09685) put into linear layers in place.

A layer with weight W [out, in] computes with W + (alpha/r)·up·down, up [out, r], down [r, in]. The
effective weight is computed in float32 and then used like any other: a layer with its adapters folded
in computes the same bits, so Generators that get folded weights act exactly as the Trainer evaluates.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.policies.folding import DOWN, SCALE, UP
from rlvla3.policies.settings import LoraSettings
from rlvla3.policies.weights import whole

_SHOWN = 5


class LowRankLinear(nn.Linear):
    """A linear layer with an adapter; made of an existing one by ``adapt``."""

    lora_down: nn.Parameter
    lora_up: nn.Parameter
    lora_scale: Tensor

    def effective(self) -> Tensor:
        """W + (alpha/r)·up·down [out, in], float32 also under autocast."""
        weight, up, down, scale = map(whole, (self.weight, self.lora_up, self.lora_down, self.lora_scale))
        with torch.autocast(weight.device.type, enabled=False):
            return weight + scale * (up @ down)

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] → [..., out]."""
        return F.linear(input, self.effective(), self.bias)


def adapt(layer: nn.Linear, name: str, rank: int, alpha: float, seed: int) -> None:
    """Give a layer an adapter without effect: ``up`` zero, ``down`` normal with deviation 1/√in.

    The layer's own parameters keep their names. ``seed`` and ``name`` alone decide the initial numbers.
    """
    number = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(number, "little") >> 1)
    outputs, inputs = layer.weight.shape
    smaller, device = min(rank, inputs, outputs), layer.weight.device
    down = torch.randn(smaller, inputs, generator=generator) / math.sqrt(inputs)
    layer.__class__ = LowRankLinear
    layer.register_parameter(DOWN, nn.Parameter(down.to(device)))
    layer.register_parameter(UP, nn.Parameter(torch.zeros(outputs, smaller, device=device)))
    layer.register_buffer(SCALE, torch.tensor(alpha / rank, device=device))


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Layers that can have adapters. Subclasses are left out: who calls them may go past ``forward``, as
    attention of ``torch.nn`` does."""
    return {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}


def choose(layers: Collection[str], open_to: Collection[str], settings: LoraSettings) -> list[str]:
    """Names of the layers that get adapters.

    Args:
        layers: all linear layers of a model.
        open_to: those whose weight would train and may have adapters.
        settings: of the adapters.

    Raises:
        UserError: a target is none of them.
    """
    if not settings.targets:
        chosen = [n for n in layers if n in open_to and not _found(settings.train, f"{n}.weight")]
        if not chosen:
            raise UserError(
                "policy.lora.rank: no linear layer is left that would train and could have an adapter; set "
                "policy.lora.targets, or policy.lora.rank=0"
            )
        return chosen
    for pattern in settings.targets:
        matched = [name for name in layers if re.search(pattern, name)]
        if not any(name in open_to for name in matched):
            why = f"only layers that do not train, or that train whole ({_some(matched)})" if matched else ""
            raise UserError(
                f"policy.lora.targets: {pattern!r} matches {why or 'no linear layer'}; "
                f"layers to choose from: {_some(open_to)}"
            )
    return [name for name in layers if name in open_to and _found(settings.targets, name)]


def check_rank(layers: Iterable[nn.Linear], rank: int) -> None:
    """Refuse a rank that no layer can have.

    Raises:
        UserError: with the largest rank that has a use.
    """
    most = max(min(layer.weight.shape) for layer in layers)
    if rank > most:
        raise UserError(
            f"policy.lora.rank = {rank} exceeds the smaller side of every layer that gets an adapter; use at "
            f"most {most} (adapters of that rank are as large as what they stand for: below it, they save)"
        )


def matching(names: Collection[str], patterns: Sequence[str], setting: str) -> list[str]:
    """The names in which a pattern is found.

    Raises:
        UserError: a pattern is found in none of them.
    """
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise UserError(
                f"{setting}: {pattern!r} matches no parameter that may train; such are {_some(names)}"
            )
    return [name for name in names if _found(patterns, name)]


def _found(patterns: Sequence[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown + (", …" if len(names) > _SHOWN else "") if names else "none"
