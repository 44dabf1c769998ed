"""Numbers that a fixture's generator and its test both make of a name, so that no weights are kept."""

import zlib

import numpy as np
import numpy.typing as npt


def numbers(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Standard normal numbers, the same ones for equal names."""
    stream = np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode())))
    return stream.standard_normal(shape).astype(np.float32)


def weight(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """A weight: small enough that activations stay near 1, large enough that each one matters."""
    inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 0
    scale = 0.2 if not inputs else 1.0 / np.sqrt(inputs)
    if "embed_tokens" in name or "position_embedding" in name:
        scale = 0.2
    return (scale * numbers(name, shape)).astype(np.float32)


def told(gradient: npt.NDArray[np.float32], name: str) -> list[float]:
    """Two numbers of a gradient that any difference changes: its length, and a random projection of it."""
    flat = gradient.astype(np.float64).ravel()
    direction = numbers(f"direction {name}", flat.shape).astype(np.float64)
    return [float(np.linalg.norm(flat)), float(flat @ direction / np.sqrt(flat.size))]
