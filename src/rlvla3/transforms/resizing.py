"""Resizing with any filter and padding, in plain numpy: a weighted sum of a few rows, then of columns."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from rlvla3.transforms.api import Array, check_declared, check_pixels, choice_faults

Filter = Literal["bilinear", "bicubic", "lanczos3", "area", "nearest"]
"""``area``: the mean of what a pixel covers. The others are called so everywhere."""
Place = Literal["centre", "bottom_right"]
"""Where the picture lies in its padding; ``bottom_right``: padding above and to the left only."""
Floats = npt.NDArray[np.float64]


def _triangle(x: Floats) -> Floats:
    return np.where(np.abs(x) < 1, 1 - np.abs(x), 0)


def _cubic(x: Floats) -> Floats:
    # The cubic of Keys with a = -1/2, as image libraries have it where they smooth.
    a, x = -0.5, np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x: Floats) -> Floats:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


_KERNELS: dict[str, tuple[Callable[[Floats], Floats], float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos3": (_lanczos, 3.0),
}


@functools.lru_cache(maxsize=64)
def taps(size: int, target: int, filter: Filter, antialias: bool) -> tuple[Array, Array]:
    """Which source pixels each target pixel is made of.

    Pixel centres lie at half numbers in both pictures. ``antialias``: when shrinking the filter is as much
    wider, so that no source pixel is skipped.

    Returns:
        indices int64 [taps, target] and weights float32 [taps, target], which add up to 1.
    """
    scale = size / target
    centres = (np.arange(target) + 0.5) * scale
    if filter == "nearest":
        return np.minimum(centres.astype(np.int64), size - 1)[None], np.ones((1, target), np.float32)
    if filter == "area":
        return _covered(size, target, scale)
    kernel, radius = _KERNELS[filter]
    stretch = max(scale, 1.0) if antialias else 1.0
    first = np.floor(centres - radius * stretch).astype(np.int64)
    indices = first + np.arange(int(np.ceil(2 * radius * stretch)) + 2)[:, None]
    weights = kernel((indices + 0.5 - centres) / stretch)
    inside = (indices >= 0) & (indices < size)
    if antialias:
        # The filter ends at the border; without smoothing the border's pixels go on outside.
        weights = np.where(inside, weights, 0)
    return _tidy(np.clip(indices, 0, size - 1), weights)


def _covered(size: int, target: int, scale: float) -> tuple[Array, Array]:
    starts = np.arange(target) * scale
    indices = np.floor(starts).astype(np.int64) + np.arange(int(np.ceil(scale)) + 1)[:, None]
    weights = np.minimum(indices + 1, starts + scale) - np.maximum(indices, starts)
    return _tidy(np.clip(indices, 0, size - 1), np.maximum(weights, 0))


def _tidy(indices: Array, weights: Floats) -> tuple[Array, Array]:
    used = (np.abs(weights) > 1e-9).any(1)
    weights = weights[used]
    return indices[used], (weights / weights.sum(0)).astype(np.float32)


def resize(frames: Array, height: int, width: int, filter: Filter, antialias: bool = True) -> Array:
    """Frames [..., H, W, 3] → [..., height, width, 3]; bytes are rounded at the end, others are float32."""
    if frames.ndim < 3:
        raise ValueError(f"frames must be [..., H, W, 3], are {list(frames.shape)}")
    if frames.shape[-3:-1] == (height, width):
        return frames
    # The axis that shrinks most goes first, so that the second pass has less to do.
    made = frames
    axes = ((-3, height), (-2, width))
    for axis, target in sorted(axes, key=lambda axis: axis[1] / frames.shape[axis[0]]):
        made = _along(made, axis, target, filter, antialias)
    if frames.dtype != np.uint8:
        return made
    rounded: Array = np.clip(np.rint(made), 0, 255).astype(np.uint8)
    return rounded


def _along(frames: Array, axis: int, target: int, filter: Filter, antialias: bool) -> Array:
    size = frames.shape[axis]
    if size == target:
        return frames
    indices, weights = taps(size, target, filter, antialias)
    shape = [1] * frames.ndim
    shape[axis] = target
    total = np.float32(0)
    for index, weight in zip(indices, weights, strict=True):
        total = total + np.take(frames, index, axis) * weight.reshape(shape)
    return np.asarray(total, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Frames of one size → of another one. Lost: detail; ``invert`` resizes back by the same filter.

    ``keep_ratio``: the whole picture as large as fits, the rest padded with ``pad``, which is exactly undone.
    """

    height: int
    """Pixels of the frames that come."""
    width: int
    new_height: int
    """Pixels of those made."""
    new_width: int
    filter: Filter = "bilinear"
    antialias: bool = True
    """Smooth when shrinking. Without it pixels are skipped; only for weights trained so."""
    keep_ratio: bool = True
    """False: each side is stretched by itself."""
    place: Place = "centre"
    pad: int = 0
    """Byte of the padding, equal for red, green and blue."""

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.new_height, self.new_width) < 1:
            raise ValueError(
                f"sizes must be 1 or more, are {self.height}x{self.width} and "
                f"{self.new_height}x{self.new_width}"
            )
        check_declared("resizing", choice_faults("filter", self.filter, Filter))
        check_declared("resizing", choice_faults("place", self.place, Place))
        if not 0 <= self.pad <= 255:
            raise ValueError(f"pad must be a byte, it is {self.pad}")

    def apply(self, values: Array) -> Array:
        """[..., H, W, 3] → [..., new H, new W, 3]."""
        check_pixels(values, self.height, self.width, "frames")
        rows, columns = self._inside()
        inner = rows.stop - rows.start, columns.stop - columns.start
        resized = resize(values, *inner, self.filter, self.antialias)
        if inner == (self.new_height, self.new_width):
            return resized
        padded = np.full((*values.shape[:-3], self.new_height, self.new_width, 3), self.pad, resized.dtype)
        padded[..., rows, columns, :] = resized
        return padded

    def invert(self, values: Array) -> Array:
        """[..., new H, new W, 3] → [..., H, W, 3]."""
        check_pixels(values, self.new_height, self.new_width, "resized frames")
        rows, columns = self._inside()
        return resize(values[..., rows, columns, :], self.height, self.width, self.filter, self.antialias)

    def _inside(self) -> tuple[slice, slice]:
        """Where the picture lies in what is made."""
        if not self.keep_ratio:
            return slice(0, self.new_height), slice(0, self.new_width)
        ratio = max(self.height / self.new_height, self.width / self.new_width)
        # A hair more than the quotient: 256 / (256 / 224) is 224 and no less.
        inner = [max(1, int(side / ratio + 1e-9)) for side in (self.height, self.width)]
        gaps = [self.new_height - inner[0], self.new_width - inner[1]]
        top, left = (gap if self.place == "bottom_right" else gap // 2 for gap in gaps)
        return slice(top, top + inner[0]), slice(left, left + inner[1])
