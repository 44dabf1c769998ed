"""Pictures: which way up they are, which part is looked at, and what their numbers are."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlvla3.transforms.api import Array, check_declared, check_pixels, choice_faults

Orientation = Literal["upright", "upside_down", "flipped"]
"""How frames come: ``upside_down`` is turned by 180°, ``flipped`` has its bottom row first."""
Range = Literal["bytes", "unit", "symmetric"]
"""Numbers of a pixel: uint8 0…255, float32 0…1, or float32 −1…1."""


@dataclass(frozen=True, slots=True)
class Upright:
    """Frames [..., H, W, 3] as they come → upright. Its own inverse, exact."""

    orientation: Orientation

    def __post_init__(self) -> None:
        check_declared("frames", choice_faults("orientation", self.orientation, Orientation))

    def apply(self, values: Array) -> Array:
        """Turn or flip."""
        if values.ndim < 3:
            raise ValueError(f"frames must be [..., H, W, 3], are {list(values.shape)}")
        if self.orientation == "upright":
            return values
        if self.orientation == "flipped":
            return np.ascontiguousarray(values[..., ::-1, :, :])
        return np.ascontiguousarray(values[..., ::-1, ::-1, :])

    def invert(self, values: Array) -> Array:
        """Turn or flip back."""
        return self.apply(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CentreCrop:
    """The middle of frames of one size. Lost: what is around it; ``invert`` makes that black."""

    height: int
    """Pixels of the frames that come."""
    width: int
    inner_height: int
    """Pixels of the middle."""
    inner_width: int

    def __post_init__(self) -> None:
        if not (1 <= self.inner_height <= self.height and 1 <= self.inner_width <= self.width):
            raise ValueError(
                f"a crop of {self.inner_height}x{self.inner_width} must lie within {self.height}x{self.width}"
            )

    def apply(self, values: Array) -> Array:
        """[..., H, W, 3] → [..., h, w, 3]."""
        check_pixels(values, self.height, self.width, "frames")
        rows, columns = self._inside()
        return values[..., rows, columns, :]

    def invert(self, values: Array) -> Array:
        """[..., h, w, 3] → [..., H, W, 3]."""
        check_pixels(values, self.inner_height, self.inner_width, "cropped frames")
        whole = np.zeros((*values.shape[:-3], self.height, self.width, 3), values.dtype)
        rows, columns = self._inside()
        whole[..., rows, columns, :] = values
        return whole

    def _inside(self) -> tuple[slice, slice]:
        top, left = (self.height - self.inner_height) // 2, (self.width - self.inner_width) // 2
        return slice(top, top + self.inner_height), slice(left, left + self.inner_width)


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Bytes → the numbers that a network reads. ``invert`` rounds to the nearest byte: exact for numbers that
    ``apply`` made; what is outside the range is lost."""

    target: Range

    def __post_init__(self) -> None:
        check_declared("pixels", choice_faults("range", self.target, Range))

    def apply(self, values: Array) -> Array:
        """Uint8 → float32 in the range (uint8 again for ``bytes``)."""
        if values.dtype != np.uint8:
            raise ValueError(f"frames must be uint8, are {values.dtype}")
        if self.target == "bytes":
            return values
        unit = values.astype(np.float32) / np.float32(255)
        return unit if self.target == "unit" else unit * np.float32(2) - np.float32(1)

    def invert(self, values: Array) -> Array:
        """Float32 in the range → uint8."""
        if self.target == "bytes":
            return values
        unit = values if self.target == "unit" else (values + 1) / 2
        return np.clip(np.rint(unit * 255), 0, 255).astype(np.uint8)
