"""Gemma's transformer, as a language model's body and as an action expert; names as published."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.policies.blocks.attention import KeyValue, Rotation, attend, rotated, split_heads
from rlvla3.policies.blocks.norms import AdaptiveRMSNorm, RMSNorm, gated
from rlvla3.policies.blocks.sizes import GemmaSizes


class Attention(nn.Module):
    """Projections of one level's attention."""

    def __init__(self, sizes: GemmaSizes) -> None:
        super().__init__()
        self.head_size = sizes.head_size
        inner, shared = sizes.heads * sizes.head_size, sizes.groups * sizes.head_size
        self.q_proj = nn.Linear(sizes.width, inner, bias=False)
        self.k_proj = nn.Linear(sizes.width, shared, bias=False)
        self.v_proj = nn.Linear(sizes.width, shared, bias=False)
        self.o_proj = nn.Linear(inner, sizes.width, bias=False)

    def heads(self, projected: Tensor) -> Tensor:
        """[B, S, N·Z] → [B, N, S, Z]."""
        return split_heads(projected, self.head_size)


class GatedMLP(nn.Module):
    """down(gelu(gate(x)) · up(x)), with the tanh form of GELU."""

    def __init__(self, sizes: GemmaSizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.mlp, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.mlp, bias=False)
        self.down_proj = nn.Linear(sizes.mlp, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, W] → [B, S, W]."""
        found: Tensor = self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
        return found


class GemmaLayer(nn.Module):
    """One block. With a condition's width its norms are adaptive and its residual branches gated."""

    def __init__(self, sizes: GemmaSizes, condition_width: int = 0) -> None:
        super().__init__()
        self.self_attn = Attention(sizes)
        self.mlp = GatedMLP(sizes)
        self.input_layernorm = norm(sizes.width, condition_width)
        self.post_attention_layernorm = norm(sizes.width, condition_width)

    def forward(
        self,
        x: Tensor,
        turn: Rotation,
        mask: Tensor | None,
        past: KeyValue | None = None,
        condition: Tensor | None = None,
        keys_only: bool = False,
    ) -> tuple[Tensor, KeyValue]:
        """One block.

        Args:
            x: [B, S, W].
            turn: rotary embedding of its positions.
            mask: bool [B, S or 1, K], of what came before and then of its own.
            past: keys and values of what came before; they are not turned again.
            condition: [B, S or 1, condition width], for adaptive norms.
            keys_only: nothing but keys and values is wanted, x is given back as it came.

        Returns:
            Next x [B, S, W], and the keys and values of the tokens that came.
        """
        attention = self.self_attn
        normal, gate = self.input_layernorm(x, condition)
        keys = rotated(attention.heads(attention.k_proj(normal)), turn)
        own = keys, attention.heads(attention.v_proj(normal))
        if keys_only:
            return x, own
        seen = own if past is None else (torch.cat((past[0], own[0]), 2), torch.cat((past[1], own[1]), 2))
        queries = rotated(attention.heads(attention.q_proj(normal)), turn)
        x = gated(x, attention.o_proj(attend(queries, *seen, mask)), gate)
        normal, gate = self.post_attention_layernorm(x, condition)
        return gated(x, self.mlp(normal), gate), own


class GemmaBody(nn.Module):
    """All blocks and the last norm."""

    def __init__(self, sizes: GemmaSizes, condition_width: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GemmaLayer(sizes, condition_width) for _ in range(sizes.depth))
        self.norm = norm(sizes.width, condition_width)

    def forward(
        self,
        x: Tensor,
        turn: Rotation,
        mask: Tensor | None,
        past: Sequence[KeyValue | None] = (),
        condition: Tensor | None = None,
        keys_only: bool = False,
    ) -> tuple[Tensor, list[KeyValue]]:
        """All blocks; arguments as of a block's, ``past`` one for each.

        Args:
            keys_only: the output is not wanted, so the last block computes keys and values alone.

        Returns:
            Normalised output [B, S, W] (with ``keys_only`` of no meaning), keys and values of every block.
        """
        caches = []
        last = len(self.layers) - 1
        for index, (layer, before) in enumerate(
            zip(self.layers, past or (None,) * len(self.layers), strict=True)
        ):
            x, own = layer(x, turn, mask, before, condition, keys_only and index == last)
            caches.append(own)
        return x if keys_only else self.norm(x, condition)[0], caches


def norm(width: int, condition_width: int) -> RMSNorm | AdaptiveRMSNorm:
    """The norm of a block with or without a condition."""
    return AdaptiveRMSNorm(width, condition_width) if condition_width else RMSNorm(width)
