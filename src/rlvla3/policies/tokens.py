"""Reinforcement-learning mathematics of action tokens, in float32, outside any network.

A normalised action number in [−span, span] is one of 256 equally spaced values, linspace(−span, span,
256); a number between two of them takes the nearer one, a number outside the nearer end. All C·A tokens
of a chunk are independent given the observation, so that one forward pass decodes them all (parallel
decoding, OpenVLA-OFT, arXiv 2502.19645).

Letters: B batch, C actions of a chunk, A dimensions of an action, V tokens of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 256
"""V."""


def encode(actions: Tensor, span: float) -> Tensor:
    """Tokens (int64) of normalised action numbers of any shape."""
    share = 0.5 * ((actions.float() / span).clamp(-1.0, 1.0) + 1.0)
    return (share * (BINS - 1)).round().long()


def decode(tokens: Tensor, span: float) -> Tensor:
    """Normalised action numbers (float32) of tokens of any shape."""
    return span * (tokens.float() * (2.0 / (BINS - 1)) - 1.0)


def log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """Log-probs of all tokens [..., V], float32. ``temperature`` divides the logits."""
    return torch.log_softmax(logits.float() / temperature, dim=-1)


def log_prob(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Log-prob [...] of the chosen tokens [...] from those of all tokens [..., V]."""
    if log_probs.shape[:-1] != tokens.shape:
        raise ValueError(
            f"log-probs {tuple(log_probs.shape)} are not those of tokens {tuple(tokens.shape)}: "
            "they need one dimension more"
        )
    return log_probs.gather(-1, tokens[..., None]).squeeze(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """−Σ p·log p [...] of each token's distribution [..., V]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def choose(log_probs: Tensor, gumbel: Tensor | None) -> Tensor:
    """Tokens [...] (int64): a sample by Gumbel noise [..., V], or the most probable ones without."""
    return (log_probs if gumbel is None else log_probs + gumbel).argmax(-1)
