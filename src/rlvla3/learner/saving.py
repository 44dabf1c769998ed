"""Named tensors on disk, whoever holds which part of them: one safetensors file for any number of ranks.

Ranks that share the weights write their parts through torch's distributed checkpointing, whose
safetensors writer joins them to one file; each reads back only its own part. So a checkpoint does not
depend on how many ranks made it, and nothing in it is a pickle.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from rlvla3.errors import UserError
from rlvla3.learner.ranks import Ranks
from rlvla3.learner.sharding import is_shared
from rlvla3.learner.tensors import read_tensors, write_tensors
from rlvla3.policies.weights import check_equal, copy_into


def write(path: Path | None, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write tensors to one file; every rank must take part.

    Args:
        path: on the first rank; the others are told.
        tensors: of this rank; parts of shared ones.
        ranks: who takes part.

    Raises:
        UserError: it cannot be written, or the disk is full.
    """
    if ranks.sharded and any(is_shared(tensor) for tensor in tensors.values()):
        _write_parts(Path(ranks.shared(str(path) if ranks.first else "")[0]), tensors, ranks)
    elif path is not None:
        write_tensors(path, tensors)


def _write_parts(path: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    dcp = importlib.import_module("torch.distributed.checkpoint")
    working = path.with_name(f"{path.name}.parts")
    writer = dcp.HuggingFaceStorageWriter(
        str(working),
        fqn_to_index_mapping=dict.fromkeys(tensors, 1),
        save_distributed=True,
        enable_consolidation=True,
    )
    try:
        dcp.save(dict(tensors), storage_writer=writer)
    except (OSError, dcp.CheckpointException) as error:
        raise UserError(
            f"{path}: cannot be written ({error}); free space or choose another folder"
        ) from error
    if ranks.first:
        (whole,) = working.glob("*.safetensors")
        whole.replace(path)
        shutil.rmtree(working)
    ranks.sum([0.0])  # nobody goes on before the file is there


def read_into(path: Path, target: Mapping[str, Tensor]) -> None:
    """Fill tensors, or this rank's parts of them, from a file.

    Raises:
        UserError: the file is damaged, or its names or shapes are others; nothing was copied.
    """
    if any(is_shared(tensor) for tensor in target.values()):
        _read_parts(path, target)
    else:
        copy_into(target, read_tensors(path), str(path))


def _read_parts(path: Path, target: Mapping[str, Tensor]) -> None:
    dcp = importlib.import_module("torch.distributed.checkpoint")
    check_equal({n: t.shape for n, t in target.items()}, shapes(path), str(path))
    with TemporaryDirectory() as folder:
        # The reader takes every file of a folder, and a checkpoint's folder has several.
        (Path(folder) / path.name).symlink_to(path.resolve())
        wanted: dict[str, Any] = dict(target)
        dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(folder))
    for name, tensor in target.items():
        if wanted[name] is not tensor:
            tensor.copy_(wanted[name])


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a file.

    Raises:
        UserError: it is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); use another checkpoint") from error
