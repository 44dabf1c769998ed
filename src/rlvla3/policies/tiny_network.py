"""The network of the tiny policy: raw observations in, action records out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.messages import FieldSpec
from rlvla3.policies import flow, words
from rlvla3.policies.api import PREFIX, Arrays, Evaluation, NoiseKey, PolicyInterface
from rlvla3.policies.noise import draw_flow_noise
from rlvla3.policies.tiny import Architecture, TinySettings, split_fields
from rlvla3.policies.tiny_blocks import (
    Block,
    ConvolutionStem,
    ExpertBlock,
    KeyValue,
    KeyValues,
    LinearStem,
    Norm,
    ValueHead,
    grid_positions,
    time_embedding,
)
from rlvla3.policies.transforms import Normaliser
from rlvla3.policies.weights import copy_into

Prefix = tuple[Tensor, ...]
"""What no trainable weight touches, batch first. Frozen: (k_1, v_1, …, k_L, v_L [B, H, S, K], pooled
[B, W]). With trainable last blocks: those of the frozen levels, then hidden tokens [B, S, W]. Not
frozen: ()."""

_VALUE_HIDDEN = 256


class TinyNetwork(nn.Module):
    """The network with its processors; see ``rlvla3.policies.api.PolicyModel``.

    Letters as in ``tiny_blocks``; C actions of A dimensions, L levels.
    """

    tokens: Tensor

    def __init__(self, settings: TinySettings, sizes: Architecture, interface: PolicyInterface) -> None:
        super().__init__()
        self.settings, self.sizes, self.interface = settings, sizes, interface
        self.images, self.states = split_fields(interface)
        width, expert = sizes.width, sizes.expert_width
        state_dim = max(1, sum(int(np.prod(field.shape)) for field in self.states))
        stem = ConvolutionStem if settings.stem == "convolution" else LinearStem
        self.stem = stem(settings.patch, width)
        self.image_position = nn.ParameterDict(
            {field.name: nn.Parameter(grid_positions(*self._grid(field), width)) for field in self.images}
        )
        self.words = nn.Embedding(words.VOCABULARY, width)
        self.word_position = nn.Parameter(0.02 * torch.randn(settings.text_length, width))
        self.prefix_blocks = nn.ModuleList(Block(width, sizes.heads) for _ in range(sizes.layers - 1))
        self.prefix_blocks.append(KeyValues(width, sizes.heads))

        self.state_proj = nn.Linear(state_dim, expert)
        self.action_in_proj = nn.Linear(interface.action_dim, expert)
        self.action_position = nn.Parameter(0.02 * torch.randn(interface.chunk, expert))
        self.action_time_mlp_in = nn.Linear(2 * expert, expert)
        self.action_time_mlp_out = nn.Linear(expert, expert)
        head_size = width // sizes.heads
        self.expert_blocks = nn.ModuleList(
            ExpertBlock(expert, sizes.heads, head_size) for _ in range(sizes.layers)
        )
        self.expert_norm = Norm(expert)
        self.action_out_proj = nn.Linear(expert, interface.action_dim)
        self.value_head = ValueHead(width + state_dim + 1, _VALUE_HIDDEN)

        self.state_normaliser = Normaliser(state_dim, settings.normalisation)
        self.action_normaliser = Normaliser(interface.action_dim, settings.normalisation)
        tokens = torch.from_numpy(words.tokenize(interface.instructions, settings.text_length))
        self.register_buffer("tokens", tokens, persistent=False)
        self.reduction = flow.Reduction(
            chunk=interface.chunk,
            action_dim=interface.action_dim,
            level=settings.ratio_level,
            chunk_reduce=settings.chunk_reduce,
            dim_reduce=settings.dim_reduce,
        )
        self.frozen_levels = sizes.layers - settings.unfreeze_last_blocks if settings.freeze_prefix else 0

    def _grid(self, field: FieldSpec) -> tuple[int, int]:
        """Rows and columns of an image's patches."""
        return field.shape[0] // self.settings.patch, field.shape[1] // self.settings.patch

    # --- processors -------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.word_position.device

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _state(self, observation: Arrays) -> Tensor:
        """Normalised proprioception [B, state]; one zero where the simulator gives none."""
        batch = len(observation["task"])
        if not self.states:
            return torch.zeros(batch, 1, device=self.device)
        parts = [np.asarray(observation[field.name], np.float32).reshape(batch, -1) for field in self.states]
        return self.state_normaliser.normalise(self._tensor(np.concatenate(parts, axis=1)))

    def fit_processors(self, states: npt.NDArray[np.float32], actions: npt.NDArray[np.float32]) -> None:
        """Set the normalisation statistics from states [M, state] and actions [..., A]."""
        if self.states:
            self.state_normaliser.fit(states, "proprioception")
        self.action_normaliser.fit(actions, "action")

    def fit_processors_to(self, observation: Arrays, actions: npt.NDArray[np.float32]) -> None:
        """``fit_processors`` from demonstration arrays: observation fields [M, ...], actions [M, C, A]."""
        count = len(actions)
        parts = [np.asarray(observation[field.name], np.float32).reshape(count, -1) for field in self.states]
        states = np.concatenate(parts, axis=1) if parts else np.zeros((count, 1), np.float32)
        self.fit_processors(states, actions)

    def normalisation(self) -> dict[str, str]:
        """Hash of mode and statistics, for fingerprints."""
        return {"state": self.state_normaliser.digest(), "action": self.action_normaliser.digest()}

    # --- prefix -----------------------------------------------------------------------------

    def _embed(self, observation: Arrays) -> Tensor:
        """Prefix tokens [B, S, W] of images and instruction."""
        parts = []
        for field in self.images:
            pixels = self._tensor(observation[field.name]).permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
            parts.append(self.stem(pixels) + self.image_position[field.name])
        tokens = self.tokens[self._tensor(observation["task"])]
        parts.append(self.words(tokens) + self.word_position)
        return torch.cat(parts, dim=1)

    def _levels(self, x: Tensor, first: int, last: int) -> tuple[Tensor, list[KeyValue]]:
        caches = []
        for block in self.prefix_blocks[first:last]:
            x, key_value = block(x)
            caches.append(key_value)
        return x, caches

    def _encode(self, observation: Arrays) -> tuple[list[KeyValue], Tensor]:
        """(k, v) of every level and the pooled prefix [B, W]."""
        x, caches = self._levels(self._embed(observation), 0, len(self.prefix_blocks))
        return caches, x.mean(1)

    @torch.no_grad()
    def prefix(self, observation: Arrays, record: Arrays) -> Prefix:
        """What no trainable weight touches; see ``Prefix``. Leading dimension B in every tensor."""
        if self.frozen_levels == 0:
            return ()
        if PREFIX in record:
            return self._unpack(self._tensor(record[PREFIX]))
        x, caches = self._levels(self._embed(observation), 0, self.frozen_levels)
        rest = x.mean(1) if self.frozen_levels == len(self.prefix_blocks) else x
        return *(tensor for key_value in caches for tensor in key_value), rest

    def _pack(self, caches: list[KeyValue], pooled: Tensor) -> Tensor:
        """Keys and values of every level and the pooled prefix as one row [B, N] each."""
        flat = [tensor.flatten(1) for key_value in caches for tensor in key_value]
        return torch.cat((*flat, pooled), dim=1)

    def _unpack(self, packed: Tensor) -> Prefix:
        """The inverse of ``_pack``."""
        levels, width, heads = len(self.prefix_blocks), self.sizes.width, self.sizes.heads
        each, pooled = packed[:, :-width], packed[:, -width:]
        shape = (len(packed), 2 * levels, heads, -1, width // heads)
        return *each.reshape(shape).unbind(1), pooled

    def _complete(self, prefix: Prefix, observation: Arrays) -> tuple[list[KeyValue], Tensor]:
        """``_encode``'s result from what ``prefix`` kept."""
        if not prefix:
            return self._encode(observation)
        *flat, rest = prefix
        caches = list(zip(flat[::2], flat[1::2], strict=True))
        if rest.ndim == 2:
            return caches, rest
        x, more = self._levels(rest, self.frozen_levels, len(self.prefix_blocks))
        return caches + more, x.mean(1)

    # --- heads ------------------------------------------------------------------------------

    def velocity(self, x: Tensor, time: Tensor, state: Tensor, caches: list[KeyValue]) -> Tensor:
        """Flow velocity of M noisy chunks for each prefix.

        Args:
            x: normalised noisy chunks [B, M, C, A].
            time: flow time of each [B, M].
            state: normalised proprioception [B, state].
            caches: (k, v) of every level.

        Returns:
            v [B, M, C, A].
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
        actions = y.view(batch, samples, chunk + 1, -1)[:, :, 1:]
        velocity: Tensor = self.action_out_proj(self.expert_norm(actions))
        return velocity

    def _value(self, pooled: Tensor, state: Tensor, observation: Arrays) -> Tensor:
        elapsed = self._tensor(np.asarray(observation["elapsed"], np.float32))[:, None]
        value: Tensor = self.value_head(torch.cat((pooled, state, elapsed), dim=1))
        return value

    def _log_prob(self, chain_from: Tensor, chain_to: Tensor, velocity: Tensor, index: Tensor) -> Tensor:
        settings = self.settings
        mean, std = flow.transition(
            settings.method, chain_from, velocity, index, settings.denoise_steps, settings.noise_level
        )
        return self.reduction(flow.gaussian_log_prob(chain_to, mean, std))

    # --- entry points -----------------------------------------------------------------------

    @torch.inference_mode()
    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """Action records by ``record_spec`` name for raw observations [B, ...].

        The prefix is computed once for all denoise steps. Noise comes from ``keys`` alone, so a
        record does not depend on the batch it was computed in (up to float rounding).
        """
        settings = self.settings
        caches, pooled = self._encode(observation)
        state = self._state(observation)
        choices = flow.stochastic_choices(settings.method, settings.denoise_steps)
        noise = draw_flow_noise(keys, (self.interface.chunk, self.interface.action_dim), choices)
        index = self._tensor(noise.index).long()
        chain = flow.sample(
            lambda x, t: self.velocity(x[:, None], t[:, None], state, caches)[:, 0],
            self._tensor(noise.initial),
            self._tensor(noise.step),
            index,
            method=settings.method,
            steps=settings.denoise_steps,
            noise_level=settings.noise_level,
            explore=explore,
        )
        log_prob = self._log_prob(chain.chain_from, chain.chain_to, chain.velocity, index)
        stored = {PREFIX: _numpy(self._pack(caches, pooled))} if settings.store_prefix else {}
        return {
            **stored,
            "action": _numpy(settings.action_scale * self.action_normaliser.restore(chain.final)),
            "chain_from": _numpy(chain.chain_from),
            "chain_to": _numpy(chain.chain_to),
            "step_index": noise.index,
            "log_prob": _numpy(log_prob),
            "value": _numpy(self._value(pooled, state, observation)),
        }

    @torch.inference_mode()
    def values(self, observation: Arrays) -> npt.NDArray[np.float32]:
        """V(s) [B] of raw observations, the number that ``act`` records."""
        _, pooled = self._encode(observation)
        return _numpy(self._value(pooled, self._state(observation), observation))

    def evaluate(self, prefix: Prefix, observation: Arrays, record: Arrays) -> Evaluation:
        """Log-prob (by ratio level), entropy (zeros) and value [B] of stored records."""
        caches, pooled = self._complete(prefix, observation)
        state = self._state(observation)
        chain_from = self._tensor(record["chain_from"])
        index = self._tensor(record["step_index"]).long()
        time = flow.times(index, self.settings.denoise_steps)
        velocity = self.velocity(chain_from[:, None], time[:, None], state, caches)[:, 0]
        log_prob = self._log_prob(chain_from, self._tensor(record["chain_to"]), velocity, index)
        value = self._value(pooled, state, observation)
        return Evaluation(log_prob=log_prob, entropy=torch.zeros_like(value), value=value)

    def value(self, prefix: Prefix, observation: Arrays) -> Tensor:
        """V(s) [B] with gradient, from what ``prefix`` kept."""
        _, pooled = self._complete(prefix, observation)
        return self._value(pooled, self._state(observation), observation)

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
        return F.mse_loss(self.velocity(x, time, self._state(observation), caches), goal)

    # --- weights ----------------------------------------------------------------------------

    def trainable(self, stage: str) -> list[tuple[str, nn.Parameter]]:
        """Parameters of a stage: ``imitation`` (all but the value head), ``reinforcement`` (what
        ``freeze_prefix`` leaves, value head included) or ``value`` (the value head)."""
        names = dict(self.named_parameters())
        if stage == "value":
            return [(name, p) for name, p in names.items() if name.startswith("value_head.")]
        if stage == "imitation":
            return [(name, p) for name, p in names.items() if not name.startswith("value_head.")]
        if stage == "reinforcement":
            return [(name, p) for name, p in names.items() if not self._is_frozen(name)]
        raise ValueError(f"stage {stage!r} is not one of imitation, reinforcement, value")

    def _is_frozen(self, name: str) -> bool:
        if name.startswith("prefix_blocks."):
            return int(name.split(".")[1]) < self.frozen_levels
        embeddings = ("stem.", "image_position.", "words.", "word_position")
        return self.frozen_levels > 0 and name.startswith(embeddings)

    def fsdp_units(self) -> list[nn.Module]:
        """Every block, sharded by itself."""
        return [*self.prefix_blocks, *self.expert_blocks]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all parameters and buffers by name."""
        return {name: _numpy(tensor).copy() for name, tensor in self.state_dict().items()}

    def load_arrays(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over ``arrays()`` of an equal network; copies, never aliases.

        Raises:
            UserError: names or shapes differ; nothing was copied.
        """
        given = {name: torch.from_numpy(np.asarray(array)) for name, array in weights.items()}
        copy_into(self.state_dict(), given, "policy weights")


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # of ranks that share it
    return whole.detach().cpu().numpy()


def _own_sample_only(samples: int, tokens: int, like: Tensor) -> Tensor:
    """[M·Q, M·Q]: 0 inside a flow sample, −inf between different ones."""
    sample = torch.arange(samples, device=like.device).repeat_interleave(tokens)
    return torch.where(sample[:, None] == sample[None], 0.0, float("-inf")).to(like.dtype)
