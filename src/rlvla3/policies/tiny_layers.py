"""Names of the tiny policy's weights, known without its network and without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlvla3.policies.tiny import Architecture, TinySettings

NOISE_NET = "noise_net."
VALUE_HEAD = "value_head."
_BLOCK = ("qkv", "out", "up", "down")
_PERCEPTRON = ("layers.0", "layers.2", "layers.4")


def frozen_levels(settings: TinySettings, sizes: Architecture) -> int:
    """Levels of the prefix that reinforcement learning leaves as they are, the first ones."""
    return sizes.layers - settings.unfreeze_last_blocks if settings.freeze_prefix else 0


def is_frozen(name: str, levels: int) -> bool:
    """Whether reinforcement learning leaves a parameter as it is; ``levels``: of ``frozen_levels``."""
    if name.startswith("prefix_blocks."):
        return int(name.split(".")[1]) < levels
    return levels > 0 and name.startswith(("stem.", "image_position.", "words.", "word_position"))


def linear_layers(settings: TinySettings, sizes: Architecture) -> Iterator[str]:
    """Names of the linear layers, in the network's order."""
    if settings.stem == "linear":
        yield "stem.projection"
    for level in range(sizes.layers - 1):
        yield from (f"prefix_blocks.{level}.{name}" for name in _BLOCK)
    yield f"prefix_blocks.{sizes.layers - 1}.kv"
    yield "state_proj"
    if settings.head == "flow":
        yield from ("action_in_proj", "action_time_mlp_in", "action_time_mlp_out")
    for level in range(sizes.layers):
        yield from (f"expert_blocks.{level}.{name}" for name in _BLOCK)
    yield "action_out_proj" if settings.head == "flow" else "token_out"
    yield from (f"{VALUE_HEAD}{name}" for name in _PERCEPTRON)
    if settings.head == "flow" and settings.method == "noise":
        yield from (f"{NOISE_NET}{name}" for name in _PERCEPTRON)
