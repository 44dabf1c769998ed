"""Copying named tensors between equal models, with an error that says how they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlvla3.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_SHOWN = 3


def check_equal(target: Mapping[str, Sequence[int]], given: Mapping[str, Sequence[int]], source: str) -> None:
    """Compare names and shapes.

    Raises:
        UserError: they differ; the first few are named.
    """
    missing = [name for name in target if name not in given]
    unexpected = [name for name in given if name not in target]
    mismatched = [
        f"{name} {list(given[name])} for {list(target[name])}"
        for name in target
        if name in given and tuple(given[name]) != tuple(target[name])
    ]
    problems = [
        f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", mismatched),
        )
        if names
    ]
    if problems:
        raise UserError(
            f"{source}: weights of another model: {'; '.join(problems)}; "
            "use the policy settings that it was saved with"
        )


def copy_into(target: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Copy every given tensor into the target of the same name; all or nothing.

    Raises:
        UserError: names or shapes differ; the first few are named. Nothing was copied.
    """
    check_equal(
        {name: tensor.shape for name, tensor in target.items()},
        {name: tensor.shape for name, tensor in given.items()},
        source,
    )
    import torch

    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(given[name])


def whole(tensor: Any) -> Tensor:
    """A tensor with the parts that other ranks hold, where several share it; then all of them must ask."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found
