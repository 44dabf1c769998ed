"""Where numbers go: metric sinks, interval estimates, figures files, time accounts."""

import contextlib
import errno
import json
import math
import os
import socket
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.run_folder import versions, write_json

# --- sinks -----------------------------------------------------------------------------------


class Sink(Protocol):
    """Takes the metrics of one step."""

    def write(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Take one step's values; ``time_s`` is seconds since the run began."""
        ...

    def close(self) -> None:
        """Flush and free everything."""
        ...


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file where the start of a run cannot write.

    Raises:
        UserError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another folder") from error


class JsonLines:
    """One JSON object a line, whole lines only, so that a kill loses no earlier line.

    A number that is not finite is written as a text (``nan``, ``inf``), since JSON has none.
    """

    def __init__(self, path: Path) -> None:
        with _named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if not _ends_with_newline(path):
                os.write(self._file, b"\n")

    def write(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Append one line in a single write."""
        row: dict[str, Any] = {"step": step, "time_s": round(time_s, 3)}
        row |= {key: value if math.isfinite(value) else str(float(value)) for key, value in values.items()}
        line = (json.dumps(row) + "\n").encode()
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a line cut short by a crash is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


class TensorBoard:
    """Event files for TensorBoard, without torch or TensorFlow."""

    def __init__(self, folder: Path) -> None:
        # Not tensorboard's own event writer: its thread dies on a full disk and leaves writers waiting.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        with _named(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter((folder / name).open("wb", buffering=0))
            self._add(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Append one event with all values as scalars."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=key, simple_value=value) for key, value in values.items()]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A W&B run; offline (synchronised later with ``wandb sync``) unless told otherwise."""

    def __init__(self, folder: Path, project: str, mode: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                f"log.wandb: wandb cannot be imported ({error});"
                " pip install 'rlvla3[wandb]' or set log.wandb=off"
            ) from error
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(dir=str(folder), project=project, mode=mode, config=dict(config))

    def write(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Log one step."""
        self._run.log({**values, "time_s": time_s}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Metrics:
    """Writes each step's values to every sink. A context manager.

    A sink that fails is given up and the run goes on: figures are worth less than what they are of.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self.faults: list[str] = []
        """A line for each sink that was given up."""

    def log(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Write one step; ``time_s`` is seconds since the run began."""
        numbers = {key: float(value) for key, value in values.items()}
        for sink in self._sinks:
            try:
                sink.write(step, numbers, time_s)
            except Exception as error:
                self._give_up(sink, error)

    def _give_up(self, sink: Sink, error: Exception) -> None:
        self._sinks = tuple(other for other in self._sinks if other is not sink)
        self.faults.append(f"{type(sink).__name__}: {error}; it gets no more figures of this run")
        with contextlib.suppress(Exception):
            sink.close()

    def close(self) -> None:
        """Close every sink, also after one fails."""
        for sink in self._sinks:
            try:
                sink.close()
            except Exception as error:
                self.faults.append(f"{type(sink).__name__}: {error}; its last figures may be missing")
        self._sinks = ()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- intervals -------------------------------------------------------------------------------


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a success rate (Wilson 1927); (0, 1) without episodes.

    Raises:
        ValueError: not 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and n = {n}, got {successes}")
    if n == 0:
        return 0.0, 1.0
    rate = successes / n
    centre = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of one figure for each seed, and the ends of its 95 % interval (Student's t).

    One value is its own interval: nothing is known of its scatter.

    Raises:
        ValueError: no value, or more than ten.
    """
    if not 1 <= len(values) <= len(_STUDENT) + 1:
        raise ValueError(f"values must be 1 to {len(_STUDENT) + 1} numbers, got {len(values)}")
    middle = statistics.fmean(values)
    if len(values) == 1:
        return middle, middle, middle
    half = _STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return middle, middle - half, middle + half


_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedGain:
    """A mean difference with its 95 % percentile interval.

    ``p``: two-sided bootstrap p-value of "no difference" (Efron & Tibshirani 1993), never
    below 1 / (resamples + 1).
    """

    gain: float
    low: float
    high: float
    p: float


def bootstrap_paired(
    before: npt.ArrayLike, after: npt.ArrayLike, seed: int, resamples: int = 10_000
) -> PairedGain:
    """Bootstrap ``mean(after - before)`` over pairs; both [n], pair i = the same initial state.

    Raises:
        ValueError: the two are not one-dimensional and equally long, or are empty.
    """
    difference = np.asarray(after, dtype=np.float64) - _checked(before, after)
    rng = np.random.default_rng(seed)
    n = len(difference)
    means = np.empty(resamples)
    for start in range(0, resamples, 500):  # bounds the memory of the index array
        count = min(500, resamples - start)
        means[start : start + count] = difference[rng.integers(0, n, size=(count, n))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    tail = min(np.count_nonzero(means <= 0), np.count_nonzero(means >= 0))
    p = min(1.0, 2 * (int(tail) + 1) / (resamples + 1))
    return PairedGain(gain=float(difference.mean()), low=float(low), high=float(high), p=p)


def _checked(before: npt.ArrayLike, after: npt.ArrayLike) -> npt.NDArray[np.float64]:
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after)
    if first.ndim != 1 or first.shape != second.shape or not len(first):
        raise ValueError(
            f"before and after must be [n] and equally long, got {first.shape} and {second.shape}"
        )
    return first


# --- figures ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One printed figure. ``bound``: the value it is held against, None without one."""

    name: str
    value: float
    unit: str
    bound: float | None = None


def write_figures(path: str | Path, rows: Sequence[Row]) -> None:
    """Write what ``--json FILE`` asks for: ``{"rows": [...], "versions": {...}}``.

    Raises:
        UserError: the file cannot be written.
    """
    listed = [{"name": row.name, "value": row.value, "unit": row.unit, "bound": row.bound} for row in rows]
    write_json(Path(path), {"rows": listed, "versions": versions()})
