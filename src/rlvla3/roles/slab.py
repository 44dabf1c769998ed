"""The slab as the roles see it: fields by name, places (row, chunk), stamps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.messages import Row

Slab = Mapping[str, npt.NDArray[Any]]
"""See ``rlvla3.learner.api.Slab`` for the fields."""

_NUMPY_KEEPS_GIL = 500
"""Numbers up to which numpy copies without releasing the GIL."""


def stamp(episode: int, chunk: int) -> int:
    """Names a chunk over all episodes: the Generator writes it beside the record."""
    return episode * (1 << 20) + chunk


def misfit(value: Any, array: npt.NDArray[Any]) -> str:
    """What keeps a value from being an entry [...] of a field's ``array`` [rows, chunks, ...], in words;
    empty if nothing does. numpy would broadcast and convert without a word."""
    if not isinstance(value, np.ndarray):
        return f"is {type(value).__name__}, which is no array"
    if value.shape != array.shape[2:] or value.dtype != array.dtype:
        specified = f"{array.dtype} {list(array.shape[2:])}"
        return f"is {value.dtype} {list(value.shape)}, the simulator's spec says {specified}"
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return f"holds {value[~np.isfinite(value)][0]}"
    return ""


def put(value: npt.NDArray[Any], array: npt.NDArray[Any], place: tuple[Row, int]) -> None:
    """``array[place] = value``, which fits. numpy hands the GIL over for more than a few hundred numbers:
    with many lanes, waiting to get it back takes longer than copying a frame, so frames are copied as
    bytes."""
    if value.size > _NUMPY_KEEPS_GIL and value.flags.c_contiguous:
        array[place].data.cast("B")[:] = value.data.cast("B")
    else:
        array[place] = value


def gather(array: npt.NDArray[Any], places: list[tuple[Row, int]]) -> npt.NDArray[Any]:
    """[n, ...]: the entries at ``places``; for one place a view, since indexing with lists is slow."""
    if len(places) == 1:
        row, chunk = places[0]
        return array[row : row + 1, chunk]
    rows, chunks = zip(*places, strict=True)
    found: npt.NDArray[Any] = array[list(rows), list(chunks)]
    return found
