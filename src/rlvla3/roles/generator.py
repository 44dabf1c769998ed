"""The Generator role: holds policy copies, turns observations into action records."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rlvla3.messages import (
    Channel,
    Event,
    InferenceDone,
    Kind,
    LoadWeights,
    Member,
    MemberReady,
    Request,
    RunInference,
    Version,
    WeightsLoaded,
)
from rlvla3.policies import delivery
from rlvla3.policies.api import NoiseKey, PolicyModel
from rlvla3.policies.wrapping import base_of
from rlvla3.roles.slab import Slab, stamp
from rlvla3.usage import Usage

Arrays = dict[str, npt.NDArray[Any]]


class WeightReader(Protocol):
    """Where published weights come from."""

    def read(self, channel: Channel, buffer: int, version: Version) -> Arrays:
        """A private copy of that version."""
        ...


class GeneratorRole:
    """Stateless between batches but for its weights: one model for each channel in use."""

    def __init__(
        self,
        *,
        member: Member,
        build: Callable[[], PolicyModel],
        weights: WeightReader,
        slab: Slab,
        seed: int,
        emit: Callable[[Event], None],
        initial: tuple[Version, Arrays] | None,
        pad_to: int,
    ) -> None:
        """``initial``: evaluation weights of a run without a Trainer. ``pad_to``: batches are
        padded to this many samples, so that results do not depend on the batch; 0 for no padding.
        """
        self._member = member
        self._build = build
        self._weights = weights
        self._slab = slab
        self._seed = seed
        self._emit = emit
        self._initial = initial
        self._pad_to = pad_to
        self._models: dict[Channel, PolicyModel] = {}
        self._versions: dict[Channel, Version] = {}
        self._digests: dict[Channel, bytes] = {}
        """Of what each channel's model is not sent: it never changes, so it is hashed once."""
        self._fields = {
            n.removeprefix("observation."): a for n, a in slab.items() if n.startswith("observation.")
        }
        self.usage = Usage(whole_process=True)

    def start(self) -> None:
        """Build the model that every channel starts from."""
        self._models["rollout"] = self._build()
        self._emit(MemberReady(member=self._member))
        if self._initial is not None:
            version, weights = self._initial
            self._serve("evaluation", version, weights)

    def handle(self, command: object) -> None:
        """Do one command."""
        if isinstance(command, RunInference):
            self._run(command)
        elif isinstance(command, LoadWeights):
            with self.usage("load"):
                weights = self._weights.read(command.channel, command.buffer, command.version)
                self._serve(command.channel, command.version, weights)
        else:
            raise TypeError(f"a Generator cannot do {type(command).__name__}")

    def close(self) -> None:
        """Nothing is held that the end of the process does not free."""

    def usages(self) -> list[Usage]:
        """Its one time account."""
        return [self.usage]

    def doing(self) -> list[str]:
        """Nothing that the stack of its one thread does not tell."""
        return []

    def _serve(self, channel: Channel, version: Version, weights: Arrays) -> None:
        if channel not in self._models:
            self._models[channel] = self._build()
        model = self._models[channel]
        weights, checksum = delivery.opened(weights)
        model.load_arrays(weights)
        if checksum:
            if channel not in self._digests:
                self._digests[channel] = delivery.digest(base_of(model))
            what = f"version {version} for {channel}"
            delivery.verify(model.arrays(), self._digests[channel], checksum, what)
        self._versions[channel] = version
        self._emit(WeightsLoaded(member=self._member, channel=channel, version=version))

    def _run(self, command: RunInference) -> None:
        model = self._models[command.channel]
        version = self._versions[command.channel]
        with self.usage("infer"):
            self._act(model, version, command)
            self._value(model, command.requests)
        self._emit(InferenceDone(member=self._member, batch=command.batch, version=version))

    def _act(self, model: PolicyModel, version: Version, command: RunInference) -> None:
        rows, chunks = map(np.array, _places(command.requests, "act"))
        n = len(rows)
        if not n:
            return
        episodes = self._slab["episode"][rows].tolist()
        indices = self._slab["chunk_index"][rows, chunks].tolist()
        keys = tuple(
            [NoiseKey(seed=self._seed, episode=e, chunk=c) for e, c in zip(episodes, indices, strict=True)]
        )
        padding = max(self._pad_to - n, 0)
        observation = self._observation(rows, chunks, padding)
        record = model.act(observation, keys + keys[-1:] * padding, command.channel == "rollout")
        for name, values in record.items():
            self._slab[f"record.{name}"][rows, chunks] = values[:n]
        self._slab["version"][rows, chunks] = version
        self._slab["stamp"][rows, chunks] = [stamp(e, c) for e, c in zip(episodes, indices, strict=True)]

    def _value(self, model: PolicyModel, requests: Sequence[Request]) -> None:
        rows, chunks = map(np.array, _places(requests, "value"))
        if len(rows):
            padding = max(self._pad_to - len(rows), 0)
            values = model.values(self._observation(rows, chunks, padding))
            self._slab["bootstrap_value"][rows] = values[: len(rows)]

    def _observation(self, rows: npt.NDArray[Any], chunks: npt.NDArray[Any], padding: int) -> Arrays:
        if padding:
            rows = np.concatenate([rows, np.repeat(rows[-1:], padding)])
            chunks = np.concatenate([chunks, np.repeat(chunks[-1:], padding)])
        return {name: array[rows, chunks] for name, array in self._fields.items()}


def _places(requests: Sequence[Request], kind: Kind) -> tuple[list[int], list[int]]:
    rows: list[int] = []
    chunks: list[int] = []
    for request in requests:
        if request.kind == kind:
            rows += request.rows
            chunks += request.chunks
    return rows, chunks
