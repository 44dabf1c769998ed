"""The tiny policy with a flow head: a velocity that denoises the action chunk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.policies import flow
from rlvla3.policies.api import PREFIX, Arrays, Evaluation, NoiseKey
from rlvla3.policies.blocks.heads import NoiseNet, time_embedding
from rlvla3.policies.flow_settings import flow_law
from rlvla3.policies.noise import draw_flow_noise
from rlvla3.policies.publishing import as_array
from rlvla3.policies.tiny_blocks import KeyValue
from rlvla3.policies.tiny_network import Prefix, TinyNetwork


class FlowNetwork(TinyNetwork):
    """Denoises C actions from noise in N steps; see ``rlvla3.policies.flow`` for the mathematics."""

    def add_head(self) -> None:
        """Action and time embeddings, expert, velocity head, and for ``method: noise`` the noise net."""
        expert, actions = self.sizes.expert_width, self.interface.action_dim
        self.law = flow_law(self.settings)
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
        bias = _own_sample_only(samples, chunk + 1, y) if samples > 1 else None
        for block, (keys, values) in zip(self.expert_blocks, caches, strict=True):
            y = block(y, keys, values, bias)
        features: Tensor = self.expert_norm(y.view(batch, samples, chunk + 1, -1)[:, :, 1:])
        return features

    def velocity(self, x: Tensor, time: Tensor, state: Tensor, caches: list[KeyValue]) -> Tensor:
        """Flow velocity [B, M, C, A]; arguments as of ``features``."""
        velocity: Tensor = self.action_out_proj(self.features(x, time, state, caches))
        return velocity

    def predict(self, x: Tensor, time: Tensor, state: Tensor, caches: list[KeyValue]) -> flow.Prediction:
        """Velocity and, for ``method: noise``, the noise net's output, each [B, M, C, A]."""
        features = self.features(x, time, state, caches)
        raw = self.noise_net(features) if self.settings.method == "noise" else None
        return self.action_out_proj(features), raw

    @torch.inference_mode()
    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """Action records by ``record_spec`` name for raw observations [B, ...].

        The prefix is computed once for all denoise steps. Noise comes from ``keys`` alone, so a
        record does not depend on the batch it was computed in (up to float rounding).
        """
        settings, law = self.settings, self.law
        caches, pooled = self._encode(observation)
        state = self._state(observation)
        shape = (self.interface.chunk, self.interface.action_dim)
        noise = draw_flow_noise(keys, shape, law.starts, law.window)
        start = self._tensor(noise.index).long()

        def network(x: Tensor, time: Tensor) -> flow.Prediction:
            velocity, raw = self.predict(x[:, None], time[:, None], state, caches)
            return velocity[:, 0], None if raw is None else raw[:, 0]

        initial, step_noise = self._tensor(noise.initial), self._tensor(noise.step)
        chain = flow.sample(network, initial, step_noise, start, law, explore=explore)
        log_prob, _ = law.log_prob(chain.points, chain.prediction, start)
        stored = {PREFIX: as_array(self._pack(caches, pooled))} if settings.store_prefix else {}
        return {
            **stored,
            "action": as_array(settings.action_scale * self.action_normaliser.restore(chain.final)),
            "chain": as_array(chain.points),
            "step_index": noise.index,
            "log_prob": as_array(self.reduction(log_prob)),
            "value": as_array(self._value(pooled, state, observation)),
        }

    def evaluate(self, prefix: Prefix, observation: Arrays, record: Arrays) -> Evaluation:
        """Log-prob (by ratio level), entropy (zeros but for ``noise``) and value [B] of stored records."""
        caches, pooled = self._complete(prefix, observation)
        state = self._state(observation)
        chain = self._tensor(record["chain"])
        start = self._tensor(record["step_index"]).long()
        time = flow.times(self.law.indices(start), self.law.steps)
        prediction = self.predict(chain[:, :-1], time, state, caches)
        log_prob, entropy = self.law.log_prob(chain, prediction, start)
        return Evaluation(
            log_prob=self.reduction(log_prob),
            entropy=self.reduction.of_chunk(entropy),
            value=self._value(pooled, state, observation),
        )

    def imitation_loss(
        self, observation: Arrays, actions: npt.NDArray[np.float32], generator: torch.Generator
    ) -> Tensor:
        """Flow-matching loss of demonstrated chunks [B, C, A] in env units.

        ``flow_samples`` noise samples share each prefix. Flow time follows t = u^(2/3), the
        density of Beta(1.5, 1) that π0 trains with (more weight near the noise end).
        """
        caches, _ = self._encode(observation)
        target = self.action_normaliser.normalise(self._tensor(actions))[:, None]
        shape = (len(actions), self.settings.flow_samples, *target.shape[2:])
        noise = torch.randn(shape, generator=generator).to(self.device)
        uniform = torch.rand(shape[:2], generator=generator).to(self.device)
        time = 0.001 + 0.999 * uniform ** (2.0 / 3.0)
        x, goal = flow.imitation_pair(target, noise, time)
        return F.mse_loss(self.velocity(x, time, self._state(observation), caches).float(), goal)


def _own_sample_only(samples: int, tokens: int, like: Tensor) -> Tensor:
    """[M·Q, M·Q]: 0 inside a flow sample, −inf between different ones."""
    sample = torch.arange(samples, device=like.device).repeat_interleave(tokens)
    return torch.where(sample[:, None] == sample[None], 0.0, float("-inf")).to(like.dtype)
