"""Settings of the Gymnasium simulator."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rlvla3.plugins import permit
from rlvla3.settings import Settings
from rlvla3.simulators.gymnasium_observation import ObservationSettings
from rlvla3.simulators.tasks import TaskSettings

EXPERTS = {"pusht": "rlvla3.simulators.pusht_expert:PushTExpert"}
"""Experts of this package by name."""
SUCCESS_KEY = "is_success"
"""Where environments that know success say so, by custom; many do not."""
OWN_REWARD = "reward()"
"""Stands for the environment's own reward where an entry of ``info`` could be named."""


class Range(Settings):
    """Numbers that are drawn anew for each initial state, evenly between two bounds."""

    low: tuple[float, ...] = Field(min_length=1)
    """Lowest value of each number."""
    high: tuple[float, ...] = Field(min_length=1)
    """Highest value of each number."""

    @model_validator(mode="after")
    def _ordered(self) -> "Range":
        if len(self.low) != len(self.high) or any(
            low > high for low, high in zip(self.low, self.high, strict=True)
        ):
            raise ValueError(
                f"low and high must be equally many numbers, none of low above that of high; they are "
                f"{list(self.low)} and {list(self.high)}"
            )
        return self


class GymnasiumTask(Settings):
    """One of several tasks: what it has that the others do not."""

    env_id: str = ""
    """Its environment; empty: that of all tasks."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments added to those of all tasks."""
    instruction: str = ""
    """What the policy is told; empty: what it is told in all tasks."""


class GymnasiumSettings(TaskSettings):
    """Settings of the Gymnasium simulator."""

    env_id: str = ""
    """Registered id such as ``Pendulum-v1``, ``module:ID`` to import the module that registers it, or
    ``module:attribute`` of a class or function that makes the environment."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    reset_options: dict[str, Range] = Field(default_factory=dict)
    """``options`` of the environment's ``reset``, drawn for each initial state (where it starts, say)."""
    instruction: str = "do the task"
    """What the policy is told."""
    tasks: dict[str, GymnasiumTask] = Field(default_factory=dict)
    """Several tasks by name, all with the same fields and number of actions; none: one, named as the id."""
    observation: ObservationSettings = ObservationSettings()
    """Which entries of the environment's observations become which fields; unset: each entry is a field."""
    relative_to: str = ""
    """Entry of the observation (``a/b`` in nested ones) that actions are added to, where the environment is
    told positions; empty: an action of -1…1 spans the environment's bounds."""
    reach: float = Field(default=0.0, ge=0)
    """What an action of 1 adds to it, in the environment's own units; only with ``relative_to``."""
    image: Literal["none", "render"] = "none"
    """``render``: add a field ``image`` with the environment's own picture."""
    image_size: int = Field(default=64, ge=8, le=1024)
    """Pixels of a side of that picture, resized by area."""
    reward: str = "dense"
    """``dense`` (the environment's own), ``success`` (1 at success), ``shaped`` (success +
    weight·(discount·φ′ − φ), φ the ``potential``), or ``module:attribute`` of a function
    (info, success, dense) -> reward."""
    potential: str = ""
    """φ of ``reward: shaped``: an entry of ``info`` (a nested one as ``a/b``), or ``reward()``."""
    potential_range: tuple[float, float] = (0.0, 1.0)
    """Values of ``potential`` that count as φ = 0 and φ = 1."""
    success_key: str = SUCCESS_KEY
    """Entry of ``info`` (a nested one as ``a/b``), or ``reward()``, that says whether the task is solved.
    Absent means no; but another entry than ``is_success`` has to be there where the environment ends an
    episode."""
    success_threshold: float | None = None
    """The task is solved where that entry is at least this; unset: where it is true."""
    terminate_on_success: bool = False
    """End the episode at the first success; otherwise the environment ends it, or a step limit."""
    expert: str = ""
    """Who demonstrates: ``pusht``, or ``module:attribute``, called with the environment (unwrapped), of an
    object with ``act(observation)`` -> action in the environment's own units."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed from which the initial states of all splits are derived."""

    @field_validator("expert")
    @classmethod
    def _known_expert(cls, expert: str) -> str:
        if ":" in expert:
            permit("expert", expert)
        elif expert and expert not in EXPERTS:
            raise ValueError(f"must be {', '.join(EXPERTS)} or module:attribute; it is {expert!r}")
        return expert

    @model_validator(mode="after")
    def _fit(self) -> "GymnasiumSettings":
        if not (self.env_id or (self.tasks and all(task.env_id for task in self.tasks.values()))):
            raise ValueError("env_id must name an environment, such as Pendulum-v1")
        for name in (self.env_id, *(task.env_id for task in self.tasks.values())):
            if ":" in name:
                permit("env_id", name)
        if self.reward == "shaped" and not self.potential:
            raise ValueError(
                "reward shaped needs a potential, which Gymnasium environments do not have by themselves; "
                "name an entry of info, such as potential=coverage, or use reward dense or success"
            )
        for name, given in (("potential", self.potential), ("success_key", self.success_key)):
            if given.endswith("()") and given != OWN_REWARD:
                raise ValueError(f"{name} must be an entry of info, or {OWN_REWARD}; it is {given!r}")
        if bool(self.relative_to) != bool(self.reach):
            raise ValueError(
                f"relative_to and reach belong together, they are {self.relative_to!r} and {self.reach:g}; "
                "set both, or none"
            )
        if self.image == "render" and "image" in self.observation.images:
            raise ValueError(
                "image: render and observation.images both make the field 'image'; leave one out, or give "
                "that of observation.images another name"
            )
        if self.potential_range[0] == self.potential_range[1]:
            raise ValueError(
                f"potential_range must be two different numbers; it is {list(self.potential_range)}"
            )
        return self

    @property
    def each(self) -> dict[str, GymnasiumTask]:
        """All tasks by name, each whole."""
        whole = {}
        for name, task in (self.tasks or {self.env_id: GymnasiumTask()}).items():
            whole[name] = GymnasiumTask(
                env_id=task.env_id or self.env_id,
                arguments=self.arguments | task.arguments,
                instruction=task.instruction or self.instruction,
            )
        return whole

    @property
    def entries(self) -> dict[str, str]:
        """Entries that ``info`` must have at every sub-step, by the setting that names them."""
        asked = {"potential": self.potential} if self.reward == "shaped" else {}
        if self.success_threshold is not None:
            asked["success_key"] = self.success_key
        return {setting: name for setting, name in asked.items() if name != OWN_REWARD}

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """See ``TaskSettings``."""
        yield from super().without_effect()
        if self.reward != "shaped":
            for name in ("potential", "potential_range"):
                yield name, f"reward {self.reward} shapes nothing"
        if self.image == "none":
            yield "image_size", "there is no field image from image: render"
        for name in ("env_id", "instruction"):
            if self.tasks and all(getattr(task, name) for task in self.tasks.values()):
                yield name, "each of tasks has its own"

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.tasks) or (self.env_id,)

    def potential_of(self, value: float) -> float:
        """φ of a value of ``potential``."""
        low, high = self.potential_range
        return (value - low) / (high - low)
