"""From trajectories in the slab to the chunks that an update trains on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlvla3.algorithms.advantage import chunk_rewards, valid_mask
from rlvla3.algorithms.api import Algorithm, Figures, Rollouts
from rlvla3.learner.api import Slab
from rlvla3.learner.groups import start_differences
from rlvla3.learner.recomputing import Inputs, Recomputing
from rlvla3.learner.settings import Aggregate
from rlvla3.messages import Trajectory
from rlvla3.policies.api import PREFIX

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
    behaviour policy's) where nobody needs it."""
    reference: npt.NDArray[np.float32]
    """Log-prob under the policy that the run started from; the record's own where nobody needs it."""
    value: npt.NDArray[np.float32]
    """What the advantages were computed with [B]."""
    advantage: Tensor
    """Not normalised [B]."""
    returns: Tensor
    weight: npt.NDArray[np.float64]
    """How much each chunk counts in the loss [B]."""
    executed: npt.NDArray[np.int32]
    """Executed sub-steps [B]; the actions after them do not count."""
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

        def taken(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: array[index] for name, array in value.items()}
            if isinstance(value, tuple):
                return tuple(tensor.index_select(0, at.to(tensor.device)) for tensor in value)
            return value[at] if isinstance(value, Tensor) else value[index]

        return Samples(**{f.name: taken(getattr(self, f.name)) for f in fields(self)})

    def pieces(self, order: npt.NDArray[np.int64], size: int) -> Iterator[Samples]:
        """``order`` cut into pieces of ``size`` (the last may be smaller)."""
        for first in range(0, len(order), size):
            yield self.take(order[first : first + size])

    def in_order(self) -> npt.NDArray[np.int64]:
        """Indices sorted by (episode, chunk): the same whatever the order of arrival."""
        return np.lexsort((self.chunk, self.episode)).astype(np.int64)

    def mask(self) -> npt.NDArray[np.bool_]:
        """Which elements of the log-probs count, of their shape: a chunk always, actions if executed."""
        shape = self.record["log_prob"].shape
        mask = np.ones(shape, bool)
        if len(shape) > 1:
            counts = np.arange(shape[1]) < self.executed[:, None]
            mask &= counts.reshape(*counts.shape, *(1,) * (len(shape) - 2))
        return mask

    def log_weight(self) -> npt.NDArray[np.float64]:
        """log π_proximal − log π_behaviour of each whole chunk [B]."""
        gap = np.where(self.mask(), self.proximal.astype(np.float64) - self.record["log_prob"], 0.0)
        total: npt.NDArray[np.float64] = gap.sum(axis=tuple(range(1, gap.ndim)))
        return total


def join(parts: Sequence[Samples]) -> Samples:
    """All chunks of several parts."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]

    def joined(values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, dict):
            return {name: np.concatenate([value[name] for value in values]) for name in first}
        if isinstance(first, tuple):
            return tuple(torch.cat(tensors) for tensors in zip(*values, strict=True))
        return torch.cat(list(values)) if isinstance(first, Tensor) else np.concatenate(values)

    return Samples(**{f.name: joined([getattr(p, f.name) for p in parts]) for f in fields(Samples)})


@dataclass(slots=True)
class _Part:
    """What the slab holds of one trajectory, and what is computed from it."""

    trajectory: Trajectory
    observation: Fields
    record: Fields
    final: Fields
    """Observation after the last chunk [1, ...]."""
    reward: npt.NDArray[np.float32]
    executed: npt.NDArray[np.int32]
    version: npt.NDArray[np.int64]
    prefix: tuple[Tensor, ...] = ()

    @property
    def log_prob(self) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = self.record["log_prob"]
        return found


def gather(
    trajectories: Sequence[Trajectory],
    slab: Slab,
    algorithm: Algorithm,
    recomputing: Recomputing,
    *,
    version: int,
    aggregate: Aggregate,
) -> tuple[Samples, Figures]:
    """Copy the valid chunks of trajectories out of the slab, with advantages and all that is recomputed.

    Everything is computed for one trajectory at a time, so that it does not depend (by rounding) on which
    trajectories arrived together. Every rank must call this equally often; one without trajectories
    computes on a blank chunk where weights are shared, and gets no samples.

    Args:
        trajectories: finished ones; groups are whole.
        slab: what holds them.
        algorithm: estimates the advantages.
        recomputing: computes what the rollout did not record.
        version: the present one; what it acted has the record's own log-probs.
        aggregate: what counts the same in the loss.

    Returns:
        The samples and the algorithm's figures of each trajectory [N].

    Raises:
        ValueError: a chunk's behaviour version is newer than ``version``.
    """
    parts = [_copied(trajectory, slab) for trajectory in trajectories]
    for part in parts:
        if part.version.max() > version:
            raise ValueError(f"behaviour version {part.version.max()} is newer than the learner's {version}")
    blank = recomputing.blank(slab)
    for part, prefix in zip(
        parts, recomputing.prefixes([(p.observation, p.record) for p in parts], blank), strict=True
    ):
        part.prefix = prefix
        part.record.pop(PREFIX, None)
    inputs = [(p.prefix, p.observation, p.record) for p in parts]
    proximal = _proximal(parts, recomputing, inputs, blank, version)
    reference = recomputing.reference(inputs, blank)
    values = recomputing.values(inputs, blank)
    finals = recomputing.final_values([p.final for p in parts], blank)
    if not parts:
        return blanks(blank, 0), {}
    bootstrap = [
        found if found is not None else float(slab["bootstrap_value"][int(p.trajectory.row)])
        for p, found in zip(parts, finals, strict=True)
    ]
    rollouts = _rollouts(parts, values, bootstrap, proximal, reference, algorithm)
    estimates, figures = algorithm.estimates(rollouts)
    if algorithm.needs.groups:
        first = [{name: array[0] for name, array in part.observation.items()} for part in parts]
        differences = start_differences(trajectories, first, algorithm.needs.groups)
        figures = {**figures, "group/start_difference_max": torch.from_numpy(differences)}
    samples = [
        Samples(
            observation=part.observation,
            record=part.record,
            prefix=part.prefix,
            proximal=proximal[n],
            reference=reference[n],
            value=values[n],
            advantage=estimates.advantage[n, : part.trajectory.chunks],
            returns=estimates.returns[n, : part.trajectory.chunks],
            weight=_weights(part, aggregate),
            executed=part.executed,
            episode=np.full(part.trajectory.chunks, int(part.trajectory.episode), np.int64),
            chunk=np.arange(part.trajectory.chunks, dtype=np.int64) + part.trajectory.first_chunk,
            version=part.version,
        )
        for n, part in enumerate(parts)
    ]
    return join(samples), figures


def _proximal(
    parts: Sequence[_Part], recomputing: Recomputing, inputs: Sequence[Inputs], blank: Inputs, version: int
) -> list[npt.NDArray[np.float32]]:
    """Log-probs under the present policy; what it acted itself has the Generator's own."""
    stale = [bool((part.version < version).any()) for part in parts]
    computed = recomputing.proximal(inputs, stale, blank)
    fresh = [(part.version == version).reshape(-1, *(1,) * (part.log_prob.ndim - 1)) for part in parts]
    return [np.where(f, part.log_prob, new) for f, part, new in zip(fresh, parts, computed, strict=True)]


def blanks(blank: Inputs, count: int) -> Samples:
    """``count`` (0 or 1) samples without weight, of the kind that ``blank`` is."""
    prefix, observation, record = blank
    ids, log_prob = np.zeros(count, np.int64), record["log_prob"][:count]
    return Samples(
        observation={name: array[:count] for name, array in observation.items()},
        record={name: array[:count] for name, array in record.items()},
        prefix=tuple(tensor[:count] for tensor in prefix),
        proximal=log_prob,
        reference=log_prob,
        value=np.zeros(count, np.float32),
        advantage=torch.zeros(count),
        returns=torch.zeros(count),
        weight=np.zeros(count),
        executed=np.zeros(count, np.int32),
        episode=ids,
        chunk=ids,
        version=ids,
    )


def _copied(trajectory: Trajectory, slab: Slab) -> _Part:
    row, chunks = int(trajectory.row), trajectory.chunks
    return _Part(
        trajectory=trajectory,
        observation=_fields(slab, OBSERVATION, row, slice(0, chunks)),
        record=_fields(slab, RECORD, row, slice(0, chunks)),
        final=_fields(slab, OBSERVATION, row, slice(chunks, chunks + 1)),
        reward=np.array(slab["reward"][row, :chunks]),
        executed=np.array(slab["sub_steps"][row, :chunks], np.int32),
        version=slab["version"][row, :chunks].astype(np.int64),
    )


def _fields(slab: Slab, family: str, row: int, at: slice) -> Fields:
    return {
        name.removeprefix(family): np.array(array[row, at])
        for name, array in slab.items()
        if name.startswith(family)
    }


def _weights(part: _Part, aggregate: Aggregate) -> npt.NDArray[np.float64]:
    """A chunk counts by its elements: all of them where a chunk is one, else those that were executed."""
    shape = part.log_prob.shape
    share = part.executed / shape[1] if len(shape) > 1 else np.ones(len(part.executed))
    return share / share.sum() if aggregate == "episode" else share.astype(np.float64)


def _rollouts(
    parts: Sequence[_Part],
    values: Sequence[npt.NDArray[np.float32]],
    bootstrap: Sequence[float],
    proximal: Sequence[npt.NDArray[np.float32]],
    reference: Sequence[npt.NDArray[np.float32]],
    algorithm: Algorithm,
) -> Rollouts:
    length = torch.tensor([p.trajectory.chunks for p in parts])
    chunks = int(length.max())
    groups = algorithm.needs.groups
    success = groups is None or groups.score == "success"
    score = [float(p.trajectory.success if success else p.trajectory.total_reward) for p in parts]
    rewards = [chunk_rewards(torch.from_numpy(p.reward), torch.from_numpy(p.executed)) for p in parts]
    ends = np.array([value if algorithm.needs.values else 0.0 for value in bootstrap], np.float32)
    return Rollouts(
        reward=_padded(rewards, chunks),
        value=_padded([torch.from_numpy(value) for value in values], chunks),
        bootstrap_value=torch.from_numpy(ends),
        length=length,
        terminated=torch.tensor([p.trajectory.end == "terminated" for p in parts]),
        log_weight=_padded(
            [_gap(new, p.log_prob, p) for new, p in zip(proximal, parts, strict=True)], chunks
        ),
        reference_gap=_padded(
            [_gap(p.log_prob, old, p) for old, p in zip(reference, parts, strict=True)], chunks
        ),
        score=torch.tensor(score, dtype=torch.float64),
        group=torch.tensor([int(p.trajectory.group) for p in parts]),
    )


def _gap(log_prob: npt.NDArray[Any], other: npt.NDArray[Any], part: _Part) -> Tensor:
    """Difference of two log-probs of each whole chunk [T], over what was executed."""
    gap = log_prob.astype(np.float64) - other
    if gap.ndim > 1:
        executed = np.arange(gap.shape[1]) < part.executed[:, None]
        gap = np.where(executed.reshape(*executed.shape, *(1,) * (gap.ndim - 2)), gap, 0.0)
        gap = gap.reshape(len(gap), -1).sum(1)
    return torch.from_numpy(gap.astype(np.float32))


def _padded(rows: Sequence[Tensor], chunks: int) -> Tensor:
    """[N, T] of rows of different lengths, 0 behind their ends; ``valid_mask`` tells where these are."""
    padded = torch.zeros(len(rows), chunks)
    padded[valid_mask(torch.tensor([len(row) for row in rows]), chunks)] = torch.cat(
        [r.float() for r in rows]
    )
    return padded
