"""Any adapter with scripted faults, to see what the rest of a run does.

Its kind is ``rlvla3.simulators.faulty:Faulty``.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from rlvla3.messages import Start
from rlvla3.settings import Settings
from rlvla3.simulators.api import Env, EnvBatch, Expert, Observation, Simulator, SimulatorSpec, Step
from rlvla3.simulators.registry import simulator_class
from rlvla3.simulators.synthetic_faults import Fault, strike


class FaultySettings(Settings):
    """Settings of the wrapper."""

    kind: str
    """The adapter: a built-in name or ``module:attribute``."""
    options: Any = Field(default_factory=dict)
    """Its own settings."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong, and where."""

    @model_validator(mode="after")
    def _build_options(self) -> "FaultySettings":
        settings = simulator_class(self.kind).Settings
        object.__setattr__(self, "options", settings.model_validate(self.options))
        return self


class _Course:
    """Where an env is in its episode, and what strikes there."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self._faults = faults
        self._start = Start(task=0, split="train", state=0)
        self._steps = 0
        self._blind = False
        self._unrewarded = False

    def begin(self, start: Start) -> None:
        """Just before a reset."""
        self._start, self._steps = start, 0
        self._strike()

    def advance(self) -> None:
        """Just before a sub-step."""
        self._steps += 1
        self._strike()

    def _strike(self) -> None:
        start = self._start
        struck = strike(self._faults, (start.task, start.split, start.state, self._steps))
        self._blind = "nan_observation" in struck
        self._unrewarded = "nan_reward" in struck

    def told(self, step: Step) -> Step:
        """The sub-step's outcome, unless a fault made its reward NaN."""
        return dataclasses.replace(step, reward=float("nan")) if self._unrewarded else step

    def seen(self, observation: Observation) -> Observation:
        """The observation, unless a fault made it NaN."""
        if not self._blind:
            return observation
        return {n: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for n, a in observation.items()}


class FaultyEnv:
    """An env of the adapter; faults strike just before the reset or the sub-step they name."""

    def __init__(self, env: Env, faults: tuple[Fault, ...]) -> None:
        self._env = env
        self._course = _Course(faults)

    def reset(self, start: Start, step_limit: int) -> bool | None:
        """As the env's."""
        self._course.begin(start)
        return self._env.reset(start, step_limit)

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """As the env's."""
        self._course.advance()
        return self._course.told(self._env.step(action))

    def observe(self) -> Observation:
        """As the env's."""
        return self._course.seen(self._env.observe())

    def picture(self) -> npt.NDArray[np.uint8]:
        """As the env's."""
        return self._env.picture()

    def close(self) -> None:
        """Close the env."""
        self._env.close()

    @property
    def inner(self) -> Env:
        """The adapter's own env."""
        return self._env


class FaultyBatch:
    """An env batch of the adapter; a fault of one env strikes before anything of the whole batch moves."""

    def __init__(self, batch: EnvBatch, faults: tuple[Fault, ...]) -> None:
        self._batch = batch
        self._courses = [_Course(faults) for _ in range(batch.size)]
        self._struck: int | None = None
        """The env whose faults may strike now."""

    @property
    def size(self) -> int:
        """Number of envs."""
        return self._batch.size

    @property
    def busy(self) -> int:
        """The env that is struck, or else the batch's own."""
        return self._batch.busy if self._struck is None else self._struck

    def reset(self, index: int, start: Start, step_limit: int) -> bool | None:
        """As the batch's."""
        self._struck = index
        self._courses[index].begin(start)
        self._struck = None
        return self._batch.reset(index, start, step_limit)

    def begin(self, indices: Sequence[int], actions: npt.NDArray[np.float32]) -> float:
        """As the batch's."""
        for index in indices:
            self._struck = index
            self._courses[index].advance()
        self._struck = None
        return self._batch.begin(indices, actions)

    def finish(self, indices: Sequence[int]) -> Sequence[Step]:
        """As the batch's."""
        steps = self._batch.finish(indices)
        return [self._courses[i].told(step) for i, step in zip(indices, steps, strict=True)]

    def observe(self, indices: Sequence[int]) -> Sequence[Observation]:
        """As the batch's."""
        seen = self._batch.observe(indices)
        return [self._courses[i].seen(observation) for i, observation in zip(indices, seen, strict=True)]

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """As the batch's."""
        return self._batch.picture(index)

    def close(self) -> None:
        """Close the batch."""
        self._batch.close()


class Faulty:
    """The wrapper."""

    Settings: ClassVar[type[FaultySettings]] = FaultySettings

    def __init__(self, settings: FaultySettings) -> None:
        self._settings = settings
        self._adapter: Simulator = simulator_class(settings.kind)(settings.options)

    @property
    def spec(self) -> SimulatorSpec:
        """The adapter's own."""
        return self._adapter.spec

    def make(self) -> FaultyEnv:
        """Build one environment."""
        return FaultyEnv(self._adapter.make(), self._settings.faults)

    def make_batch(self, size: int) -> FaultyBatch:
        """Build an env batch of an adapter whose spec says ``steps_together``."""
        whole: Any = self._adapter
        return FaultyBatch(whole.make_batch(size), self._settings.faults)

    def expert(self, env: FaultyEnv) -> Expert:
        """The adapter's own."""
        return self._adapter.expert(env.inner)
