"""The slab as the roles see it: fields by name, places (row, chunk), stamps."""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from rlvla3.messages import Row

Slab = Mapping[str, npt.NDArray[Any]]
"""See ``rlvla3.learner.api.Slab`` for the fields."""

_NUMPY_KEEPS_GIL = 500
"""Numbers up to which numpy copies without releasing the GIL."""


def stamp(episode: int, chunk: int) -> int:
    """Names a chunk over all episodes: the Generator writes it beside the record."""
    return episode * (1 << 20) + chunk


def put(value: npt.NDArray[Any], array: npt.NDArray[Any], place: tuple[Row, int]) -> None:
    """``array[place] = value``. numpy hands the GIL over for more than a few hundred numbers: with many
    lanes, waiting to get it back takes longer than copying a frame, so frames are copied as bytes."""
    if (
        value.size > _NUMPY_KEEPS_GIL
        and value.shape == array.shape[2:]
        and value.dtype == array.dtype
        and value.flags.c_contiguous
    ):
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
