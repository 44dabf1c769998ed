"""Settings of how any policy's model is built. Importing this module does not import torch."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rlvla3.settings import Settings


def differing(settings: Settings) -> dict[str, Any]:
    """The settings that are not the defaults of their class."""
    fields = type(settings).model_fields
    return {
        name: value
        for name, info in fields.items()
        if (value := getattr(settings, name)) != info.get_default(call_default_factory=True)
    }


class LoraSettings(Settings):
    """Low-rank adapters (LoRA, arXiv 2106.09685) for reinforcement learning."""

    rank: int = Field(default=0, ge=0, le=4096)
    """r: rank of the adapters; 0: none, what the policy's own settings leave trains whole. A layer whose
    smaller side is less than r gets adapters of that side's rank."""
    alpha: float = Field(default=16.0, gt=0)
    """The adapters' product is scaled by alpha/rank."""
    targets: tuple[str, ...] = ()
    """Regular expressions, found anywhere in the names of linear layers that get adapters, such as
    ``expert_blocks.*qkv``; empty: every linear layer of the part that would train."""
    train: tuple[str, ...] = ()
    """Regular expressions for names of base parameters that train as well, whole; the value head does
    anyway."""

    @field_validator("targets", "train")
    @classmethod
    def _expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _effects(self) -> "LoraSettings":
        changed = [name for name in ("alpha", "targets", "train") if name in differing(self)]
        if not self.rank and changed:
            raise ValueError(
                f"rank 0 adds no adapters: {', '.join(changed)} has no effect; set rank, or leave it out"
            )
        return self


class ModelSettings(Settings):
    """What is done to the model of any policy."""

    lora: LoraSettings = LoraSettings()
    """Low-rank adapters."""
    publish: Literal["whole", "trained"] = "whole"
    """What a version hands to Generators: the whole policy with adapters folded in, or only what trains;
    Generators then build the frozen rest themselves, from ``weights`` or the seed."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of forward passes in Trainer and Generators. Weights that train, optimiser, value head and
    log-probs are float32 in any case."""
    frozen_weights: Literal["float32", "bfloat16"] = "float32"
    """How linear layers, convolutions and embeddings that do not train are held; ``bfloat16`` takes half the
    memory and needs ``precision: bfloat16``, with which it changes nothing for weights that came in it."""
    activation_checkpointing: bool = False
    """Whether the Trainer computes the activations of the policy's blocks again in the backward pass
    instead of keeping them: less memory for one more forward pass of the blocks that train."""

    @model_validator(mode="after")
    def _lowers(self) -> "ModelSettings":
        if self.frozen_weights == "bfloat16" and self.precision != "bfloat16":
            raise ValueError(
                f"frozen_weights bfloat16 needs precision bfloat16, it is {self.precision}; set both, or none"
            )
        return self
