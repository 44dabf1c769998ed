"""Weights in shared memory: several buffers of one layout, each with a version and a checksum.

The controller creates an empty memfd; the Trainer, who alone knows the parameters, lays it out and
writes; Generators read. The engine decides which buffer may be written, so that nobody reads a
buffer that is being written; the checksum proves it at every load.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.messages import Version
from rlvla3.runtime.payloads import reserve

Arrays = Mapping[str, npt.NDArray[Any]]

_PAGE = mmap.PAGESIZE
_STAMP = struct.Struct("<qI")
"""Version and CRC-32, at the head of each buffer."""
_HEAD = 64


class WeightBuffers:
    """One channel's buffers. Make it with ``lay_out`` (the writer) or ``open`` (a reader)."""

    def __init__(self, fd: int, manifest: Mapping[str, Any]) -> None:
        self._fields = [(n, tuple(s), d, o) for n, s, d, o in manifest["fields"]]
        self._size = int(manifest["size"])
        self._start = int(manifest["start"])
        self._memory = mmap.mmap(fd, 0)

    @classmethod
    def lay_out(cls, fd: int, buffers: int, weights: Arrays) -> "WeightBuffers":
        """Size the memory for ``buffers`` copies of ``weights`` and write the layout.

        Raises:
            UserError: the machine has not that much memory left.
        """
        fields, offset = [], _HEAD
        for name, array in weights.items():
            fields.append([name, list(array.shape), array.dtype.str, offset])
            offset += -(-array.nbytes // 64) * 64
        size = -(-offset // _PAGE) * _PAGE
        header = {"fields": fields, "size": size, "start": 0}
        start = -(-(len(json.dumps(header)) + 64) // _PAGE) * _PAGE
        header["start"] = start
        text = json.dumps(header).encode()
        try:
            reserve(fd, start + buffers * size)
        except OSError as error:
            raise UserError(
                f"weights: {buffers} x {size / 2**20:.0f} MiB of shared memory cannot be reserved "
                f"({error.strerror}); choose a smaller policy or free memory"
            ) from error
        os.pwrite(fd, struct.pack("<q", len(text)) + text, 0)
        return cls(fd, header)

    @classmethod
    def open(cls, fd: int) -> "WeightBuffers":
        """Map what the writer laid out.

        Raises:
            RuntimeError: nobody has laid it out yet.
        """
        head = os.pread(fd, 8, 0)
        if len(head) < 8:
            raise RuntimeError("the weight buffers are not laid out yet")
        (length,) = struct.unpack("<q", head)
        return cls(fd, json.loads(os.pread(fd, length, 8)))

    def write(self, buffer: int, version: Version, weights: Arrays) -> int:
        """Write one version; returns its checksum. The stamp is invalid while data changes.

        Raises:
            ValueError: the weights are not those that were laid out.
        """
        base = self._start + buffer * self._size
        _STAMP.pack_into(self._memory, base, -1, 0)
        self._check(weights)
        checksum = 0
        for name, shape, dtype, offset in self._fields:
            target = np.ndarray(shape, dtype=dtype, buffer=self._memory, offset=base + offset)
            target[...] = weights[name]
            checksum = _checksum(target, checksum)
        _STAMP.pack_into(self._memory, base, version, checksum)
        return checksum

    def _check(self, weights: Arrays) -> None:
        """An array of another shape would be broadcast, one of another dtype converted, in silence."""
        laid_out = {name: (shape, dtype) for name, shape, dtype, _ in self._fields}
        given = {name: (array.shape, array.dtype.str) for name, array in weights.items()}
        if given != laid_out:
            differing = sorted(n for n in given.keys() | laid_out.keys() if given.get(n) != laid_out.get(n))
            name = differing[0]
            raise ValueError(
                f"weights {differing[:3]} differ from what was laid out: "
                f"{name} is {given.get(name)}, was {laid_out.get(name)}"
            )

    def read(self, buffer: int, version: Version) -> dict[str, npt.NDArray[Any]]:
        """A private copy of one version's weights.

        Raises:
            RuntimeError: the buffer holds another version, or its data do not match the stamp.
        """
        base = self._start + buffer * self._size
        weights, checksum = {}, 0
        stamp = _STAMP.unpack_from(self._memory, base)
        for name, shape, dtype, offset in self._fields:
            source = np.ndarray(shape, dtype=dtype, buffer=self._memory, offset=base + offset)
            weights[name] = source.copy()
            checksum = _checksum(weights[name], checksum)
        if stamp != (version, checksum):
            raise RuntimeError(
                f"buffer {buffer}: stamp (version {stamp[0]}, checksum {stamp[1]:08x}), "
                f"expected version {version}, data {checksum:08x}: a torn publish"
            )
        return weights


def _checksum(array: npt.NDArray[Any], so_far: int) -> int:
    return zlib.crc32(array.reshape(-1).view(np.uint8).data, so_far)
