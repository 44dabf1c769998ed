"""A small vision-language-action policy of our own, trained from scratch, with flow matching or tokens.

The shape of π0 at a thousandth of its size: images and instruction go through a prefix of
transformer blocks that return their (k, v); an action expert attends to these and denoises
an action chunk, or decodes it as tokens in one pass. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.policies import tiny_layers
from rlvla3.policies.api import PREFIX, PolicyInterface
from rlvla3.policies.flow_settings import FlowSettings, check_law, record_of_chunk, record_of_flow
from rlvla3.settings import Settings

if TYPE_CHECKING:
    from rlvla3.policies.tiny_network import TinyNetwork

TOKEN_SPAN = {"quantile": 1.0, "mean_std": 3.0}
"""Normalised numbers that the token head can say lie in ±span: the 1 % and 99 % quantiles of the
demonstrations, or three of their standard deviations."""


class TinySettings(FlowSettings):
    """Settings of the tiny policy."""

    size: Literal["1.4M", "3.5M"] = "1.4M"
    """Preset of width, expert_width, layers and heads, named by its number of parameters."""
    width: int | None = Field(default=None, ge=8, le=8192)
    """Width of the prefix; unset takes the preset's (128 or 192)."""
    expert_width: int | None = Field(default=None, ge=8, le=8192)
    """Width of the action expert; unset takes the preset's (128 or 176)."""
    layers: int | None = Field(default=None, ge=1, le=256)
    """Blocks of the prefix and of the expert; unset takes the preset's (3 or 4)."""
    heads: int | None = Field(default=None, ge=1)
    """Attention heads; must divide the width; unset takes the preset's (4 or 6)."""
    patch: Literal[4, 8, 16] = 8
    """Pixels of a patch's edge; must divide the height and width of every image."""
    stem: Literal["convolution", "linear"] = "convolution"
    """How pixels become patch embeddings: stride-2 convolutions, or one linear map of a patch."""
    text_length: int = Field(default=12, ge=1, le=4096)
    """Words of an instruction that are read; longer ones are cut."""
    head: Literal["flow", "tokens"] = "flow"
    """How actions are made: denoised in ``denoise_steps``, or decoded as tokens of 256 values each in one
    pass (then ``normalisation: quantile`` is best: it uses all values)."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits of the token head in rollouts."""
    normalisation: Literal["mean_std", "quantile"] = "mean_std"
    """Statistics that normalise proprioception and actions."""
    freeze_prefix: bool = True
    """Whether reinforcement learning leaves the prefix as it is (a training pass over 128
    chunks of one 64-pixel image then costs about a ninth)."""
    unfreeze_last_blocks: int = Field(default=0, ge=0)
    """With a frozen prefix: this many of its last blocks train nevertheless."""
    store_prefix: bool = False
    """Whether a rollout stores the frozen prefix of every chunk, so that the Trainer need not compute
    it again: faster updates for a larger slab. Needs freeze_prefix and unfreeze_last_blocks 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes after the preset."""

    width: int
    expert_width: int
    layers: int
    heads: int


_PRESETS = {
    "1.4M": Architecture(width=128, expert_width=128, layers=3, heads=4),
    "3.5M": Architecture(width=192, expert_width=176, layers=4, heads=6),
}


def architecture(settings: TinySettings) -> Architecture:
    """The preset with the explicit sizes put in."""
    preset = _PRESETS[settings.size]
    sizes = Architecture(
        width=settings.width or preset.width,
        expert_width=settings.expert_width or preset.expert_width,
        layers=settings.layers or preset.layers,
        heads=settings.heads or preset.heads,
    )
    if sizes.width % sizes.heads:
        raise UserError(
            f"policy.options.heads = {sizes.heads} must divide policy.options.width = {sizes.width}; choose "
            "another of them"
        )
    if settings.unfreeze_last_blocks > sizes.layers:
        raise UserError(
            f"policy.options.unfreeze_last_blocks = {settings.unfreeze_last_blocks} exceeds the "
            f"{sizes.layers} prefix blocks; give at most {sizes.layers}"
        )
    return sizes


RESERVED = ("task", "elapsed")
"""Observation fields that the slab adds for every policy."""


def is_image(field: FieldSpec) -> bool:
    """Whether a raw field is a picture [H, W, 3] of bytes."""
    return field.dtype == "uint8" and len(field.shape) == 3 and field.shape[2] == 3


def split_fields(interface: PolicyInterface) -> tuple[tuple[FieldSpec, ...], tuple[FieldSpec, ...]]:
    """The interface's image fields and its proprioceptive (float) fields."""
    fields = tuple(field for field in interface.observation if field.name not in RESERVED)
    images = tuple(field for field in fields if is_image(field))
    states = tuple(field for field in fields if not is_image(field))
    for field in states:
        if not field.dtype.startswith("float"):
            raise UserError(
                f"observation field {field.name!r} is {field.dtype} {list(field.shape)}; the tiny "
                "policy reads uint8 images [H, W, 3] and float fields"
            )
    return images, states


class Tiny:
    """The policy family; ``build`` makes the network."""

    Settings: ClassVar[type[Settings]] = TinySettings

    def __init__(self, settings: TinySettings, interface: PolicyInterface) -> None:
        """Check the interface.

        Raises:
            UserError: a field is neither an image nor a float field, or the patch does not fit.
        """
        self.settings = settings
        self.interface = interface
        self.architecture = architecture(settings)
        if settings.store_prefix and (not settings.freeze_prefix or settings.unfreeze_last_blocks):
            raise UserError(
                "policy.options.store_prefix keeps what never changes: it needs freeze_prefix: true and "
                "unfreeze_last_blocks: 0; set these or leave it out"
            )
        if settings.head == "flow":
            check_law(settings)
        images, _ = split_fields(interface)
        for field in images:
            if field.shape[0] % settings.patch or field.shape[1] % settings.patch:
                raise UserError(
                    f"policy.options.patch = {settings.patch} must divide the {field.shape[0]}×"
                    f"{field.shape[1]} pixels of observation field {field.name!r}; choose another patch or "
                    "image size"
                )

    @property
    def record_spec(self) -> tuple[FieldSpec, ...]:
        """The executed actions and how they were chosen: denoise chain or tokens."""
        chunk = (self.interface.chunk, self.interface.action_dim)
        stored = (FieldSpec(name=PREFIX, shape=(self._prefix_size(),), dtype="float32"),)
        before = stored if self.settings.store_prefix else ()
        if self.settings.head == "flow":
            return *before, *record_of_flow(self.settings, chunk, chunk)
        tokens = (FieldSpec(name="tokens", shape=chunk, dtype="uint8"),)
        return *before, *record_of_chunk(self.settings, chunk, tokens)

    def linear_layers(self) -> Mapping[str, bool]:
        """Names of the network's linear layers, and whether reinforcement learning trains them."""
        levels = tiny_layers.frozen_levels(self.settings, self.architecture)
        return {
            name: not tiny_layers.is_frozen(name, levels) and not name.startswith(tiny_layers.VALUE_HEAD)
            for name in tiny_layers.linear_layers(self.settings, self.architecture)
        }

    def _prefix_size(self) -> int:
        """Numbers in the keys and values of all levels and the pooled prefix of one observation."""
        images, _ = split_fields(self.interface)
        patch, sizes = self.settings.patch, self.architecture
        patches = sum((field.shape[0] // patch) * (field.shape[1] // patch) for field in images)
        tokens = patches + self.settings.text_length
        return (2 * sizes.layers * tokens + 1) * sizes.width

    def build(self, device: str, seed: int) -> TinyNetwork:
        """Build the network; equal seeds give equal weights.

        Args:
            device: a torch device name such as ``cpu`` or ``cuda:0``.
            seed: of the initial weights.
        """
        import torch

        from rlvla3.policies.tiny_flow import FlowNetwork
        from rlvla3.policies.tiny_tokens import TokenNetwork

        family = TokenNetwork if self.settings.head == "tokens" else FlowNetwork
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = family(self.settings, self.architecture, self.interface)
        return network.to(device)
