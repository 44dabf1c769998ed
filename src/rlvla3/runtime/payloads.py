"""The trajectory slab: one memfd that all members of a machine map.

Every observation and every action record is written once, where the Trainer will read it. Fields
are disjoint by writer (Simulator or Generator), so no lock is needed; ``stamp`` proves that the
record in a place is the one that was asked for.
"""

import errno
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.doctor import usable_memory
from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec

_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabField:
    """One array of the slab: ``shape`` includes rows and chunks."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabLayout:
    """Where every field lies. R rows of at most T chunks of C sub-steps."""

    fields: tuple[SlabField, ...]
    size: int
    """Bytes in all."""

    @classmethod
    def make(
        cls,
        *,
        rows: int,
        chunks: int,
        chunk: int,
        observation: Sequence[FieldSpec],
        record: Sequence[FieldSpec],
    ) -> "SlabLayout":
        """Lay the fields out (see ``learner.api.Slab`` for their meaning)."""
        r, t = rows, chunks
        wanted: list[tuple[str, tuple[int, ...], str]] = [
            ("observation.task", (r, t + 1), "int64"),
            ("observation.elapsed", (r, t + 1), "float32"),
            ("chunk_index", (r, t + 1), "int32"),
            ("stamp", (r, t), "int64"),
            ("version", (r, t), "int64"),
            ("reward", (r, t, chunk), "float32"),
            ("sub_steps", (r, t), "int32"),
            ("bootstrap_value", (r,), "float32"),
            ("episode", (r,), "int64"),
        ]
        wanted += [(f"observation.{f.name}", (r, t + 1, *f.shape), f.dtype) for f in observation]
        wanted += [(f"record.{f.name}", (r, t, *f.shape), f.dtype) for f in record]
        fields, offset = [], 0
        for name, shape, dtype in wanted:
            fields.append(SlabField(name=name, shape=shape, dtype=dtype, offset=offset))
            size = math.prod(shape) * np.dtype(dtype).itemsize
            offset += -(-size // _ALIGN) * _ALIGN
        return cls(fields=tuple(fields), size=offset)


def create_memory(name: str, size: int) -> int:
    """A memfd of ``size`` bytes, all of them reserved now.

    Raises:
        UserError: the machine has not that much memory left.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        reserve(fd, size)
    except OSError as error:
        os.close(fd)
        raise UserError(
            f"{name}: {size / 2**20:.0f} MiB of shared memory cannot be reserved ({error.strerror}); "
            "lower simulator.envs or members, trainer.batch, trainer.chunks, schedule.max_lag or the image "
            "size, or free memory"
        ) from error
    return fd


def reserve(fd: int, size: int) -> None:
    """Give a memfd ``size`` bytes, all of them taken now.

    The kernel would hand out pages until it kills something, so what is there is looked at first.

    Raises:
        OSError: the machine has not that much memory left.
    """
    if size > usable_memory():
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    if size:
        os.posix_fallocate(fd, 0, size)


def map_slab(fd: int, layout: SlabLayout) -> dict[str, npt.NDArray[Any]]:
    """The fields as arrays over the shared memory (which stays mapped while they live)."""
    memory = mmap.mmap(fd, layout.size)
    return {f.name: np.ndarray(f.shape, dtype=f.dtype, buffer=memory, offset=f.offset) for f in layout.fields}
