"""What the Trainer role needs of a learner. Importing this module does not import torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from rlvla3.messages import Channel, Trajectory

Slab = Mapping[str, npt.NDArray[Any]]
"""The trajectory slab by field name. R rows, T chunks, C sub-steps in a chunk:

``observation.<field>`` [R, T+1, ...] raw observations, with ``observation.task`` int64 and
``observation.elapsed`` float32 (sub-steps done / step limit, 0 without a limit);
``record.<field>`` [R, T, ...] the policy's action records; ``version`` int64 [R, T];
``reward`` float32 [R, T, C], 0 after the end; ``sub_steps`` int32 [R, T] executed sub-steps;
``bootstrap_value`` float32 [R], V of the final observation; ``episode`` int64 [R].
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one update did."""

    skipped: str
    """Why nothing changed, in one line: something was not finite, or the data were too far off policy; empty:
    there is a new version."""
    rejected: bool
    """Something was not finite, so that ``save_rejected`` has a batch to keep."""
    metrics: Mapping[str, float]


class Learner(Protocol):
    """Turns trajectories into weights. One update: ``ingest`` any number of times, ``update``."""

    version: int
    """Version of the weights held now; +1 by each update that is not skipped."""

    def ingest(self, trajectories: Sequence[Trajectory], slab: Slab) -> None:
        """Take in finished trajectories: advantages, frozen prefixes and, when streaming, the
        first pass's gradient. Rows stay valid until the update ends."""
        ...

    def update(self) -> UpdateReport:
        """Run the (remaining) epochs over everything taken in, then forget it."""
        ...

    def weights(self, channel: Channel) -> Mapping[str, npt.NDArray[Any]]:
        """Parameters and buffers by name; ``evaluation`` gives the averaged ones if configured."""
        ...

    def save(self, folder: Path | None) -> None:
        """Write weights, average, optimiser, schedule, RNG, counters into an empty folder. Every rank takes
        part; the first is given the folder, the others None."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, exactly."""
        ...

    def save_rejected(self, folder: Path) -> None:
        """Add to what ``save`` wrote the batch of the last update, which was rejected, for ``replay``."""
        ...

    def replay(self, folder: Path) -> UpdateReport:
        """Run the update of a rejected batch again, from the state saved with it."""
        ...


@runtime_checkable
class HasBase(Protocol):
    """A learner whose ``weights`` may leave out what never trains."""

    def base(self) -> Mapping[str, npt.NDArray[Any]]:
        """What they leave out; with it they are the whole policy, adapters not yet folded in."""
        ...
