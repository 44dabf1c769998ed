"""Pictures as policies want them: bytes [H, W, 3] of a given size. numpy only."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt


def shrink(pixels: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """A picture [H, W, 3] as [size, size, 3]: every pixel is the mean of the area that it covers.

    Smaller pictures keep what is thinner than a pixel (as a paler pixel), larger ones repeat pixels.
    """
    height, width = pixels.shape[:2]
    if (height, width) == (size, size):
        return pixels.copy()
    rows, columns = _areas(height, size), _areas(width, size)
    # Rows first: the rest is then a few matrix products of the small picture.
    narrow = rows @ pixels.reshape(height, -1).astype(np.float32)
    small = np.matmul(columns, narrow.reshape(size, width, 3))
    resized: npt.NDArray[np.uint8] = np.rint(small).astype(np.uint8)
    return resized


@functools.lru_cache(maxsize=64)
def _areas(count: int, size: int) -> npt.NDArray[np.float32]:
    """Share [size, count] of each of ``count`` pixels in the mean of each of ``size`` equal stretches."""
    edges = np.arange(size + 1) * (count / size)
    pixels = np.arange(count)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    shares: npt.NDArray[np.float32] = (np.clip(overlap, 0, None) * (size / count)).astype(np.float32)
    return shares


def as_bytes(
    array: npt.NDArray[Any], *, channels_first: bool = False, scale: float = 0.0
) -> npt.NDArray[np.uint8]:
    """An environment's picture as bytes [H, W, 3].

    Args:
        array: [H, W] or [H, W, 1] (grey), [H, W, 3], or [H, W, 4], whose last channel is left out.
        channels_first: the channels are the first dimension instead.
        scale: what numbers are multiplied by (255 for numbers in [0, 1]); 0: they are bytes already.

    Raises:
        ValueError: another shape, or numbers that are no bytes and have no scale.
    """
    if channels_first and array.ndim == 3:
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ValueError(f"a picture must be [H, W], or have 1, 3 or 4 channels last; it is {array.shape}")
    if scale:
        array = np.rint(np.clip(array.astype(np.float32) * scale, 0, 255)).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ValueError(f"a picture of {array.dtype} needs a scale, such as 255 for numbers in [0, 1]")
    colours = array[..., :3] if array.shape[2] != 1 else np.repeat(array, 3, axis=2)
    return np.ascontiguousarray(colours)


def even(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A picture whose height and width are even, as videos want it: the last row or column is repeated."""
    height, width = pixels.shape[:2]
    if not (height % 2 or width % 2):
        return pixels
    return np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
