"""The log-prob gap: what a rollout recorded against what the Trainer computes from the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from rlvla3.learner.metrics import Means, logprob_gap
from rlvla3.learner.minibatches import Chunks
from rlvla3.learner.parts import Parts
from rlvla3.learner.recomputing import Recomputing
from rlvla3.learner.samples import Samples

_CHUNKS = 32
"""Chunks that it is measured on: it costs one small pass."""


def measured(
    parts: Parts,
    recomputing: Recomputing,
    samples: Samples,
    chunks: Chunks,
    blank: Samples,
    weights: Mapping[int, Mapping[str, Tensor]],
) -> dict[str, float]:
    """Greatest and mean gap on some chunks of the newest version whose weights are at hand; empty where all
    chunks are of other versions.

    Args:
        parts, recomputing: the learner's.
        samples: this rank's chunks.
        chunks: those of all ranks.
        blank: a chunk without weight, for ranks that must compute and hold none of them.
        weights: trained weights of each version at hand; empty ones: those in place.
    """
    known = chunks.version[np.isin(chunks.version, list(weights))]
    if not len(known):
        return {}
    newest = int(known.max())
    batch = chunks.minibatch(np.flatnonzero(chunks.version == newest)[:_CHUNKS], 0)
    gaps = np.zeros(0)
    with torch.no_grad(), parts.optimiser.exchanged(weights[newest]) if weights[newest] else nullcontext():
        if len(batch.mine) or parts.ranks.sharded:
            piece = samples.take(batch.mine) if len(batch.mine) else blank
            log_prob = recomputing.log_prob((piece.prefix, piece.observation, piece.record))
            gaps = logprob_gap(log_prob, piece.record["log_prob"], piece.mask())
    means = Means()
    means.add_each({"gap": gaps, "gap_max": gaps} if len(batch.mine) else {})
    found = means.over(parts.ranks).values()
    return {"logprob_gap": found["gap_max"], "logprob_gap_mean": found["gap"]}
