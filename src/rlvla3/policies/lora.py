"""Low-rank adapters (LoRA, arXiv 2106.09685) put into linear layers in place.

A layer with weight W [out, in] computes with W + (alpha/r)·up·down, up [out, r], down [r, in]. The
effective weight is computed in float32 and then used like any other: a layer with its adapters folded
in computes the same bits, so Generators that get folded weights act exactly as the Trainer evaluates.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.policies.folding import DOWN, SCALE, UP
from rlvla3.policies.weights import whole


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
