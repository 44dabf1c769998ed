"""Sizes of shared blocks. Importing this module does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaSizes:
    """Sizes of one transformer. Two that attend to each other's keys share heads, groups and head size."""

    width: int
    depth: int
    mlp: int
    heads: int
    groups: int
    """Heads of keys and values."""
    head_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSizes:
    """Sizes of a vision transformer."""

    width: int
    depth: int
    mlp: int
    heads: int
    patch: int
    """Pixels of a patch's edge; divides ``image``."""
    image: int
    """Pixels of a picture's side."""

    @property
    def tokens(self) -> int:
        """Patches of a picture."""
        return (self.image // self.patch) ** 2
