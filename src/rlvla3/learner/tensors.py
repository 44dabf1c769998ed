"""Named tensors in safetensors files, with errors a user can act on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rlvla3.errors import UserError

_SHOWN = 3


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors (any device) to one safetensors file."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        UserError: the file is missing, truncated or not safetensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: file is missing; give a complete checkpoint or export") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); use another checkpoint") from error


def copy_into(target: Mapping[str, Tensor], given: Mapping[str, Tensor], source: str) -> None:
    """Copy every given tensor into the target of the same name; all or nothing.

    Raises:
        UserError: names or shapes differ; the first few are named. Nothing was copied.
    """
    missing = [name for name in target if name not in given]
    unexpected = [name for name in given if name not in target]
    mismatched = [
        f"{name} {list(given[name].shape)} for {list(target[name].shape)}"
        for name in target
        if name in given and given[name].shape != target[name].shape
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
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(given[name])
