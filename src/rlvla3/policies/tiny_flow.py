"""The tiny policy with a flow head: a velocity that denoises the action chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.policies import flow
from rlvla3.policies.api import PREFIX, Arrays
from rlvla3.policies.blocks.heads import NoiseNet, time_embedding
from rlvla3.policies.flow_model import FlowModel, own_sample_only
from rlvla3.policies.publishing import as_array
from rlvla3.policies.tiny_blocks import KeyValue
from rlvla3.policies.tiny_network import Prefix, TinyNetwork


@dataclass(frozen=True, slots=True)
class TinyContext:
    """What does not change from one denoise step to the next."""

    caches: list[KeyValue]
    pooled: Tensor
    state: Tensor
    observation: Arrays


class FlowNetwork(TinyNetwork, FlowModel[TinyContext]):
    """Denoises C actions from noise in N steps; see ``rlvla3.policies.flow`` for the mathematics."""

    def add_head(self) -> None:
        """Action and time embeddings, expert, velocity head, and for ``method: noise`` the noise net."""
        expert, actions = self.sizes.expert_width, self.interface.action_dim
        shape = (self.interface.chunk, actions)
        self.set_flow(self.settings, shape, shape)
        self.action_in_proj = nn.Linear(actions, expert)
        self.action_position = nn.Parameter(0.02 * torch.randn(self.interface.chunk, expert))
        self.action_time_mlp_in = nn.Linear(2 * expert, expert)
        self.action_time_mlp_out = nn.Linear(expert, expert)
        self.add_expert()
        self.action_out_proj = nn.Linear(expert, actions)

    def add_last(self) -> None:
        """The noise net, after all that other methods have too: their weights do not depend on it."""
        if self.settings.method == "noise":
            self.noise_net = NoiseNet(self.sizes.expert_width, self.interface.action_dim)

    def features(self, x: Tensor, time: Tensor, state: Tensor, caches: list[KeyValue]) -> Tensor:
        """The expert's output for M noisy chunks of each prefix.

        Args:
            x: normalised noisy chunks [B, M, C, A].
            time: flow time of each [B, M].
            state: normalised proprioception [B, state].
            caches: (k, v) of every level.

        Returns:
            Features [B, M, C, E].
        """
        batch, samples, chunk, _ = x.shape
        embedded = self.action_in_proj(x) + self.action_position
        clock = time_embedding(time, embedded.shape[-1])[:, :, None].expand_as(embedded)
        hidden = F.silu(self.action_time_mlp_in(torch.cat((embedded, clock), dim=3)))
        hidden = self.action_time_mlp_out(hidden)
        first = self.state_proj(state)[:, None, None].expand(batch, samples, 1, hidden.shape[-1])
        y = torch.cat((first, hidden), dim=2).flatten(1, 2)
        bias = _apart(samples, chunk + 1, y) if samples > 1 else None
        for block, (keys, values) in zip(self.expert_blocks, caches, strict=True):
            y = block(y, keys, values, bias)
        features: Tensor = self.expert_norm(y.view(batch, samples, chunk + 1, -1)[:, :, 1:])
        return features

    def velocity(self, x: Tensor, time: Tensor, state: Tensor, caches: list[KeyValue]) -> Tensor:
        """Flow velocity [B, M, C, A]; arguments as of ``features``."""
        velocity: Tensor = self.action_out_proj(self.features(x, time, state, caches))
        return velocity

    # --- as a flow model ------------------------------------------------------------------------

    def context(self, observation: Arrays, prefix: Prefix = ()) -> TinyContext:
        """Prefix and proprioception of observations."""
        caches, pooled = self._complete(prefix, observation)
        return TinyContext(caches, pooled, self._state(observation), observation)

    def predict(self, x: Tensor, time: Tensor, context: TinyContext) -> flow.Prediction:
        """Velocity and, for ``method: noise``, the noise net's output, each [B, M, C, A]."""
        features = self.features(x, time, context.state, context.caches)
        raw = self.noise_net(features) if self.settings.method == "noise" else None
        return self.action_out_proj(features), raw

    def value_of(self, context: TinyContext) -> Tensor:
        """V(s) [B]."""
        return self._value(context.pooled, context.state, context.observation)

    def to_env(self, chunk: Tensor, observation: Arrays) -> npt.NDArray[np.float32]:
        """[B, C, A] in env units."""
        return as_array(self.settings.action_scale * self.action_normaliser.restore(chunk))

    def from_env(self, actions: npt.NDArray[np.float32], observation: Arrays) -> tuple[Tensor, Tensor]:
        """Normalised [B, C, A], all of it known."""
        known = torch.ones(self.flow_shape, dtype=torch.bool, device=self.device)
        return self.action_normaliser.normalise(self.tensor(actions)), known

    def stored(self, context: TinyContext) -> dict[str, npt.NDArray[Any]]:
        """The prefix, where the settings say so."""
        if not self.settings.store_prefix:
            return {}
        return {PREFIX: as_array(self._pack(context.caches, context.pooled))}


def _apart(samples: int, tokens: int, like: Tensor) -> Tensor:
    """[M·Q, M·Q]: 0 inside a flow sample, −inf between different ones."""
    own = own_sample_only(samples, tokens, like.device)
    return torch.where(own, 0.0, float("-inf")).to(like.dtype)
