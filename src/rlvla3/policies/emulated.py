"""A policy that only costs time: for benchmarks of scheduling on emulated devices. No torch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from rlvla3.messages import FieldSpec
from rlvla3.policies.api import Arrays, NoiseKey, PolicyInterface
from rlvla3.settings import Settings

ECHO = "echo"
"""Observation field [E] that ``act`` copies into the first E numbers of every action, so that the
environment can check that an action answers its own observation."""


class EmulatedSettings(Settings):
    """Settings of the emulated policy."""

    base_ms: float = Field(default=20.0, ge=0)
    """Time of an inference batch whatever its size."""
    per_sample_ms: float = Field(default=1.0, ge=0)
    """Additional time of each sample of a batch."""
    weight_count: int = Field(default=1, ge=1)
    """Numbers in the weights, to give publishing a size."""


class EmulatedModel:
    """Sleeps for an inference and answers zeros (or the observation's echo tag)."""

    def __init__(self, settings: EmulatedSettings, interface: PolicyInterface) -> None:
        self._settings, self._interface = settings, interface
        self._weights = np.zeros(settings.weight_count, np.float32)

    def _work(self, samples: int) -> None:
        time.sleep((self._settings.base_ms + self._settings.per_sample_ms * samples) / 1e3)

    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """Sleep, then answer zero records of ``len(keys)`` samples."""
        batch = len(keys)
        self._work(batch)
        action = np.zeros((batch, self._interface.chunk, self._interface.action_dim), np.float32)
        if ECHO in observation:
            tag = np.asarray(observation[ECHO], np.float32).reshape(batch, 1, -1)
            if tag.shape[2] > action.shape[2]:
                raise ValueError(f"echo has {tag.shape[2]} numbers, an action only {action.shape[2]}")
            action[:, :, : tag.shape[2]] = tag
        zeros = np.zeros(batch, np.float32)
        return {"action": action, "log_prob": zeros, "value": zeros}

    def values(self, observation: Arrays) -> npt.NDArray[np.float32]:
        """Sleep, then answer zeros [B]."""
        batch = len(observation["task"])
        self._work(batch)
        return np.zeros(batch, np.float32)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The weights by name."""
        return {"weights": self._weights.copy()}

    def load_arrays(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over ``arrays()`` of an equal model."""
        self._weights[:] = weights["weights"]


class Emulated:
    """The family of the emulated policy."""

    Settings: ClassVar[type[Settings]] = EmulatedSettings

    def __init__(self, settings: EmulatedSettings, interface: PolicyInterface) -> None:
        self.settings, self.interface = settings, interface

    @property
    def record_spec(self) -> tuple[FieldSpec, ...]:
        """Action, log-prob and value; all zero."""
        chunk = (self.interface.chunk, self.interface.action_dim)
        return (
            FieldSpec(name="action", shape=chunk, dtype="float32"),
            FieldSpec(name="log_prob", shape=(), dtype="float32"),
            FieldSpec(name="value", shape=(), dtype="float32"),
        )

    def build(self, device: str, seed: int) -> EmulatedModel:
        """The model; ``device`` and ``seed`` change nothing."""
        return EmulatedModel(self.settings, self.interface)
