"""Groups of the configuration tree that choose a component by its kind."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from rlvla3.algorithms.registry import algorithm_class
from rlvla3.config_loading import options
from rlvla3.learner.registry import learner_class
from rlvla3.policies.registry import policy_class
from rlvla3.policies.settings import ModelSettings, differing
from rlvla3.settings import Settings


def build_options(group: Any, settings: type[Settings]) -> None:
    """Replace what a recipe gives for ``group.options`` by the settings of the group's kind.

    Raises:
        ValueError: they are no mapping, or not what the kind wants.
    """
    if isinstance(group.options, dict):
        object.__setattr__(group, "options", options(settings, group.options))
    elif not isinstance(group.options, Settings):
        raise ValueError("options must be a group of 'key: value' settings")


class ComponentConfig(Settings):
    """A component by kind, with its own settings."""

    kind: str
    """A built-in name or ``module:attribute``."""
    options: Any = Field(default_factory=dict)
    """The component's own settings."""


class PolicyConfig(ModelSettings, ComponentConfig):
    """The policy."""

    kind: str = "tiny"
    """A built-in name (tiny, emulated) or ``module:attribute``."""

    @classmethod
    def option_types(cls, values: Mapping[str, Any]) -> dict[str, type[Settings]]:
        """The settings class of the chosen policy."""
        return {"options": policy_class(str(values.get("kind", "tiny"))).Settings}

    @model_validator(mode="after")
    def _check(self) -> "PolicyConfig":
        build_options(self, policy_class(self.kind).Settings)
        around = [name for name in ModelSettings.model_fields if name in differing(self)]
        if self.kind == "emulated" and around:
            raise ValueError(f"kind emulated has no network: {', '.join(around)} has no effect; leave it out")
        return self


class AlgorithmConfig(ComponentConfig):
    """The algorithm: advantages and loss."""

    kind: str = "ppo"
    """A built-in name (ppo, grpo, rloo, reinforce++) or ``module:attribute``."""

    @classmethod
    def option_types(cls, values: Mapping[str, Any]) -> dict[str, type[Settings]]:
        """The settings class of the chosen algorithm."""
        return {"options": algorithm_class(str(values.get("kind", "ppo"))).Settings}

    @model_validator(mode="after")
    def _check(self) -> "AlgorithmConfig":
        build_options(self, algorithm_class(self.kind).Settings)
        return self


class LearnerConfig(ComponentConfig):
    """The learner: optimiser, epochs, averaging."""

    kind: str = "reinforcement"
    """A built-in name (reinforcement, emulated) or ``module:attribute``."""

    @classmethod
    def option_types(cls, values: Mapping[str, Any]) -> dict[str, type[Settings]]:
        """The settings class of the chosen learner."""
        return {"options": learner_class(str(values.get("kind", "reinforcement"))).Settings}

    @model_validator(mode="after")
    def _check(self) -> "LearnerConfig":
        build_options(self, learner_class(self.kind).Settings)
        return self
