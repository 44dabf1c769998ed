"""From trajectories in the slab to the chunks that an update trains on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlvla3.algorithms.advantage import chunk_rewards, valid_mask
from rlvla3.algorithms.api import Algorithm, Rollouts
from rlvla3.learner.api import Slab
from rlvla3.messages import Trajectory
from rlvla3.policies.api import PREFIX, PolicyModel

Fields = dict[str, npt.NDArray[Any]]

OBSERVATION = "observation."
RECORD = "record."


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """B chunks, batch first in every field."""

    observation: Fields
    record: Fields
    prefix: tuple[Tensor, ...]
    proximal: npt.NDArray[np.float32]
    """Log-prob under the policy at the start of the update, of the record's shape; the record's own (the
    behaviour policy's) until somebody computes it."""
    advantage: Tensor
    """Not normalised [B]."""
    returns: Tensor
    episode: npt.NDArray[np.int64]
    chunk: npt.NDArray[np.int64]
    """Index of the chunk within its episode."""
    version: npt.NDArray[np.int64]
    """Behaviour version."""

    def __len__(self) -> int:
        return len(self.episode)

    def take(self, index: npt.NDArray[np.int64]) -> Samples:
        """The chunks at ``index``, in that order."""
        at = torch.from_numpy(index)
        return Samples(
            observation={name: array[index] for name, array in self.observation.items()},
            record={name: array[index] for name, array in self.record.items()},
            prefix=tuple(tensor.index_select(0, at.to(tensor.device)) for tensor in self.prefix),
            proximal=self.proximal[index],
            advantage=self.advantage[at],
            returns=self.returns[at],
            episode=self.episode[index],
            chunk=self.chunk[index],
            version=self.version[index],
        )

    def pieces(self, order: npt.NDArray[np.int64], size: int) -> Iterator[Samples]:
        """``order`` cut into pieces of ``size`` (the last may be smaller)."""
        for first in range(0, len(order), size):
            yield self.take(order[first : first + size])

    def in_order(self) -> npt.NDArray[np.int64]:
        """Indices sorted by (episode, chunk): the same whatever the order of arrival."""
        return np.lexsort((self.chunk, self.episode)).astype(np.int64)


def join(parts: Sequence[Samples]) -> Samples:
    """All chunks of several parts."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Samples(
        observation={n: np.concatenate([p.observation[n] for p in parts]) for n in first.observation},
        record={n: np.concatenate([p.record[n] for p in parts]) for n in first.record},
        prefix=tuple(torch.cat(tensors) for tensors in zip(*(p.prefix for p in parts), strict=True)),
        proximal=np.concatenate([p.proximal for p in parts]),
        advantage=torch.cat([p.advantage for p in parts]),
        returns=torch.cat([p.returns for p in parts]),
        episode=np.concatenate([p.episode for p in parts]),
        chunk=np.concatenate([p.chunk for p in parts]),
        version=np.concatenate([p.version for p in parts]),
    )


def gather(
    trajectories: Sequence[Trajectory],
    slab: Slab,
    model: PolicyModel,
    algorithm: Algorithm,
    *,
    recompute_values: bool,
) -> tuple[Samples, dict[str, float]]:
    """Copy the valid chunks of trajectories out of the slab, with advantages and prefixes.

    The prefix is computed for one trajectory at a time, so that it does not depend (by rounding)
    on which trajectories arrived together.
    """
    parts = [_copy(trajectory, slab, model) for trajectory in trajectories]
    rollouts = _rollouts(trajectories, slab, model, recompute_values=recompute_values)
    estimates, metrics = algorithm.estimates(rollouts)
    valid = valid_mask(rollouts.length, rollouts.reward.shape[1])
    advantage, returns = estimates.advantage[valid], estimates.returns[valid]
    ends = np.cumsum([len(part["episode"]) for part, _, _, _ in parts])
    samples = [
        Samples(
            observation=observation,
            record=record,
            prefix=prefix,
            proximal=record["log_prob"],
            advantage=advantage[end - len(ids["episode"]) : end],
            returns=returns[end - len(ids["episode"]) : end],
            episode=ids["episode"],
            chunk=ids["chunk"],
            version=ids["version"],
        )
        for (ids, observation, record, prefix), end in zip(parts, ends, strict=True)
    ]
    return join(samples), metrics


def _copy(
    trajectory: Trajectory, slab: Slab, model: PolicyModel
) -> tuple[Fields, Fields, Fields, tuple[Tensor, ...]]:
    row, chunks = int(trajectory.row), trajectory.chunks
    observation = _fields(slab, OBSERVATION, row, slice(0, chunks))
    record = _fields(slab, RECORD, row, slice(0, chunks))
    prefix = model.prefix(observation, record)
    record.pop(PREFIX, None)
    ids: Fields = {
        "episode": np.full(chunks, int(trajectory.episode), np.int64),
        "chunk": np.arange(trajectory.first_chunk, trajectory.first_chunk + chunks, dtype=np.int64),
        "version": slab["version"][row, :chunks].astype(np.int64),
    }
    return ids, observation, record, prefix if isinstance(prefix, tuple) else (prefix,)


def _fields(slab: Slab, family: str, row: int, at: slice) -> Fields:
    return {
        name.removeprefix(family): np.array(array[row, at])
        for name, array in slab.items()
        if name.startswith(family)
    }


def _rollouts(
    trajectories: Sequence[Trajectory], slab: Slab, model: PolicyModel, *, recompute_values: bool
) -> Rollouts:
    rows = np.array([int(t.row) for t in trajectories])
    chunks = max(t.chunks for t in trajectories)
    sub_steps = torch.from_numpy(slab["sub_steps"][rows, :chunks])
    bootstrap = np.array(slab["bootstrap_value"][rows], np.float32)
    if recompute_values:
        for number, trajectory in enumerate(trajectories):
            if trajectory.end != "terminated":
                last = slice(trajectory.chunks, trajectory.chunks + 1)
                bootstrap[number] = model.values(_fields(slab, OBSERVATION, int(trajectory.row), last))[0]
    return Rollouts(
        reward=chunk_rewards(torch.from_numpy(slab["reward"][rows, :chunks]), sub_steps),
        value=torch.from_numpy(slab[RECORD + "value"][rows, :chunks]),
        bootstrap_value=torch.from_numpy(bootstrap),
        length=torch.tensor([t.chunks for t in trajectories]),
        terminated=torch.tensor([t.end == "terminated" for t in trajectories]),
    )
