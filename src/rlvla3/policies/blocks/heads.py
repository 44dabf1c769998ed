"""Small heads beside a policy's body, and the embedding of flow time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ValueHead(nn.Module):
    """V(s) from features; zero at first."""

    def __init__(self, inputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.SiLU()]
        last = nn.Linear(widths[-1], 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, inputs] → values [B]."""
        values: Tensor = self.layers(features)
        return values.sum(1)  # one column; a view would lose the hooks of ranks that share weights


class NoiseNet(nn.Module):
    """What ``flow.learned_std`` takes, from the expert's features (ReinFlow, arXiv 2505.22094)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, outputs)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Features [..., inputs] → unbounded numbers [..., outputs]."""
        raw: Tensor = self.layers(features)
        return raw


def time_embedding(time: Tensor, width: int) -> Tensor:
    """Sine and cosine features [..., width] of flow time in [0, 1], periods 4e-3 … 4 as in π0; float32.

    Angles are up to 1,600: computed in float64, because float32 would miss their sines by 1e-4.
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    angle = time[..., None].double() * (2.0 * math.pi / (4e-3 * (4.0 / 4e-3) ** fraction))
    return torch.cat((angle.sin(), angle.cos()), dim=-1).float()
