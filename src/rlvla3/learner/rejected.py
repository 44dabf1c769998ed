"""The batch of an update that was not finite: kept on disk, looked into, run again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rlvla3.errors import UserError
from rlvla3.learner.samples import OBSERVATION, RECORD, Samples, join
from rlvla3.learner.tensors import read_tensors, write_tensors
from rlvla3.policies.api import PolicyModel

SAMPLES = "samples.safetensors"
REJECTED = "rejected.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A chunk with numbers that are not finite."""

    field: str
    """Such as ``observation.state`` or ``record.log_prob``."""
    episode: int
    chunk: int
    """Index within its episode."""
    value: float
    """The first of them: NaN or an infinity."""


def write(folder: Path, samples: Samples, reason: str) -> None:
    """Add the batch to a folder that holds the learner as it was before the update.

    Raises:
        UserError: the disk refused.
    """
    # What an update puts together are whole trajectories one after the other.
    arrays = _arrays(samples)
    write_tensors(folder / SAMPLES, {name: torch.from_numpy(array) for name, array in arrays.items()})
    (folder / REJECTED).write_text(json.dumps({"reason": reason, "chunks": len(samples)}, indent=2))


def read(folder: Path, model: PolicyModel) -> tuple[Samples, str]:
    """The batch, with prefixes computed anew by ``model``, and why it was rejected.

    Raises:
        UserError: the folder holds none, or it is damaged.
    """
    if not (folder / REJECTED).is_file():
        raise UserError(f"{folder}: holds no rejected batch; give a folder below RUN/rejected")
    try:
        reason = str(json.loads((folder / REJECTED).read_text())["reason"])
        arrays = {name: tensor.numpy() for name, tensor in read_tensors(folder / SAMPLES).items()}
        if not len(arrays["episode"]):
            raise ValueError("no chunks")
        parts = [_part(arrays, piece, model) for piece in _trajectories(arrays["episode"], arrays["chunk"])]
        return join(parts), reason
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{folder}: the rejected batch is damaged ({error!r}); use another one") from error


def findings(samples: Samples) -> Iterator[Finding]:
    """Every chunk and field that holds a number which is not finite."""
    for field, array in _arrays(samples).items():
        if array.dtype.kind != "f":
            continue
        flat = array.reshape(len(samples), -1)
        broken = ~np.isfinite(flat)
        for index in np.flatnonzero(broken.any(axis=1)):
            yield Finding(
                field=field,
                episode=int(samples.episode[index]),
                chunk=int(samples.chunk[index]),
                value=float(flat[index][broken[index]][0]),
            )


def _arrays(samples: Samples) -> dict[str, npt.NDArray[Any]]:
    return {
        **{OBSERVATION + name: array for name, array in samples.observation.items()},
        **{RECORD + name: array for name, array in samples.record.items()},
        "proximal": samples.proximal,
        "reference": samples.reference,
        "value": samples.value,
        "weight": samples.weight,
        "executed": samples.executed,
        "advantage": samples.advantage.numpy(),
        "returns": samples.returns.numpy(),
        "episode": samples.episode,
        "chunk": samples.chunk,
        "version": samples.version,
    }


def _trajectories(episode: npt.NDArray[Any], chunk: npt.NDArray[Any]) -> Sequence[slice]:
    """Where the trajectories lie: runs of consecutive chunks of one episode."""
    breaks = (np.diff(episode) != 0) | (np.diff(chunk) != 1)
    ends = [*(np.flatnonzero(breaks) + 1).tolist(), len(episode)]
    return [slice(first, end) for first, end in zip([0, *ends[:-1]], ends, strict=True)]


def _part(arrays: dict[str, npt.NDArray[Any]], piece: slice, model: PolicyModel) -> Samples:
    def family(name: str) -> dict[str, npt.NDArray[Any]]:
        return {key.removeprefix(name): a[piece] for key, a in arrays.items() if key.startswith(name)}

    observation, record = family(OBSERVATION), family(RECORD)
    prefix = model.prefix(observation, record)
    return Samples(
        observation=observation,
        record=record,
        prefix=prefix if isinstance(prefix, tuple) else (prefix,),
        proximal=arrays["proximal"][piece],
        reference=arrays["reference"][piece],
        value=arrays["value"][piece],
        weight=arrays["weight"][piece],
        executed=arrays["executed"][piece],
        advantage=torch.from_numpy(arrays["advantage"][piece]),
        returns=torch.from_numpy(arrays["returns"][piece]),
        episode=arrays["episode"][piece],
        chunk=arrays["chunk"][piece],
        version=arrays["version"][piece],
    )
