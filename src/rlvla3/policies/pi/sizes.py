"""Sizes of the two families' networks. Importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlvla3.policies.blocks.sizes import GemmaSizes, VisionSizes

Family = Literal["pi0", "pi05"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiSizes:
    """Everything that decides which weights there are, but for the family."""

    vision: VisionSizes
    language: GemmaSizes
    expert: GemmaSizes
    vocabulary: int
    state_width: int
    """Numbers of proprioception that the network reads, padded."""
    action_width: int
    """D: numbers of an action as the network says it, padded."""
    horizon: int
    """H: actions that it says at once; 0: as many as are executed."""
    value_head: tuple[int, ...]
    """Hidden widths of the value head."""


FULL = PiSizes(
    vision=VisionSizes(width=1152, depth=27, mlp=4304, heads=16, patch=14, image=224),
    language=GemmaSizes(width=2048, depth=18, mlp=16384, heads=8, groups=1, head_size=256),
    expert=GemmaSizes(width=1024, depth=18, mlp=4096, heads=8, groups=1, head_size=256),
    vocabulary=257152,
    state_width=32,
    action_width=32,
    horizon=50,
    value_head=(512, 256, 128),
)
"""As published: PaliGemma 3B at 224 pixels and an action expert of 300 million parameters."""
TINY = PiSizes(
    vision=VisionSizes(width=96, depth=3, mlp=256, heads=4, patch=8, image=64),
    language=GemmaSizes(width=128, depth=4, mlp=384, heads=4, groups=1, head_size=32),
    expert=GemmaSizes(width=96, depth=4, mlp=256, heads=4, groups=1, head_size=32),
    vocabulary=2048,
    state_width=32,
    action_width=8,
    horizon=0,
    value_head=(256, 256),
)
"""The same structure for CPUs and tests; its weights are random."""
PRESETS = {"full": FULL, "tiny": TINY}
