"""Low-rank adapters among named arrays: folding them into the weights that they belong to. No torch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]

DOWN, UP, SCALE = "lora_down", "lora_up", "lora_scale"
"""Names of an adapter's tensors beside the ``weight`` [out, in] of its layer: [r, in], [out, r], []."""


def is_adapter(name: str) -> bool:
    """Whether a name is that of an adapter's tensor."""
    return name.rpartition(".")[2] in (DOWN, UP, SCALE)


def fold(arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    """The arrays without adapters: each weight W becomes W + scale·up·down, in float32.

    A rounding apart from what the Trainer computes with; the arrays themselves where there are none.
    """
    folded = {name: array for name, array in arrays.items() if not is_adapter(name)}
    for name in arrays:
        layer, _, kind = name.rpartition(".")
        if kind == UP:
            up, down, scale = (arrays[f"{layer}.{part}"] for part in (UP, DOWN, SCALE))
            weight = folded[f"{layer}.weight"]
            product = np.float32(scale) * (up.astype(np.float32) @ down.astype(np.float32))
            folded[f"{layer}.weight"] = (weight + product).astype(weight.dtype)
    return folded
