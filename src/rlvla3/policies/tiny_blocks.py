"""Network blocks of the tiny policy.

Letters: B batch, S prefix tokens, W prefix width, E expert width, H heads, K head size, M flow
samples for each prefix, Q suffix tokens (one for proprioception and C for actions).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one prefix level, each [B, H, S, K] and contiguous."""


class Norm(nn.LayerNorm):
    """Layer normalisation without bias: one fused kernel on a CPU, where torch composes RMSNorm of
    six (measured: 8 against 40 µs a call on one token batch)."""

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=1e-6, bias=False)


class Block(nn.Module):
    """A pre-norm transformer block that returns its keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = Norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = Norm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, KeyValue]:
        """X [B, S, W] → next x [B, S, W] and (k, v), each [B, H, S, K]."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        x = x + self.down(self.up(self.mlp_norm(x)).relu_())
        return x, (k.contiguous(), v.contiguous())


class KeyValues(nn.Module):
    """The last prefix level: only its keys and values, because nothing else of it is read."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = Norm(width)
        self.kv = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, KeyValue]:
        """X [B, S, W] → normalised x and (k, v), each [B, H, S, K]."""
        batch, tokens, width = x.shape
        x = self.norm(x)
        kv = self.kv(x).view(batch, tokens, 2, self.heads, width // self.heads)
        k, v = kv.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
        return x, (k, v)


class ExpertBlock(nn.Module):
    """A block of the action expert: attends to one prefix level and to its own suffix."""

    def __init__(self, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        self.norm = Norm(width)
        self.qkv = nn.Linear(width, 3 * heads * head_size, bias=False)
        self.out = nn.Linear(heads * head_size, width, bias=False)
        self.mlp_norm = Norm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, y: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """One block.

        The prefix part and the suffix part of the attention are computed apart, so that the
        cached keys and values are never copied.

        Args:
            y: suffix tokens [B, M·Q, E].
            keys: of the prefix level [B, H, S, K].
            values: of the prefix level [B, H, S, K].
            bias: [M·Q, M·Q], −inf between different flow samples; None when M is 1.
        """
        batch, tokens, _ = y.shape
        qkv = self.qkv(self.norm(y)).view(batch, tokens, 3, self.heads, self.head_size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q = q / math.sqrt(self.head_size)
        own = q @ k.transpose(2, 3)
        if bias is not None:
            own = own + bias
        weights = torch.cat((q @ keys.transpose(2, 3), own), dim=3).softmax(3)
        prefix = keys.shape[2]
        attended = weights[..., :prefix] @ values + weights[..., prefix:] @ v
        y = y + self.out(attended.transpose(1, 2).reshape(batch, tokens, self.heads * self.head_size))
        hidden: Tensor = self.down(F.silu(self.up(self.mlp_norm(y))))
        return y + hidden


class ConvolutionStem(nn.Module):
    """Stride-2 convolutions from pixels to one vector for each patch."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        halvings = int(math.log2(patch))
        channels = [3, *(16 * 2**level for level in range(halvings - 1)), width]
        self.layers = nn.ModuleList(
            nn.Conv2d(channels[level], channels[level + 1], 3, stride=2, padding=1)
            for level in range(halvings)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, height, width] in [−1, 1] → patches [B, P, W]."""
        for layer in self.layers[:-1]:
            pixels = layer(pixels).relu_()
        patches: Tensor = self.layers[-1](pixels)
        return patches.flatten(2).transpose(1, 2)


class LinearStem(nn.Module):
    """One linear map of each patch's pixels."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.projection = nn.Linear(3 * patch * patch, width)

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels [B, 3, height, width] in [−1, 1] → patches [B, P, W]."""
        batch, _, height, width = pixels.shape
        p = self.patch
        patches = pixels.permute(0, 2, 3, 1).reshape(batch, height // p, p, width // p, p * 3)
        embedded: Tensor = self.projection(patches.transpose(2, 3).reshape(batch, -1, 3 * p * p))
        return embedded


def grid_positions(height: int, width: int, size: int) -> Tensor:
    """Initial position embeddings [height·width, size] of a grid of patches: sines and cosines of
    row and column over four octaves, so that where a patch is can be read from the start.
    """
    rows, columns = torch.meshgrid(
        torch.linspace(-1.0, 1.0, height), torch.linspace(-1.0, 1.0, width), indexing="ij"
    )
    frequency = 0.5 * math.pi * 2.0 ** torch.linspace(0.0, 3.0, -(-size // 4))
    angles = [axis.reshape(-1, 1) * frequency for axis in (rows, columns)]
    waves = torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)
    return 0.5 * waves[:, :size]
