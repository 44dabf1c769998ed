"""Smaller textures for pictures of few pixels: a copy to upload, physics has none of it."""

from typing import Any

import numpy as np
import numpy.typing as npt

_CUBE_FACES = 6


def shrink_textures(model: Any, most: int) -> None:
    """Halve a model's textures in place until no side is longer than ``most`` pixels.

    A halved pixel is the mean of four, as in the levels that GL makes of a texture: pictures in which a
    texture's pixels are smaller than the picture's hardly change. Textures with odd sides stay.
    """
    for texture in range(model.ntex):
        while _shrinks(model, texture, most):
            _halve(model, texture)


def _faces(model: Any, texture: int) -> int:
    """Square pictures on top of each other: 6 in a cube's texture."""
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    return _CUBE_FACES if height == _CUBE_FACES * width else 1


def _shrinks(model: Any, texture: int, most: int) -> bool:
    height = int(model.tex_height[texture]) // _faces(model, texture)
    width = int(model.tex_width[texture])
    return max(height, width) > most and height % 2 == 0 and width % 2 == 0


def _halve(model: Any, texture: int) -> None:
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    channels, first = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
    pixels: npt.NDArray[np.uint8] = model.tex_data[first : first + height * width * channels]
    # Faces have even heights, so no block of four reaches over two of them.
    blocks = pixels.reshape(height // 2, 2, width // 2, 2, channels)
    small = np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)
    model.tex_data[first : first + small.size] = small.ravel()
    model.tex_height[texture], model.tex_width[texture] = height // 2, width // 2
