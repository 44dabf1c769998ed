"""The network of the tiny policy without its action head: processors, prefix, value, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rlvla3.messages import FieldSpec
from rlvla3.policies import flow, words
from rlvla3.policies.api import PREFIX, Arrays, PolicyInterface
from rlvla3.policies.blocks.heads import ValueHead
from rlvla3.policies.publishing import NOISE_NET, VALUE_HEAD, PublishedModule, as_array
from rlvla3.policies.tiny import Architecture, TinySettings, split_fields
from rlvla3.policies.tiny_blocks import (
    Block,
    ConvolutionStem,
    ExpertBlock,
    KeyValue,
    KeyValues,
    LinearStem,
    Norm,
    grid_positions,
)
from rlvla3.policies.tiny_layers import frozen_levels, is_frozen
from rlvla3.policies.transforms import Normaliser

Prefix = tuple[Tensor, ...]
"""What no trainable weight touches, batch first. Frozen: (k_1, v_1, …, k_L, v_L [B, H, S, K], pooled
[B, W]). With trainable last blocks: those of the frozen levels, then hidden tokens [B, S, W]. Not
frozen: ()."""

_VALUE_HIDDEN = (256, 256)


class TinyNetwork(PublishedModule):
    """What both action heads share; see ``rlvla3.policies.api.PolicyModel``.

    A head adds its modules in ``add_head``, and ``act``, ``evaluate`` and ``imitation_loss``. Letters as in
    ``tiny_blocks``; C actions of A dimensions, L levels.
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
        self.add_head()
        self.value_head = ValueHead(width + state_dim + 1, _VALUE_HIDDEN)
        self.add_last()

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
        self.frozen_levels = frozen_levels(settings, sizes)

    def add_head(self) -> None:
        """Make the head's modules, between the prefix's and the value head (initial weights are drawn in
        this order)."""
        raise NotImplementedError

    def add_last(self) -> None:
        """Make modules whose initial weights are drawn after all others; none."""

    def add_expert(self) -> None:
        """The expert's blocks, which attend to the prefix."""
        sizes, expert = self.sizes, self.sizes.expert_width
        head_size = sizes.width // sizes.heads
        self.expert_blocks = nn.ModuleList(
            ExpertBlock(expert, sizes.heads, head_size) for _ in range(sizes.layers)
        )
        self.expert_norm = Norm(expert)

    def _grid(self, field: FieldSpec) -> tuple[int, int]:
        """Rows and columns of an image's patches."""
        return field.shape[0] // self.settings.patch, field.shape[1] // self.settings.patch

    # --- processors -------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.word_position.device

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """An array on the network's device."""
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

    # --- value ------------------------------------------------------------------------------

    def _value(self, pooled: Tensor, state: Tensor, observation: Arrays) -> Tensor:
        elapsed = self._tensor(np.asarray(observation["elapsed"], np.float32))[:, None]
        value: Tensor = self.value_head(torch.cat((pooled, state, elapsed), dim=1))
        return value

    @torch.inference_mode()
    def values(self, observation: Arrays) -> npt.NDArray[np.float32]:
        """V(s) [B] of raw observations, the number that ``act`` records."""
        _, pooled = self._encode(observation)
        return as_array(self._value(pooled, self._state(observation), observation))

    def value(self, prefix: Prefix, observation: Arrays) -> Tensor:
        """V(s) [B] with gradient, from what ``prefix`` kept."""
        _, pooled = self._complete(prefix, observation)
        return self._value(pooled, self._state(observation), observation)

    # --- weights ----------------------------------------------------------------------------

    def trainable(self, stage: str) -> list[tuple[str, nn.Parameter]]:
        """Parameters of a stage: ``imitation`` (all but the value head and the noise net),
        ``reinforcement`` (what ``freeze_prefix`` leaves, and the value head) or ``value`` (that head)."""
        names = dict(self.named_parameters())
        if stage == "value":
            return [(name, p) for name, p in names.items() if name.startswith(VALUE_HEAD)]
        if stage == "imitation":
            return [(n, p) for n, p in names.items() if not n.startswith((VALUE_HEAD, NOISE_NET))]
        if stage == "reinforcement":
            return [(name, p) for name, p in names.items() if not is_frozen(name, self.frozen_levels)]
        raise ValueError(f"stage {stage!r} is not one of imitation, reinforcement, value")

    def fsdp_units(self) -> list[nn.Module]:
        """Every block, sharded by itself."""
        return [*self.prefix_blocks, *self.expert_blocks]
