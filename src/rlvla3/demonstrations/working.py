"""A process of another Python environment that demonstrates: jobs on the standard input, episodes back.

Both ways go messages with their length before them: a list of jobs as msgpack, then the episodes' numbers or
what was wrong. Run by ``elsewhere``.
"""

import os
import struct
import sys
from collections.abc import Sequence
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt

from rlvla3.demonstrations.collecting import Episode, Job, demonstrate_all
from rlvla3.errors import UserError
from rlvla3.lifetime import begin_worker

_LENGTH = struct.Struct("<Q")


class Array(msgspec.Struct, frozen=True, array_like=True):
    """An array's type, shape and bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Demonstrated(msgspec.Struct, frozen=True, kw_only=True):
    """One episode (``collecting.Episode``)."""

    task: int
    length: int
    failures: int
    observation: dict[str, Array]
    actions: Array
    valid: Array


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes of a list of jobs, or in one line why there are none."""

    episodes: tuple[Demonstrated, ...] = ()
    fault: str = ""


def write(file: IO[bytes], message: Any) -> None:
    """Send one message."""
    data = msgspec.msgpack.encode(message)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def read(file: IO[bytes], kind: Any) -> Any:
    """The next message; None at the end."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    data = file.read(size)
    return msgspec.msgpack.decode(data, type=kind) if len(data) == size else None


def packed(episode: Episode) -> Demonstrated:
    """An episode as it is sent."""
    return Demonstrated(
        task=episode.task,
        length=episode.length,
        failures=episode.failures,
        observation={name: _bytes(array) for name, array in episode.observation.items()},
        actions=_bytes(episode.actions),
        valid=_bytes(episode.valid),
    )


def unpacked(sent: Demonstrated) -> Episode:
    """The episode that was sent."""
    return Episode(
        task=sent.task,
        length=sent.length,
        failures=sent.failures,
        observation={name: _array(array) for name, array in sent.observation.items()},
        actions=_array(sent.actions),
        valid=_array(sent.valid),
    )


def _bytes(array: npt.NDArray[Any]) -> Array:
    return Array(array.dtype.str, array.shape, array.tobytes())


def _array(sent: Array) -> npt.NDArray[Any]:
    return np.frombuffer(sent.data, sent.dtype).reshape(sent.shape)


def _result(jobs: Sequence[Job]) -> Result:
    try:
        return Result(episodes=tuple(packed(episode) for episode in demonstrate_all(jobs)))
    except UserError as error:
        return Result(fault=str(error))


def main() -> None:
    """Work until no jobs come; what a simulator prints meanwhile goes to the standard error."""
    begin_worker(int(sys.argv[1]))
    output = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(output, "wb") as file:
        while (jobs := read(sys.stdin.buffer, list[Job])) is not None:
            write(file, _result(jobs))


if __name__ == "__main__":
    main()
