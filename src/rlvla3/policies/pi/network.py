"""The networks of π0 and π0.5.

Letters as in ``flow_model``; S prefix tokens (every camera's patches, then the prompt), Q suffix tokens (π0's
proprioception, then H actions), W and E widths of language model and expert, K keys of a level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlvla3.policies import flow
from rlvla3.policies.api import Arrays, PolicyInterface
from rlvla3.policies.blocks.attention import KeyValue, rotation
from rlvla3.policies.blocks.heads import NoiseNet, ValueHead, time_embedding
from rlvla3.policies.flow_model import FlowModel, own_sample_only
from rlvla3.policies.pi.modules import PaligemmaWithExpert
from rlvla3.policies.pi.processing import Processing, Tokens
from rlvla3.policies.pi.settings import PiSettings
from rlvla3.policies.pi.shapes import PARTS
from rlvla3.policies.pi.sizes import PiSizes
from rlvla3.policies.publishing import NOISE_NET, VALUE_HEAD
from rlvla3.policies.transforms import Normaliser
from rlvla3.transforms.statistics import Statistics


@dataclass(frozen=True, slots=True)
class PiContext:
    """What does not change from one denoise step to the next."""

    caches: list[KeyValue]
    """Keys and values of every level of the prefix."""
    there: Tensor
    """Bool [B, S]: prefix tokens that are no padding."""
    pooled: Tensor
    """[B, W]: mean of the prefix's output over those, for π0.5's value; [B, 0] for π0."""
    state: Tensor
    """[B, state width]: normalised and padded proprioception."""
    elapsed: Tensor
    """[B, 1]: share of the step limit that is over."""


class PiNetwork(FlowModel[PiContext]):
    """What both families share; ``Pi0Network`` and ``Pi05Network`` add how state and time enter."""

    adaptive = False
    """Whether time modulates the expert's norms."""

    def __init__(
        self, settings: PiSettings, sizes: PiSizes, interface: PolicyInterface, processing: Processing
    ) -> None:
        super().__init__()
        self.settings, self.sizes, self.interface, self.processing = settings, sizes, interface, processing
        self.paligemma_with_expert = PaligemmaWithExpert(sizes, adaptive=self.adaptive)
        self.action_in_proj = nn.Linear(sizes.action_width, sizes.expert.width)
        self.action_out_proj = nn.Linear(sizes.expert.width, sizes.action_width)
        self.add_projections()
        self.add_own()
        shape = (processing.horizon, sizes.action_width)
        self.set_flow(settings, shape, (interface.chunk, processing.action_size))

    def add_own(self) -> None:
        """Make what no published folder has: heads for reinforcement learning, and statistics."""
        settings, sizes = self.settings, self.sizes
        self.value_head = ValueHead(self.value_inputs, sizes.value_head)
        if settings.method == "noise":
            self.noise_net = NoiseNet(sizes.expert.width, sizes.action_width)
        self.state_normaliser = Normaliser(max(1, self.processing.state_size), settings.normalisation)
        self.action_normaliser = Normaliser(self.processing.action_size, settings.normalisation)

    # --- what the families differ in --------------------------------------------------------

    value_inputs: int

    def add_projections(self) -> None:
        """Make the modules through which state and time enter."""
        raise NotImplementedError

    def suffix(self, actions: Tensor, clock: Tensor, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """Suffix tokens and condition of the expert.

        Args:
            actions: embedded noisy chunks [B, M, H, E].
            clock: embedded times [B, M, E].
            state: [B, state width].

        Returns:
            Tokens [B, M, Q, E], and the condition [B, M, E] of adaptive norms or None.
        """
        raise NotImplementedError

    def value_of(self, context: PiContext) -> Tensor:
        """V(s) [B]."""
        raise NotImplementedError

    def prompts(self, observation: Arrays, state: Tensor) -> Tokens:
        """Tokens [B, prompt length] and which are there, for normalised proprioception [B, n]."""
        raise NotImplementedError

    # --- prefix -----------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.action_in_proj.weight.device

    @property
    def _language(self) -> nn.Module:
        found: nn.Module = self.paligemma_with_expert.paligemma.model.language_model
        return found

    def _state(self, observation: Arrays) -> Tensor:
        """Normalised proprioception [B, n]; without any [B, 0]."""
        raw = self.tensor(self.processing.state(observation))
        return self.state_normaliser.normalise(raw) if self.processing.state_size else raw

    def _padded(self, state: Tensor) -> Tensor:
        return F.pad(state, (0, self.sizes.state_width - state.shape[1]))

    def _embedded(self, observation: Arrays, state: Tensor) -> tuple[Tensor, Tensor]:
        """Prefix tokens [B, S, W], and which of them are there."""
        model, parts, there = self.paligemma_with_expert.paligemma.model, [], []
        pictures, shown = self.processing.pictures(observation)
        for picture, visible in zip(pictures, shown, strict=True):
            patches = model.seen(self.tensor(picture).permute(0, 3, 1, 2))
            parts.append(patches)
            there.append(torch.full(patches.shape[:2], visible, device=self.device))
        tokens, given = self.prompts(observation, state)
        parts.append(model.language_model.embedded(self.tensor(tokens)).type_as(parts[0]))
        there.append(self.tensor(given))
        return torch.cat(parts, dim=1), torch.cat(there, dim=1)

    def _encoded(self, observation: Arrays, state: Tensor) -> tuple[list[KeyValue], Tensor, Tensor]:
        """Keys and values of every level, which tokens are there, and the pooled output."""
        x, there = self._embedded(observation, state)
        positions = there.long().cumsum(1) - 1
        turn = rotation(positions, self.sizes.language.head_size)
        # Padding looks too, since a token that may look nowhere is undefined in some kernels; nobody looks
        # at it.
        x, caches = self._language(x, turn, there[:, None, :], keys_only=not self.adaptive)
        if not self.adaptive:
            return caches, there, x[:, 0, :0]
        weight = there[..., None].to(x.dtype)
        return caches, there, (x * weight).sum(1) / weight.sum(1)

    @torch.no_grad()
    def prefix(self, observation: Arrays, record: Arrays) -> tuple[Tensor, ...]:
        """Keys and values of every level, which tokens are there, pooled output; () if any of it trains."""
        if self.settings.train != "expert":
            return ()
        caches, there, pooled = self._encoded(observation, self._state(observation))
        return *(part for level in caches for part in level), there, pooled

    def context(self, observation: Arrays, prefix: tuple[Tensor, ...] = ()) -> PiContext:
        """Prefix, proprioception and elapsed time of observations."""
        state = self._state(observation)
        if prefix:
            *flat, there, pooled = prefix
            caches = list(zip(flat[::2], flat[1::2], strict=True))
        else:
            caches, there, pooled = self._encoded(observation, state)
        elapsed = self.tensor(np.asarray(observation["elapsed"], np.float32))[:, None]
        return PiContext(caches, there, pooled, self._padded(state), elapsed)

    # --- expert -----------------------------------------------------------------------------

    def features(self, x: Tensor, time: Tensor, context: PiContext) -> Tensor:
        """The expert's output [B, M, H, E] for noisy chunks [B, M, H, D] at times [B, M]."""
        samples = x.shape[1]
        embedded = self.action_in_proj(x.to(self.action_in_proj.weight.dtype))
        clock = time_embedding(time, embedded.shape[-1]).type_as(embedded)
        tokens, condition = self.suffix(embedded, clock, context.state.type_as(embedded))
        length = tokens.shape[2]
        if condition is not None:
            condition = condition[:, :, None].expand_as(tokens).flatten(1, 2)
        place = torch.arange(length, device=x.device).repeat(samples)
        positions = context.there.sum(1, keepdim=True) + place
        turn = rotation(positions, self.sizes.expert.head_size)
        y, _ = self.paligemma_with_expert.gemma_expert.model(
            tokens.flatten(1, 2), turn, self._mask(context.there, samples, length), context.caches, condition
        )
        features: Tensor = y.unflatten(1, (samples, length))[:, :, -self.processing.horizon :]
        return features.contiguous()

    def _mask(self, there: Tensor, samples: int, length: int) -> Tensor:
        """Bool [B, M·Q, S + M·Q]: a suffix token sees the prefix, and of its own sample the blocks up to its
        own; proprioception is a block of its own and does not see actions."""
        own = own_sample_only(samples, length, there.device)
        before = length - self.processing.horizon
        block = (torch.arange(length, device=there.device) >= before).long().repeat(samples)
        own = own & (block[None, :] <= block[:, None])
        prefix = there[:, None, :].expand(-1, len(own), -1)
        return torch.cat((prefix, own.expand(len(there), -1, -1)), dim=2)

    def predict(self, x: Tensor, time: Tensor, context: PiContext) -> flow.Prediction:
        """Velocity [B, M, H, D], float32, and for ``method: noise`` the noise net's output."""
        features = self.features(x, time, context).to(self.action_out_proj.weight.dtype)
        raw = self.noise_net(features) if self.settings.method == "noise" else None
        velocity: Tensor = self.action_out_proj(features)
        return velocity.float(), raw

    # --- actions ----------------------------------------------------------------------------

    def to_env(self, chunk: Tensor, observation: Arrays) -> npt.NDArray[np.float32]:
        """[B, H, D] → [B, C, A]."""
        real = self.action_normaliser.restore(chunk[..., : self.processing.action_size])
        said = (self.settings.action_scale * real).cpu().numpy()
        return self.processing.to_env(said, observation)

    def from_env(self, actions: npt.NDArray[np.float32], observation: Arrays) -> tuple[Tensor, Tensor]:
        """[B, C, A] → normalised and padded [B, H, D], and what of it was demonstrated."""
        said = self.tensor(self.processing.from_env(actions, observation).astype(np.float32))
        normal = self.action_normaliser.normalise(said)
        padding = self.sizes.action_width - normal.shape[-1]
        known = np.zeros(self.flow_shape, bool)
        known[: self.interface.chunk, : normal.shape[-1]] = True
        return F.pad(normal, (0, padding)), self.tensor(known)

    def fit_processors(self, states: npt.NDArray[np.float32], actions: npt.NDArray[np.float32]) -> None:
        """Set the normalisation statistics from states [M, n] and actions [..., A] in the policy's units."""
        if self.processing.state_size:
            self.state_normaliser.fit(states, "proprioception")
        self.action_normaliser.fit(actions, "action")

    def fit_processors_to(self, observation: Arrays, actions: npt.NDArray[np.float32]) -> None:
        """``fit_processors`` from demonstration arrays: observation fields [M, ...], actions [M, C, A]."""
        said = self.processing.from_env(actions, observation)[:, : self.interface.chunk]
        self.fit_processors(self.processing.state(observation), said.astype(np.float32))

    def use_statistics(self, statistics: Mapping[str, Statistics]) -> None:
        """Take the statistics of ``state`` and ``action`` that weights were trained with.

        Raises:
            UserError: they are of another number of dimensions than this simulator has.
        """
        parts = {"state": self.state_normaliser, "action": self.action_normaliser}
        if not self.processing.state_size:
            del parts["state"]
        for what, normaliser in parts.items():
            normaliser.use(statistics[what], what)

    def normalisation(self) -> dict[str, str]:
        """Hash of mode and statistics, for fingerprints."""
        return {"state": self.state_normaliser.digest(), "action": self.action_normaliser.digest()}

    # --- weights ----------------------------------------------------------------------------

    def trainable(self, stage: str) -> list[tuple[str, nn.Parameter]]:
        """Parameters of a stage: ``imitation`` (all but the value head and the noise net),
        ``reinforcement`` (what ``train`` says, and the value head) or ``value`` (that head)."""
        named = list(self.named_parameters())
        if stage == "value":
            return [(name, p) for name, p in named if name.startswith(VALUE_HEAD)]
        if stage == "imitation":
            return [(name, p) for name, p in named if not name.startswith((VALUE_HEAD, NOISE_NET))]
        if stage == "reinforcement":
            return [(n, p) for n, p in named if n.startswith((VALUE_HEAD, *PARTS[self.settings.train]))]
        raise ValueError(f"stage {stage!r} is not one of imitation, reinforcement, value")

    def fsdp_units(self) -> list[nn.Module]:
        """Every block of the three transformers, sharded by itself."""
        whole = self.paligemma_with_expert
        vision = whole.paligemma.model.vision_tower.vision_model.encoder.layers
        return [*vision, *whole.paligemma.model.language_model.layers, *whole.gemma_expert.model.layers]


class Pi0Network(PiNetwork):
    """π0: the state is the expert's first token, time is mixed into every action token."""

    @property
    def value_inputs(self) -> int:  # type: ignore[override]
        """The expert's output, the state, elapsed time."""
        return self.sizes.expert.width + self.sizes.state_width + 1

    def add_projections(self) -> None:
        """State, and action with time."""
        width = self.sizes.expert.width
        self.state_proj = nn.Linear(self.sizes.state_width, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)

    def suffix(self, actions: Tensor, clock: Tensor, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """[state, actions mixed with time]; no condition."""
        mixed = torch.cat((actions, clock[:, :, None].expand_as(actions)), dim=-1)
        mixed = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(mixed)))
        first = self.state_proj(state)[:, None, None].expand(-1, actions.shape[1], 1, -1)
        return torch.cat((first, mixed), dim=2), None

    def prompts(self, observation: Arrays, state: Tensor) -> Tokens:
        """The instruction."""
        return self.processing.instruction_tokens(observation)

    def value_of(self, context: PiContext) -> Tensor:
        """From the mean of the expert's action tokens where nothing but noise's mean (zero) is denoised at
        t = 1: one input for one observation, whatever was sampled."""
        batch = len(context.state)
        x = torch.zeros(batch, 1, *self.flow_shape, device=self.device)
        features = self.features(x, torch.ones(batch, 1, device=self.device), context)[:, 0].mean(1)
        return _value(self, features, context)


class Pi05Network(PiNetwork):
    """π0.5: the state is told in the prompt, time modulates the expert's norms."""

    adaptive = True

    @property
    def value_inputs(self) -> int:  # type: ignore[override]
        """The prefix's pooled output, the state, elapsed time."""
        return self.sizes.language.width + self.sizes.state_width + 1

    def add_projections(self) -> None:
        """Time."""
        width = self.sizes.expert.width
        self.time_mlp_in = nn.Linear(width, width)
        self.time_mlp_out = nn.Linear(width, width)

    def suffix(self, actions: Tensor, clock: Tensor, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """The actions; time as condition."""
        return actions, F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(clock))))

    def prompts(self, observation: Arrays, state: Tensor) -> Tokens:
        """The instruction, and as the settings say the state."""
        if not getattr(self.settings, "discrete_state_input", False):
            return self.processing.instruction_tokens(observation)
        return self.processing.state_tokens(observation, state.float().cpu().numpy())

    def value_of(self, context: PiContext) -> Tensor:
        """From the mean of the prefix's output tokens."""
        return _value(self, context.pooled, context)


def _value(network: PiNetwork, features: Tensor, context: PiContext) -> Tensor:
    features = features.float()
    if network.settings.detach_value:
        features = features.detach()
    value: Tensor = network.value_head(torch.cat((features, context.state, context.elapsed), dim=1))
    return value
