"""Activation checkpointing: a block's activations are computed again in the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rlvla3.errors import UserError


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Let blocks keep their inputs only, wherever a gradient is wanted.

    Blocks return what others need of them, their keys and values included: what a block leaves behind
    by a side effect would be made twice.

    Raises:
        UserError: there are none.
    """
    blocks = list(blocks)
    if not blocks:
        raise UserError(
            "policy.activation_checkpointing: this policy names no blocks (fsdp_units); leave it out"
        )
    for block in blocks:
        block.forward = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **named)
        return checkpoint(forward, *args, use_reentrant=False, **named)

    return run
