"""Which chunks of all ranks make which minibatch.

Minibatches are drawn from the chunks of the whole update, across time, episodes and ranks; each rank
computes those that it holds. So the steps are the same whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlvla3.learner.ranks import Ranks
from rlvla3.learner.samples import Samples

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """Chunks of one optimiser step."""

    mine: Indices
    """Those that this rank holds, as indices into its samples."""
    passes: int
    """Forward passes that every rank makes: those of the rank with the most chunks."""
    weight: float
    """Total weight of the minibatch over all ranks."""
    count: int
    """Chunks over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """All chunks of an update, of every rank, in an order that no arrival can change."""

    version: Indices
    """Behaviour version of each."""
    weight: npt.NDArray[np.float64]
    rank: Indices
    """Who holds it."""
    index: Indices
    """Where it is among that rank's samples."""
    me: int

    @classmethod
    def of(cls, samples: Samples, ranks: Ranks) -> Chunks:
        """Learn what the others hold; every rank must ask."""
        ids = np.stack([samples.episode, samples.chunk, samples.version], axis=1)
        held, weights = ranks.gathered(ids), ranks.gathered(samples.weight)
        episode, chunk, version = np.concatenate(held).T
        order = np.lexsort((chunk, episode))
        return cls(
            version=version[order],
            weight=np.concatenate(weights)[order],
            rank=np.concatenate([np.full(len(part), n) for n, part in enumerate(held)])[order],
            index=np.concatenate([np.arange(len(part)) for part in held])[order],
            me=ranks.rank,
        )

    def __len__(self) -> int:
        return len(self.version)

    def minibatches(self, shuffle: tuple[int, ...], size: int, forward_batch: int) -> Iterator[Minibatch]:
        """One pass over all chunks in the shuffle that the numbers ``shuffle`` name."""
        order = np.random.default_rng(shuffle).permutation(len(self))
        for first in range(0, len(self), size):
            yield self.minibatch(order[first : first + size], forward_batch)

    def minibatch(self, chosen: Indices, forward_batch: int) -> Minibatch:
        """The chunks at ``chosen``."""
        holders = self.rank[chosen]
        most = int(np.bincount(holders).max()) if len(chosen) else 0
        return Minibatch(
            mine=self.index[chosen][holders == self.me],
            passes=-(-most // forward_batch) if forward_batch else min(most, 1),
            weight=float(self.weight[chosen].sum()),
            count=len(chosen),
        )
