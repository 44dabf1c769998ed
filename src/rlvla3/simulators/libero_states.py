"""LIBERO's fixed initial states, read without torch and without running anything.

The official files are pickles: a zip that ``torch.save`` wrote, its older format, or a plain one. Pickles
can name any function, so only what rebuilds an array of numbers is known here; everything else is refused
before it is called.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError

_MOST_BYTES = 64 * 2**20
"""More than any file of states has."""
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C
"""First pickle of ``torch.save``'s older format; a version and system information come next."""


def load_states(path: Path) -> npt.NDArray[np.float64]:
    """States of one task, float64 [n, 1 + nq + nv]: time, positions, velocities.

    Args:
        path: the file as the benchmark names it (``TASK.pruned_init``); with ``.npz`` after it, it is
            taken instead.

    Raises:
        UserError: there is no such file, or it is not an array of numbers and nothing else.
    """
    packed = path.with_name(f"{path.name}.npz")
    source = packed if packed.is_file() else path
    if not source.is_file():
        raise UserError(f"{path}: there are no initial states here; give a complete LIBERO as source")
    if source.stat().st_size > _MOST_BYTES:
        raise UserError(f"{source}: is larger than 64 MiB, so it holds no initial states; use the original")
    try:
        found = _unpacked(source) if source == packed else _unpickled(source)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{source}: cannot be read as initial states ({type(error).__name__}: {error}); use the original"
        ) from error
    return _checked(found, source)


def _unpacked(path: Path) -> Any:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["states"]


def _checked(found: Any, path: Path) -> npt.NDArray[np.float64]:
    numbers = isinstance(found, np.ndarray) and found.dtype.kind == "f" and found.ndim == 2 and len(found) > 0
    if not numbers or not np.isfinite(found).all():
        raise UserError(f"{path}: must hold one array of finite numbers [n, state]; use the original")
    return np.ascontiguousarray(found, np.float64)


def _unpickled(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            [name] = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
            if archive.getinfo(name).file_size > _MOST_BYTES:
                raise ValueError("it unpacks to more than 64 MiB")
            return _Numbers(io.BytesIO(archive.read(name)), path).load()
    stream = io.BytesIO(path.read_bytes())
    found = _Numbers(stream, path).load()
    if isinstance(found, int) and found == _TORCH_MAGIC:
        for _ in ("version", "system"):
            _Numbers(stream, path).load()
        found = _Numbers(stream, path).load()
    return found


_ARRAY = object()
"""Stands for the class of arrays, which a pickle could otherwise call."""


def _reconstruct(kind: Any, shape: Any, code: Any) -> npt.NDArray[Any]:
    """The empty array that a pickle fills afterwards: nothing that it asks for is allocated here."""
    if kind is not _ARRAY or tuple(shape) != (0,) or not isinstance(code, bytes):
        raise pickle.UnpicklingError("an array is rebuilt in an unusual way")
    return np.ndarray((0,), np.int8)


def _encode(text: Any, encoding: Any) -> bytes:
    """How protocol 2 writes bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes are encoded in an unusual way")
    return text.encode("latin1")


_KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}
"""All that a pickle of numbers names."""


class _Numbers(pickle.Unpickler):
    """Rebuilds arrays of numbers only."""

    def __init__(self, stream: io.BytesIO, path: Path) -> None:
        super().__init__(stream)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """What a pickle may call.

        Raises:
            UserError: it names anything else; nothing was run.
        """
        if (module, name) not in _KNOWN:
            raise UserError(
                f"{self._path}: names {module}.{name}, which initial states do not need: not run; use the "
                "original file"
            )
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:
        """Tensors are stored beside the pickle.

        Raises:
            UserError: always.
        """
        raise UserError(f"{self._path}: holds tensors, not an array of numbers; use the original file")
