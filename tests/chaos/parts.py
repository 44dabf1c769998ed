"""The verifying parts of ``echo``, which go wrong when they are ordered to."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from echo import EchoEnv, EchoSimulator, RecordingLearner, RecordingSettings
from pydantic import Field

from chaos.orders import obey, take
from rlvla3.learner.api import UpdateReport
from rlvla3.learner.registry import LearnerContext
from rlvla3.policies.api import Arrays, NoiseKey, PolicyInterface
from rlvla3.policies.emulated import Emulated, EmulatedModel, EmulatedSettings
from rlvla3.settings import Settings
from rlvla3.simulators.api import Observation, Step
from rlvla3.simulators.synthetic import SyntheticSettings


class SimulatorSettings(SyntheticSettings):
    """Settings of ``Simulator``."""

    orders: str = Field(min_length=1)
    """Folder of the orders."""


class Env(EchoEnv):
    """Takes the orders ``env``."""

    def __init__(self, settings: SimulatorSettings) -> None:
        super().__init__(settings)
        self._orders = settings.orders
        self._nan = False

    def finish(self) -> Step:
        """A step, unless ordered otherwise."""
        what = take(self._orders, "env")
        obey(what)
        self._nan = what == "nan_observation"
        step = super().finish()
        return replace(step, reward=float("nan")) if what == "nan_reward" else step

    def observe(self) -> Observation:
        """An observation, unless ordered otherwise."""
        seen = dict(super().observe())
        if self._nan:
            seen["echo"] = np.full(4, np.nan, np.float32)
        return seen


class Simulator(EchoSimulator):
    """Kind ``chaos.parts:Simulator``."""

    Settings: ClassVar[type[SyntheticSettings]] = SimulatorSettings

    def make(self) -> Env:
        """Build one environment."""
        assert isinstance(self._settings, SimulatorSettings)
        return Env(self._settings)


class PolicySettings(EmulatedSettings):
    """Settings of ``Policy``."""

    orders: str = Field(min_length=1)
    """Folder of the orders."""


class Model(EmulatedModel):
    """Takes the orders ``batch``."""

    def __init__(self, settings: PolicySettings, interface: PolicyInterface) -> None:
        super().__init__(settings, interface)
        self._orders = settings.orders

    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """Actions, unless ordered otherwise."""
        obey(take(self._orders, "batch"))
        return super().act(observation, keys, explore)


class Policy(Emulated):
    """Kind ``chaos.parts:Policy``."""

    Settings: ClassVar[type[Settings]] = PolicySettings

    def build(self, device: str, seed: int) -> Model:
        """The model."""
        assert isinstance(self.settings, PolicySettings)
        return Model(self.settings, self.interface)


class LearnerSettings(RecordingSettings):
    """Settings of ``Learner``."""

    orders: str = Field(min_length=1)
    """Folder of the orders."""


class ChaosLearner(RecordingLearner):
    """Takes the orders ``update``."""

    def __init__(self, settings: LearnerSettings, *, streaming: bool) -> None:
        super().__init__(settings, streaming=streaming)
        self._orders = settings.orders
        self._nan = False

    def update(self) -> UpdateReport:
        """An update, unless ordered otherwise."""
        what = take(self._orders, "update")
        obey(what)
        if what == "skip":
            return self.skip()
        self._nan = what == "nan_weights"
        return super().update()

    def weights(self, channel: Any) -> Any:
        """The weights, unless ordered otherwise."""
        weights = super().weights(channel)
        return {name: np.full_like(a, np.nan) for name, a in weights.items()} if self._nan else weights


class Learner:
    """Kind ``chaos.parts:Learner``."""

    Settings: ClassVar[type[Settings]] = LearnerSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> ChaosLearner:
        """Build it."""
        return ChaosLearner(settings, streaming=context.streaming)
