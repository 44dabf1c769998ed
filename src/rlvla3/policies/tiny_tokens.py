"""The tiny policy with a token head: all tokens of the action chunk decoded in one forward pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.policies import tokens
from rlvla3.policies.api import PREFIX, Arrays, Evaluation, NoiseKey
from rlvla3.policies.noise import draw_gumbel
from rlvla3.policies.publishing import as_array
from rlvla3.policies.tiny import TOKEN_SPAN
from rlvla3.policies.tiny_blocks import KeyValue
from rlvla3.policies.tiny_network import Prefix, TinyNetwork


class TokenNetwork(TinyNetwork):
    """One learned query for each of the C·A numbers of a chunk; see ``rlvla3.policies.tokens``."""

    def add_head(self) -> None:
        """Queries, expert and token head."""
        expert = self.sizes.expert_width
        numbers = self.interface.chunk * self.interface.action_dim
        self.span = TOKEN_SPAN[self.settings.normalisation]
        self.action_queries = nn.Parameter(0.02 * torch.randn(numbers, expert))
        self.add_expert()
        self.token_out = nn.Linear(expert, tokens.BINS)

    def logits(self, state: Tensor, caches: list[KeyValue]) -> Tensor:
        """Logits [B, C·A, 256] from proprioception [B, state] and (k, v) of every level."""
        batch, width = len(state), self.action_queries.shape[1]
        queries = self.action_queries.expand(batch, -1, width)
        y = torch.cat((self.state_proj(state)[:, None], queries), dim=1)
        for block, (keys, values) in zip(self.expert_blocks, caches, strict=True):
            y = block(y, keys, values, None)
        logits: Tensor = self.token_out(self.expert_norm(y[:, 1:]))
        return logits

    def _log_probs(self, state: Tensor, caches: list[KeyValue]) -> Tensor:
        """Log-probs of all tokens [B, C, A, 256], float32."""
        shape = (len(state), self.interface.chunk, self.interface.action_dim, tokens.BINS)
        return tokens.log_softmax(self.logits(state, caches), self.settings.temperature).view(shape)

    @torch.inference_mode()
    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """Action records by ``record_spec`` name for raw observations [B, ...].

        Gumbel noise comes from ``keys`` alone; ``explore=False`` takes the most probable tokens.
        """
        caches, pooled = self._encode(observation)
        state = self._state(observation)
        log_probs = self._log_probs(state, caches)
        gumbel = self._tensor(draw_gumbel(keys, tuple(log_probs.shape[1:]))) if explore else None
        chosen = tokens.choose(log_probs, gumbel)
        action = self.action_normaliser.restore(tokens.decode(chosen, self.span))
        stored = {PREFIX: as_array(self._pack(caches, pooled))} if self.settings.store_prefix else {}
        return {
            **stored,
            "action": as_array(self.settings.action_scale * action),
            "tokens": as_array(chosen).astype(np.uint8),
            "log_prob": as_array(self.reduction(tokens.log_prob(log_probs, chosen))),
            "value": as_array(self._value(pooled, state, observation)),
        }

    def evaluate(self, prefix: Prefix, observation: Arrays, record: Arrays) -> Evaluation:
        """Log-prob (by ratio level), entropy and value [B] of stored records."""
        caches, pooled = self._complete(prefix, observation)
        state = self._state(observation)
        log_probs = self._log_probs(state, caches)
        chosen = self._tensor(record["tokens"]).long()
        return Evaluation(
            log_prob=self.reduction(tokens.log_prob(log_probs, chosen)),
            entropy=self.reduction.of_chunk(tokens.entropy(log_probs)),
            value=self._value(pooled, state, observation),
        )

    def imitation_loss(
        self, observation: Arrays, actions: npt.NDArray[np.float32], generator: torch.Generator
    ) -> Tensor:
        """Mean cross entropy of demonstrated chunks [B, C, A] in env units as tokens, at temperature 1."""
        caches, _ = self._encode(observation)
        target = tokens.encode(self.action_normaliser.normalise(self._tensor(actions)), self.span)
        logits = self.logits(self._state(observation), caches).float()
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())
