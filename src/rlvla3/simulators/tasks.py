"""When an episode ends and what a sub-step is worth: the same settings for every simulator that has tasks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import Field, model_validator

from rlvla3.errors import UserError
from rlvla3.plugins import USERS_FAULTS, in_words, permit, resolve
from rlvla3.settings import Settings
from rlvla3.simulators.ending import LimitIs

RewardFunction = Callable[[Mapping[str, Any], bool, float], float]
"""A user's reward of one sub-step: (info, success, dense) -> reward. ``info`` is the simulator's own
dictionary, ``success`` whether the task is solved at this sub-step, ``dense`` its dense reward (0 where
it has none). It is tried once with zeros before anything starts."""
REWARDS = ("success", "dense", "shaped")
_T = TypeVar("_T")
_S = TypeVar("_S", bound="TaskSettings")


class TaskSettings(Settings):
    """Settings of episodes and rewards. A class made from it has ``tasks``, the names of its tasks."""

    step_limits: int | tuple[int, ...] = 0
    """Sub-steps of an episode: one number, or one for each task; 0: the simulator's own limit."""
    limit_is: LimitIs = "truncated"
    """``truncated``: reaching the step limit cuts the episode (its value is bootstrapped);
    ``terminated``: being in time is part of the task, so the limit ends it."""
    reward: str = "shaped"
    """``success`` (1 at success), ``dense`` (the simulator's own), ``shaped`` (success +
    weight·(discount·φ′ − φ), φ the potential that the dense reward is scaled to), or
    ``module:attribute`` of a function (info, success, dense) -> reward."""
    shaping_weight: float = 0.5
    """Weight of the shaping term; only for ``reward: shaped``."""
    shaping_discount: float = Field(default=0.994, gt=0, le=1)
    """Discount of the shaping potential for each sub-step (0.994⁵ = 0.97); only for ``reward: shaped``."""
    step_penalty: float = Field(default=0.0, ge=0)
    """Taken off the reward of every sub-step, whatever ``reward`` is: being fast pays."""
    terminate_on_success: bool = True
    """End the episode at the first success; otherwise only the step limit ends it."""

    @model_validator(mode="after")
    def _limits_and_reward_fit(self) -> "TaskSettings":
        limits, count = self.step_limits, len(self._names)
        if isinstance(limits, tuple) and len(limits) != count:
            raise ValueError(
                f"step_limits must be one number or one for each of the {count} tasks; it has {len(limits)}"
            )
        if min(limits if isinstance(limits, tuple) else (limits,)) < 0:
            raise ValueError(f"step_limits must be 0 or more; it is {limits}")
        if ":" in self.reward:
            permit("reward", self.reward)
        elif self.reward not in REWARDS:
            raise ValueError(
                f"reward must be {', '.join(REWARDS)} or module:attribute; it is {self.reward!r}"
            )
        return self

    @property
    def limits(self) -> tuple[int, ...]:
        """One step limit for each task."""
        if isinstance(self.step_limits, tuple):
            return self.step_limits
        return (self.step_limits,) * len(self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.tasks  # type: ignore[attr-defined]
        return names

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """Options that do nothing whatever they are, because of another one: (name, why)."""
        if self.reward != "shaped":
            for name in ("shaping_weight", "shaping_discount"):
                yield name, f"reward {self.reward} shapes nothing"
        elif not self.shaping_weight:
            yield "shaping_discount", "shaping_weight is 0"


def without_dense(settings: _S, simulator: str) -> _S:
    """The settings, for a simulator that has no dense reward.

    Raises:
        ValueError: one is asked for.
    """
    if settings.reward != "success" and ":" not in settings.reward:
        raise ValueError(
            f"reward must be success or module:attribute: {simulator} has no dense reward; "
            f"it is {settings.reward!r}"
        )
    return settings


def differing(what: str, values: tuple[_T, ...]) -> tuple[_T, ...]:
    """The values of a setting, none of which may be there twice.

    Raises:
        ValueError: one is.
    """
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ValueError(f"{what} must differ; {twice[0]} is there twice, leave one out")
    return values


def load_reward(name: str, info: tuple[str, ...]) -> RewardFunction | None:
    """The user's function that ``reward`` names, tried once; None where it names none.

    Args:
        name: the setting ``simulator.options.reward``.
        info: entries that the function will find in its ``info``.

    Raises:
        UserError: it cannot be loaded, or fails when called with zeros.
    """
    if ":" not in name:
        return None
    function: RewardFunction = resolve("simulator.options.reward", name, {})
    try:
        float(function(dict.fromkeys(info, 0.0), False, 0.0))
    except USERS_FAULTS as error:
        raise UserError(
            f"simulator.options.reward = {name!r} must be a function (info, success, dense) -> reward; "
            f"called with zeros it fails: {in_words(error, function)}"
        ) from error
    return function


class Rewarding:
    """The reward of each sub-step of one env."""

    def __init__(
        self,
        settings: TaskSettings,
        function: RewardFunction | None = None,
        potential: Callable[[float], float] = lambda dense: dense,
    ) -> None:
        """``potential``: φ of a dense reward, about 0 at the start and 1 at the goal."""
        self._settings = settings
        self._function = function
        self._of = potential
        self._potential = 0.0

    @property
    def shaped(self) -> bool:
        """Whether ``begin`` needs the dense reward of the initial state."""
        return self._settings.reward == "shaped"

    def begin(self, dense: float) -> None:
        """Begin an episode in a state whose dense reward is ``dense``."""
        self._potential = self._of(dense)

    def __call__(self, info: Mapping[str, Any], success: bool, dense: float) -> float:
        """Reward of a sub-step that led to a state whose dense reward is ``dense``."""
        s = self._settings
        if self._function is not None:
            return float(self._function(info, success, dense)) - s.step_penalty
        if s.reward == "success":
            return float(success) - s.step_penalty
        if s.reward == "dense":
            return dense - s.step_penalty
        before, self._potential = self._potential, self._of(dense)
        gain = s.shaping_discount * self._potential - before
        return float(success) + s.shaping_weight * gain - s.step_penalty
