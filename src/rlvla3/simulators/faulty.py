"""Any adapter with scripted faults, to see what the rest of a run does.

Its kind is ``rlvla3.simulators.faulty:Faulty``.
"""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from rlvla3.messages import Start
from rlvla3.settings import Settings
from rlvla3.simulators.api import Env, Expert, Observation, Simulator, SimulatorSpec, Step
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


class FaultyEnv:
    """An env of the adapter; faults strike just before the reset or the sub-step they name."""

    def __init__(self, env: Env, faults: tuple[Fault, ...]) -> None:
        self._env = env
        self._faults = faults
        self._start = Start(task=0, split="train", state=0)
        self._steps = 0
        self._blind = False

    def _strike(self) -> list[str]:
        start = self._start
        struck = strike(self._faults, (start.task, start.split, start.state, self._steps))
        self._blind = "nan_observation" in struck
        return struck

    def reset(self, start: Start, step_limit: int) -> bool | None:
        """As the env's."""
        self._start, self._steps = start, 0
        self._strike()
        return self._env.reset(start, step_limit)

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """As the env's."""
        self._steps += 1
        struck = self._strike()
        step = self._env.step(action)
        if "nan_reward" not in struck:
            return step
        ends = {"terminated": step.terminated, "truncated": step.truncated, "success": step.success}
        return Step(reward=float("nan"), **ends)

    def observe(self) -> Observation:
        """As the env's."""
        observation = self._env.observe()
        if not self._blind:
            return observation
        return {n: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for n, a in observation.items()}

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

    def expert(self, env: FaultyEnv) -> Expert:
        """The adapter's own."""
        return self._adapter.expert(env.inner)
