"""Root-mean-square normalisation, plain and modulated by a condition."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x), scaled by ``offset + weight`` (arXiv 1910.07467; Gemma: offset 1, Llama and Qwen: 0).

    Computed in float32, given back in the type that came.
    """

    def __init__(self, width: int, *, offset: float = 1.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.offset, self.eps = offset, eps
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, None]:
        """X [..., W] → normalised x, and no gate; ``condition`` is of no use here."""
        return (normalised(x, self.eps) * (self.offset + self.weight.float())).type_as(x), None


class AdaptiveRMSNorm(nn.Module):
    """x / rms(x), scaled and shifted by a linear map of a condition, which also gates the residual branch."""

    def __init__(self, width: int, condition_width: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.dense = nn.Linear(condition_width, 3 * width)
        nn.init.zeros_(self.dense.weight)
        nn.init.zeros_(self.dense.bias)

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """X [B, S, W] and condition [B, S or 1, condition width] → normalised x, gate [B, S or 1, W]."""
        scale, shift, gate = self.dense(condition).chunk(3, dim=-1)
        moved = normalised(x, self.eps) * (1.0 + scale.float()) + shift.float()
        return moved.type_as(x), gate.type_as(x)


def normalised(x: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + ε) over the last dimension, float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def gated(x: Tensor, branch: Tensor, gate: Tensor | None) -> Tensor:
    """A residual branch added, through its gate where there is one."""
    return x + branch if gate is None else x + branch * gate
