"""A set of demonstrations, and the file it is kept in."""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError

FORMAT = 2
_OWN_ARRAYS = ("actions", "valid", "task", "episode", "lengths", "episode_task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """M stored frames of E successful episodes, ordered by task, then episode, then time."""

    observation: Mapping[str, npt.NDArray[Any]]
    """Raw observation fields by name, each [M, ...]."""
    actions: npt.NDArray[np.float32]
    """[M, C, A] labels in env units, in [-1, 1]."""
    valid: npt.NDArray[np.bool_]
    """[M, C]: false where the episode was over and the last label is repeated."""
    task: npt.NDArray[np.int64]
    """[M]: task index of each frame."""
    episode: npt.NDArray[np.int64]
    """[M]: which of the E episodes each frame is from."""
    lengths: npt.NDArray[np.int64]
    """[E]: sub-steps to success of each episode."""
    episode_task: npt.NDArray[np.int64]
    """[E]: task index of each episode."""
    header: Mapping[str, Any]
    """How it was made: format, tasks, fingerprint, plan, and ``failures`` for each task
    that was demonstrated."""

    def success_steps(self, quantile: float) -> dict[str, int]:
        """For each task the ``quantile`` of its episodes' sub-steps to success, rounded up (step budgets)."""
        tasks = self.header["tasks"]
        return {
            name: math.ceil(np.quantile(self.lengths[self.episode_task == index], quantile))
            for index, name in enumerate(tasks)
            if (self.episode_task == index).any()
        }


def save(dataset: Dataset, path: Path) -> None:
    """Write one safetensors file whose metadata is the JSON header; whole or not at all.

    Raises:
        UserError: it cannot be written, or the disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {f"observation.{name}": array for name, array in dataset.observation.items()}
    arrays |= {name: getattr(dataset, name) for name in _OWN_ARRAYS}
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            partial,
            metadata={"header": json.dumps(dataset.header, sort_keys=True)},
        )
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot be written ({error}); free space or choose another folder"
        ) from error


def load(path: Path, fingerprint: Mapping[str, Any] | None = None) -> Dataset:
    """Read a file of ``save``.

    Args:
        path: the file.
        fingerprint: of the simulator that the data will be used with; compared if given.

    Raises:
        UserError: no such file, not a demonstration file, or made with another camera, rendering
            or version than ``fingerprint`` (the differing entries are named).
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})["header"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            own = {name: arrays.pop(name) for name in _OWN_ARRAYS}
    except FileNotFoundError as error:
        raise UserError(f"demonstrations {path}: no such file") from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"demonstrations {path}: not a demonstration file ({error})") from error
    if header["format"] != FORMAT:
        raise UserError(f"demonstrations {path}: format {header['format']}, this version reads {FORMAT}")
    _same_fingerprint(path, header["fingerprint"], fingerprint)
    prefix = "observation."
    observation = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return Dataset(observation=observation, header=header, **own)


def _same_fingerprint(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> None:
    if wanted is None:
        return
    differing = [
        f"{key} {stored.get(key)!r} there, {wanted.get(key)!r} here"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key)
    ]
    if differing:
        raise UserError(
            f"demonstrations {path}: made with another simulator set-up: {'; '.join(differing)}; "
            "collect them again or use the same settings"
        )
