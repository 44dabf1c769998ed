"""Named tensors in safetensors files, with errors a user can act on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from rlvla3.errors import UserError


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors (any device) to one safetensors file.

    Raises:
        UserError: it cannot be written, or the disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    arrays = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(arrays, path)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path}: cannot be written ({error}); free space or choose another folder"
        ) from error


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
