"""The Trainer role: turns trajectories into updates, weights and checkpoints."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.learner.api import HasBase, Learner
from rlvla3.messages import (
    Channel,
    CheckpointSaved,
    Event,
    FinishUpdate,
    Member,
    MemberReady,
    MicroBatchDone,
    PublishWeights,
    SaveBest,
    SaveCheckpoint,
    TrainMicroBatch,
    UpdateDone,
    Version,
    WeightsPublished,
)
from rlvla3.policies import delivery
from rlvla3.policies.folding import fold
from rlvla3.roles.slab import Slab
from rlvla3.usage import Usage

Arrays = Mapping[str, npt.NDArray[Any]]


class WeightWriter(Protocol):
    """Where published weights go."""

    def write(self, channel: Channel, buffer: int, version: Version, weights: Arrays) -> None:
        """Write one version, complete when this returns."""
        ...


class Keeper(Protocol):
    """Where checkpoints go."""

    def save(self, learner: Learner, version: Version, engine_state: str) -> None:
        """Write a complete checkpoint, atomically."""
        ...

    def save_best(self, version: Version, weights: Arrays, score: float) -> None:
        """Keep these evaluation weights as the best so far."""
        ...

    def save_rejected(self, learner: Learner) -> None:
        """Keep the batch of an update that was rejected, to look into it later."""
        ...


class TrainerRole:
    """One learner, driven by commands; reports figures through ``report``.

    The Trainer may have several members, and all get the same commands in one order. The first one alone
    writes weights and checkpoints, reports figures, and answers for what it writes.
    """

    def __init__(
        self,
        *,
        member: Member,
        first: bool,
        build: Callable[[], Learner],
        weights: WeightWriter,
        keeper: Keeper,
        slab: Slab,
        emit: Callable[[Event], None],
        report: Callable[[str, Mapping[str, float]], None],
    ) -> None:
        self._member = member
        self._first = first
        self._build = build
        self._weights = weights
        self._keeper = keeper
        self._slab = slab
        self._emit = emit
        self._report = report
        self._learner: Learner | None = None
        self._pinned: tuple[Version, Arrays] | None = None
        self.usage = Usage(whole_process=True)
        self._handlers: dict[type, Callable[[Any], None]] = {
            TrainMicroBatch: self._ingest,
            FinishUpdate: self._update,
            PublishWeights: self._publish,
            SaveCheckpoint: self._save,
            SaveBest: self._save_best,
        }

    @property
    def learner(self) -> Learner:
        """The learner, once started."""
        assert self._learner is not None
        return self._learner

    def start(self) -> None:
        """Build the learner (from a checkpoint on resume)."""
        self._learner = self._build()
        self._emit(MemberReady(member=self._member))

    def handle(self, command: object) -> None:
        """Do one command."""
        handler = self._handlers.get(type(command))
        if handler is None:
            raise TypeError(f"a Trainer cannot do {type(command).__name__}")
        handler(command)

    def close(self) -> None:
        """Nothing is held that the end of the process does not free."""

    def usages(self) -> list[Usage]:
        """Its one time account."""
        return [self.usage]

    def doing(self) -> list[str]:
        """Nothing that the stack of its one thread does not tell."""
        return []

    def _ingest(self, command: TrainMicroBatch) -> None:
        with self.usage("train"):
            self.learner.ingest(command.trajectories, self._slab)
        self._emit(MicroBatchDone(member=self._member, update=command.update))

    def _update(self, command: FinishUpdate) -> None:
        with self.usage("train"):
            outcome = self.learner.update()
        if self._first:
            self._report("update", outcome.metrics)
        if outcome.rejected and self._first:
            with self.usage("checkpoint"):
                self._keeper.save_rejected(self.learner)
        self._emit(UpdateDone(member=self._member, update=command.update, skipped=outcome.skipped))

    def _publish(self, command: PublishWeights) -> None:
        with self.usage("publish"):
            if command.version != self.learner.version:
                raise RuntimeError(
                    f"asked to publish version {command.version}, holds {self.learner.version}"
                )
            # Every member takes part: gathering the weights may need all of them.
            weights, of_base = self.learner.weights(command.channel), self._digest_of_base
            if command.channel == "evaluation":
                self._pinned = (command.version, {n: a.copy() for n, a in weights.items()})
            if not self._first:
                return
            _refuse_not_finite(weights, command.version)
            self._weights.write(
                command.channel, command.buffer, command.version, delivery.sealed(weights, of_base)
            )
        self._emit(
            WeightsPublished(
                member=self._member,
                channel=command.channel,
                version=command.version,
                buffer=command.buffer,
            )
        )

    def _save(self, command: SaveCheckpoint) -> None:
        with self.usage("checkpoint"):
            if not self._first:
                self.learner.save(None)
                return
            self._keeper.save(self.learner, command.version, command.engine_state)
        self._emit(CheckpointSaved(member=self._member, version=command.version))

    def _save_best(self, command: SaveBest) -> None:
        if self._pinned is not None and self._pinned[0] == command.version:
            with self.usage("checkpoint"):
                whole = fold({**self._base(), **self._pinned[1]})
                if self._first:
                    self._keeper.save_best(command.version, whole, command.score)

    @cached_property
    def _digest_of_base(self) -> bytes:
        """Of what is not published, which never changes: hashed once."""
        return delivery.digest(self._base())

    def _base(self) -> Arrays:
        return self.learner.base() if isinstance(self.learner, HasBase) else {}


def _refuse_not_finite(weights: Arrays, version: Version) -> None:
    """The last guard before Generators act with them: of a start that was broken, or a buffer.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UserError(
                f"version {version} is not published: {name} holds numbers that are not finite; "
                "start from other weights, or from an earlier checkpoint"
            )
