"""Named tensors in safetensors files, with errors a user can act on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rlvla3.errors import UserError


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
