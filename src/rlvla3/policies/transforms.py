"""Normalisation shared by policies: an affine map whose statistics travel with the weights."""

from __future__ import annotations

import hashlib
import warnings
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.transforms.statistics import Statistics

Mode = Literal["mean_std", "quantile"]

_TINY = 1e-6


class Normaliser(nn.Module):
    """x → (x − shift) / scale for the last dimension, and back. Identity until fitted.

    The buffers' names carry the mode, so that statistics of one mode never load into another.
    """

    def __init__(self, size: int, mode: Mode) -> None:
        super().__init__()
        self.mode: Mode = mode
        self.register_buffer(f"{mode}_shift", torch.zeros(size))
        self.register_buffer(f"{mode}_scale", torch.ones(size))

    @property
    def shift(self) -> Tensor:
        """Centre of each dimension [size]."""
        return self.get_buffer(f"{self.mode}_shift")

    @property
    def scale(self) -> Tensor:
        """Spread of each dimension [size]."""
        return self.get_buffer(f"{self.mode}_scale")

    def fit(self, values: npt.NDArray[np.float32], name: str) -> None:
        """Take the statistics of ``values`` [..., size].

        ``mean_std``: zero mean, unit deviation. ``quantile``: the 1 % and 99 % quantiles become
        −1 and 1. A dimension that never varies keeps scale 1 and warns.
        """
        flat = np.asarray(values, np.float64).reshape(-1, len(self.shift))
        if self.mode == "quantile":
            low, high = np.quantile(flat, 0.01, axis=0), np.quantile(flat, 0.99, axis=0)
            shift, scale = (low + high) / 2.0, (high - low) / 2.0
        else:
            shift, scale = flat.mean(0), flat.std(0)
        constant = scale < _TINY
        if constant.any():
            warnings.warn(
                f"{name}: dimensions {np.flatnonzero(constant).tolist()} never vary in the data; "
                "their scale is set to 1",
                stacklevel=2,
            )
        self.shift.copy_(torch.from_numpy(shift))
        self.scale.copy_(torch.from_numpy(np.where(constant, 1.0, scale)))

    def use(self, statistics: Statistics, name: str) -> None:
        """Take over statistics that were computed elsewhere; more dimensions than these are cut where the
        rest is padding (never varies).

        Raises:
            UserError: they are of fewer dimensions, or of more that vary.
        """
        shift, scale = statistics.shift_and_scale()
        size = len(self.shift)
        padding = np.asarray(statistics.second[size:], np.float64)
        if statistics.mode == "quantile":
            padding = padding - np.asarray(statistics.first[size:], np.float64)
        if statistics.size < size or np.abs(padding).max(initial=0.0) > _TINY:
            raise UserError(
                f"the weights' statistics of the {name} have {statistics.size} dimensions, this simulator's "
                f"{name} has {size}; choose the simulator set-up that they were trained for"
            )
        self.shift.copy_(torch.from_numpy(shift[:size]))
        self.scale.copy_(torch.from_numpy(scale[:size]))

    def normalise(self, values: Tensor) -> Tensor:
        """Raw → normalised, float32."""
        return (values.float() - self.shift) / self.scale

    def restore(self, values: Tensor) -> Tensor:
        """Normalised → raw, float32."""
        return values.float() * self.scale + self.shift

    def digest(self) -> str:
        """A short hash of mode and statistics; equal where normalisation is equal."""
        content = hashlib.sha256(self.mode.encode())
        for buffer in (self.shift, self.scale):
            content.update(buffer.detach().cpu().numpy().tobytes())
        return content.hexdigest()[:16]
