"""Settings of π0 and π0.5. Importing this module does not import torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlvla3.policies.flow_settings import FlowSettings
from rlvla3.transforms.expecting import Concessions


class PiSettings(FlowSettings):
    """What both families can be told."""

    size: Literal["full", "tiny"] = "full"
    """``full``: as published, 3.3 billion parameters; ``tiny``: the same structure with 2 million, random."""
    horizon: int = Field(default=0, ge=0, le=1024)
    """H: actions that are denoised at once, of which ``simulator.chunk`` are executed; 0: the preset's (50,
    or as many as are executed)."""
    cameras: tuple[str, ...] = Field(default=("front", "wrist"), min_length=1)
    """Roles of the cameras that it looks through, in the order of the pre-training."""
    prompt_length: int = Field(default=48, ge=1, le=1024)
    """Tokens of a prompt, filled up with padding that nothing attends to; a longer one is refused."""
    tokenizer: str = ""
    """Folder with PaliGemma's ``tokenizer.json`` or ``tokenizer.model``; empty: words that are hashed, which
    only fit weights that were trained with them."""
    normalisation: Literal["mean_std", "quantile"] = "mean_std"
    """Statistics that normalise proprioception and actions."""
    pretrained: str = ""
    """Folder of published weights (docs/pretrained.md) to begin with; empty: random ones."""
    statistics: str = ""
    """Data set whose statistics are taken, where ``pretrained`` has those of several."""
    train: Literal["expert", "language", "all"] = "expert"
    """What reinforcement learning trains: the action expert and its projections; the language model as well;
    or all of it. The value head always trains."""
    detach_value: bool = True
    """Whether the value's gradient ends at the value head."""
    concessions: Concessions = Concessions()
    """What is accepted where policy and simulator do not fit (docs/transforms.md)."""


class Pi0Settings(PiSettings):
    """Settings of π0: proprioception is one token of the action expert."""


class Pi05Settings(PiSettings):
    """Settings of π0.5: proprioception is part of the prompt, flow time modulates the expert's norms."""

    prompt_length: int = Field(default=200, ge=1, le=1024)
    """Tokens of a prompt, filled up with padding that nothing attends to; a longer one is refused."""
    discrete_state_input: bool = True
    """Whether the prompt ends with the proprioception in 256 steps from −1 to 1; else it is not read."""
    normalisation: Literal["mean_std", "quantile"] = "quantile"
    """Statistics that normalise proprioception and actions."""
