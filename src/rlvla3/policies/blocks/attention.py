"""Attention with explicit masks, grouped heads and rotary positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of one level [B, G, K, Z]."""
Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of positions [B, 1, S, Z]."""


def rotation(positions: Tensor, head_size: int, base: float = 10_000.0) -> Rotation:
    """Rotary embedding of positions (arXiv 2104.09864), with halves of a head paired.

    Args:
        positions: of the tokens, integer [B, S].
        head_size: Z, even.
        base: of the geometric series of periods.

    Returns:
        cosines and sines [B, 1, S, Z], float32.
    """
    exponent = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angle = positions[:, None, :, None].float() * base**-exponent
    both = torch.cat((angle, angle), dim=-1)
    return both.cos(), both.sin()


def rotated(x: Tensor, by: Rotation) -> Tensor:
    """Queries or keys [B, N, S, Z] at their positions."""
    cos, sin = (part.to(x.dtype) for part in by)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def split_heads(projected: Tensor, head_size: int) -> Tensor:
    """[B, S, N·Z] → [B, N, S, Z]."""
    return projected.view(*projected.shape[:-1], -1, head_size).transpose(1, 2)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention; several heads of queries may share one of keys and values.

    Args:
        queries: [B, N, S, Z].
        keys: [B, G, K, Z]; G divides N.
        values: [B, G, K, Z].
        mask: bool [B or 1, S or 1, K], true where a token may look, somewhere for each; None: everywhere.

    Returns:
        [B, S, N·Z].
    """
    shared = queries.shape[1] // keys.shape[1]
    if shared > 1:
        keys, values = (_each(part, shared) for part in (keys, values))
    found = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=None if mask is None else mask[:, None]
    )
    return found.transpose(1, 2).flatten(2)


def _each(part: Tensor, shared: int) -> Tensor:
    """[B, G, K, Z] → [B, G·shared, K, Z]; a view where G is 1."""
    batch, groups, tokens, size = part.shape
    return part[:, :, None].expand(batch, groups, shared, tokens, size).flatten(1, 2)
