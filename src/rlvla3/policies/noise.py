"""Counter-based exploration noise: a sample's numbers depend on its key only.

Not on the batch it is computed in, the process, the device or the order of requests.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.policies.api import NoiseKey

Float = npt.NDArray[np.float32]
_UINT64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNoise:
    """What one batch of flow sampling draws."""

    initial: Float
    """x_0 [B, H, D], standard normal."""
    step: Float
    """Noise of the W stochastic denoise steps [B, W, H, D], standard normal."""
    index: npt.NDArray[np.int32]
    """Index of the first stochastic denoise step of each sample [B]."""


def keyed_generator(key: NoiseKey) -> np.random.Generator:
    """A Philox stream named by ``key``: (seed, episode) is its key, chunk its counter."""
    return np.random.Generator(
        np.random.Philox(
            key=np.array([key.seed & _UINT64, key.episode & _UINT64], dtype=np.uint64),
            counter=np.array([0, 0, 0, key.chunk & _UINT64], dtype=np.uint64),
        )
    )


def draw_flow_noise(
    keys: tuple[NoiseKey, ...], shape: tuple[int, int], choices: int, window: int = 1
) -> FlowNoise:
    """Draw the noise of a batch, each sample from its own stream.

    The initial noise is drawn first, so that exploring and deterministic sampling start equally.

    Args:
        keys: one for each sample [B].
        shape: (H, D) of a sample's action chunk.
        choices: the first stochastic step is uniform in 0 … choices − 1.
        window: W, stochastic steps of each sample.
    """
    batch = len(keys)
    initial = np.empty((batch, *shape), np.float32)
    step = np.empty((batch, window, *shape), np.float32)
    index = np.empty(batch, np.int32)
    for row, key in enumerate(keys):
        stream: Any = keyed_generator(key)
        stream.standard_normal(dtype=np.float32, out=initial[row])
        stream.standard_normal(dtype=np.float32, out=step[row])
        index[row] = stream.integers(choices)
    return FlowNoise(initial=initial, step=step, index=index)


def draw_gumbel(keys: tuple[NoiseKey, ...], shape: tuple[int, ...]) -> Float:
    """Standard Gumbel noise [B, *shape], each sample from its own stream: the arg max of logits plus such
    noise is a sample of their softmax."""
    gumbel = np.empty((len(keys), *shape), np.float32)
    for row, key in enumerate(keys):
        gumbel[row] = keyed_generator(key).gumbel(size=shape)
    return gumbel
