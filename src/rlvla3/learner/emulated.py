"""A learner that only costs time: for benchmarks of scheduling on emulated devices. No torch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from rlvla3.errors import UserError
from rlvla3.learner.api import Slab, UpdateReport
from rlvla3.messages import Channel, Trajectory
from rlvla3.settings import Settings


class EmulatedLearnerSettings(Settings):
    """Settings of the emulated learner."""

    ms_per_sample: float = Field(default=2.3, ge=0)
    """Time of an update for each sub-step that it trains on."""
    weight_count: int = Field(default=1, ge=1)
    """Numbers in the weights; must equal the emulated policy's."""


class EmulatedLearner:
    """Implements ``rlvla3.learner.api.Learner``; the only thing it learns is its version."""

    def __init__(self, settings: EmulatedLearnerSettings, *, streaming: bool) -> None:
        """``streaming``: the time passes while trajectories are taken in, rather than in ``update``."""
        self.settings, self._streaming = settings, streaming
        self.version = 0
        self._samples = 0
        self._trajectories = 0

    def _work(self, samples: int) -> None:
        time.sleep(self.settings.ms_per_sample * samples / 1e3)

    def ingest(self, trajectories: Sequence[Trajectory], slab: Slab) -> None:
        """Count sub-steps; when streaming, sleep for them now."""
        samples = sum(trajectory.sub_steps for trajectory in trajectories)
        self._samples += samples
        self._trajectories += len(trajectories)
        if self._streaming:
            self._work(samples)

    def update(self) -> UpdateReport:
        """Sleep for everything taken in that was not slept for yet; one version more."""
        if not self._streaming:
            self._work(self._samples)
        self.version += 1
        metrics = {"sub_steps": float(self._samples), "trajectories": float(self._trajectories)}
        self._samples = self._trajectories = 0
        return UpdateReport(skipped="", rejected=False, metrics=metrics)

    def weights(self, channel: Channel) -> Mapping[str, npt.NDArray[Any]]:
        """The version, as many times as there are weights."""
        return {"weights": np.full(self.settings.weight_count, self.version, np.float32)}

    def save(self, folder: Path | None) -> None:
        """Write the version, on the first rank."""
        if folder is not None:
            (folder / "learner.json").write_text(json.dumps({"version": self.version}))

    def load(self, folder: Path) -> None:
        """Restore the version."""
        self.version = int(json.loads((folder / "learner.json").read_text())["version"])
        self._samples = self._trajectories = 0

    def save_rejected(self, folder: Path) -> None:
        """There is no batch: it learns from nothing."""

    def replay(self, folder: Path) -> UpdateReport:
        """There is nothing to run again.

        Raises:
            UserError: always.
        """
        raise UserError(f"{folder}: of an emulated learner, which has no batches")
