"""The weights of both channels: the newest version for rollouts, the pinned one for evaluation.

The Trainer writes a version as soon as a buffer is free; a Generator loads between batches.
"""

from rlvla3.core.evaluation import Evaluation
from rlvla3.core.health import Health
from rlvla3.core.outbox import Outbox
from rlvla3.core.publishing import NONE, Publisher
from rlvla3.core.settings import EngineSettings
from rlvla3.messages import (
    Channel,
    LoadWeights,
    Member,
    PublishWeights,
    Version,
    WeightsLoaded,
    WeightsPublished,
)

PUBLISH, LOAD = "a publish", "a load"


class Weights:
    """Who serves what, and the commands that change it."""

    def __init__(
        self, settings: EngineSettings, evaluation: Evaluation, health: Health, outbox: Outbox
    ) -> None:
        topology = settings.topology
        self._trainers = topology.trainers
        self._settings = settings.health
        self._evaluation = evaluation
        self._health = health
        self._outbox = outbox
        self._rollout = Publisher("rollout", settings.weight_buffers, topology.generators)
        self._pinned = Publisher("evaluation", 2, topology.generators)
        self._generators = topology.generators

    @property
    def lowest(self) -> Version:
        """Lowest rollout version over the serving Generators; NONE while nothing is served."""
        return self._rollout.lowest if self._trainers else NONE

    @property
    def pending(self) -> bool:
        """Whether a version waits to be written or is being written: the Trainer must keep it."""
        return self._rollout.pending or self._pinned.pending

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation goes on and every Generator that is up holds its version."""
        version = self._evaluation.version
        if version is None or self._pinned.newest != version:
            return False
        return all(self._pinned.serving[g] == version for g in self._generators if self._health.up(g))

    def serves(self, generator: Member) -> bool:
        """Whether the Generator is up and holds all the weights that requests may need."""
        if not self._health.up(generator):
            return False
        if self._trainers and self._rollout.serving[generator] == NONE:
            return False
        pinned = self._evaluation.version
        return pinned is None or self._pinned.newest != pinned or self._pinned.serving[generator] == pinned

    def loading(self, generator: Member) -> bool:
        """Whether the Generator is reading a buffer."""
        return self._rollout.loading(generator) or self._pinned.loading(generator)

    def request(self, channel: Channel, version: Version) -> None:
        """The Trainer holds ``version`` and should write it."""
        self._of(channel).request(version)

    def write(self, now_s: float) -> None:
        """Let the Trainer write what is due, where a buffer is free."""
        for publisher in (self._rollout, self._pinned):
            write = publisher.next_write()
            if write is None:
                continue
            version, buffer = write
            # The first member writes, and answers; gathering the weights may need them all.
            self._health.begin(self._trainers[0], PUBLISH, self._settings.update_timeout_s, now_s)
            for trainer in self._trainers:
                self._outbox.send(
                    PublishWeights(member=trainer, channel=publisher.channel, version=version, buffer=buffer)
                )

    def published(self, event: WeightsPublished, now_s: float) -> None:
        """A buffer is complete."""
        self._health.end(event.member, PUBLISH, now_s)
        self._of(event.channel).published(event.version, event.buffer)

    def load(self, generator: Member, now_s: float) -> None:
        """Let a Generator that runs no batch load what is newer than what it serves."""
        if not self._health.up(generator) or self.loading(generator):
            return
        for publisher in (self._rollout, self._pinned):
            load = publisher.next_load(generator)
            if load is None or (publisher is self._pinned and self._evaluation.version is None):
                continue
            version, buffer = load
            publisher.reads(generator, buffer)
            self._health.begin(generator, LOAD, self._settings.inference_timeout_s, now_s)
            self._outbox.send(
                LoadWeights(member=generator, channel=publisher.channel, version=version, buffer=buffer)
            )
            return

    def loaded(self, event: WeightsLoaded, now_s: float) -> None:
        """A Generator serves a version; in a pure evaluation without having been told to."""
        publisher = self._of(event.channel)
        if publisher.loading(event.member):
            self._health.end(event.member, LOAD, now_s)
        publisher.loaded(event.member, event.version)

    def gone(self, generator: Member) -> None:
        """The Generator's process is gone: it reads and serves nothing."""
        self._rollout.gone(generator)
        self._pinned.gone(generator)

    def _of(self, channel: Channel) -> Publisher:
        return self._rollout if channel == "rollout" else self._pinned
