"""Any Gymnasium environment with a continuous action box."""

import functools
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.plugins import USERS_FAULTS, in_words, resolve
from rlvla3.simulators.api import Observation, SimulatorSpec, Step
from rlvla3.simulators.ending import ending
from rlvla3.simulators.gymnasium_info import missing, number
from rlvla3.simulators.gymnasium_making import draws, own_step_limit
from rlvla3.simulators.gymnasium_scene import Look, Scene, check_alike, info_of_a_step, look_at
from rlvla3.simulators.gymnasium_settings import EXPERTS, OWN_REWARD, SUCCESS_KEY, GymnasiumSettings
from rlvla3.simulators.pixels import even
from rlvla3.simulators.tasks import RewardFunction, Rewarding, load_reward

SPLITS = ("train", "held_out", "demonstration")


class GymnasiumEnv:
    """One environment that plays any of the configured tasks."""

    def __init__(self, settings: GymnasiumSettings, reward: RewardFunction | None = None) -> None:
        self._settings = settings
        self._rewarding = Rewarding(settings, reward, potential=settings.potential_of)
        self._scenes: dict[str, Scene] = {}
        self.scene = self._scene(next(iter(settings.each)))
        """What is being played."""
        self.raw: Any = None
        """The environment's own last observation, for experts."""
        self.episodes = 0
        """Resets so far."""
        self._limit = 0
        self._steps = 0
        self._told: dict[int, str] = {}
        """What each task's observations said when it was first played."""
        self._measured = False
        """Whether the potential of this episode's last state is known."""

    def _scene(self, name: str) -> Scene:
        if name not in self._scenes:
            self._scenes[name] = Scene(self._settings, name)
        return self._scenes[name]

    def reset(self, start: Start, step_limit: int) -> None:
        """Reset with a seed of its own for each (split, state); ``step_limit`` 0: the environment's own."""
        s = self._settings
        self.scene = self._scene(list(s.each)[start.task])
        words = np.random.SeedSequence([s.seed, SPLITS.index(start.split), start.state])
        options = _drawn(s, words)
        self.raw, info = self.scene.reset(int(words.generate_state(1)[0]), options)
        self._check_instruction(start.task)
        self._limit, self._steps = step_limit or own_step_limit(self.scene.env), 0
        self.episodes += 1
        potential = number(info, "potential", s.potential) if self._rewarding.shaped else None
        self._measured = potential is not None
        if potential is not None:
            self._rewarding.begin(potential)

    def _check_instruction(self, task: int) -> None:
        told = self.scene.transform.instruction(self.raw)
        first = self._told.setdefault(task, told)
        if told != first:
            raise UserError(
                f"{self.scene.what}: the instruction changes from {first!r} to {told!r}, but a policy is "
                "told one for each task; make it several simulator.options.tasks"
            )

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action [A] in [-1, 1], rescaled to the environment's bounds."""
        self.raw, own, ended, cut, info = self.scene.step(self.scene.scaled(action, self.raw))
        self._steps += 1
        success = self._success(info, own, over=ended or cut)
        terminated, truncated = ending(
            ended=ended or (success and self._settings.terminate_on_success),
            steps=self._steps,
            limit=self._limit,
            limit_is=self._settings.limit_is,
        )
        return Step(
            reward=self._reward(info, success, own),
            terminated=terminated,
            truncated=truncated or (cut and not terminated),
            success=success,
        )

    def _success(self, info: Mapping[str, Any], own: float, *, over: bool) -> bool:
        """Whether the task is solved. Some environments say so only where they end an episode (``over``): an
        entry that was asked for by name has to be there then."""
        s = self._settings
        found = own if s.success_key == OWN_REWARD else number(info, "success_key", s.success_key)
        if found is None:
            asked = s.success_key not in ("", SUCCESS_KEY)
            if s.success_threshold is not None or (over and asked):
                raise UserError(missing("success_key", s.success_key, info))
            return False
        return bool(found) if s.success_threshold is None else found >= s.success_threshold

    def _reward(self, info: Mapping[str, Any], success: bool, own: float) -> float:
        if not self._rewarding.shaped:
            return self._rewarding(info, success, own)
        name = self._settings.potential
        potential = own if name == OWN_REWARD else number(info, "potential", name)
        if potential is None:
            raise UserError(missing("potential", name, info))
        if not self._measured:
            # Its reset does not say it: the first sub-step counts as one that changed nothing.
            self._rewarding.begin(potential)
            self._measured = True
        return self._rewarding(info, success, potential)

    def observe(self) -> Observation:
        """The fields of the last observation; what is drawn for them is drawn now."""
        return self.scene.transform(self.raw)

    def picture(self) -> npt.NDArray[np.uint8]:
        """The environment's own picture, or the first image of the observation, for people.

        Raises:
            UserError: there is neither.
        """
        if draws(self.scene.env):
            return even(self.scene.picture())
        for array in self.observe().values():
            if array.ndim == 3:
                return even(array)
        raise UserError(
            f"{self.scene.what}: this environment draws no pictures; give it a render_mode rgb_array "
            "(simulator.options.arguments.render_mode), or do without videos"
        )

    def close(self) -> None:
        """Close every task's environment."""
        for scene in self._scenes.values():
            scene.env.close()


class GymnasiumExpert:
    """The user's expert, or one of this package, for whatever task the env is playing."""

    def __init__(self, env: GymnasiumEnv, name: str) -> None:
        self._env = env
        self._factory = resolve("simulator.options.expert", name, EXPERTS)
        self._name = name
        self._made: dict[Scene, Any] = {}
        self._episode = 0

    def act(self) -> npt.NDArray[np.float32]:
        """The expert's action [A], as a policy would have to say it."""
        env = self._env
        try:
            return env.scene.unscaled(self._expert().act(env.raw), env.raw)
        except USERS_FAULTS as error:
            raise UserError(
                f"simulator.options.expert = {self._name!r} fails: {in_words(error)}; it is called with an "
                "environment and must give an object with act(observation) -> action"
            ) from error

    def _expert(self) -> Any:
        env = self._env
        if env.scene not in self._made:
            self._made[env.scene] = self._factory(env.scene.env.unwrapped)
        expert = self._made[env.scene]
        if self._episode != env.episodes:
            self._episode = env.episodes
            getattr(expert, "reset", lambda: None)()
        return expert


class Gymnasium:
    """The Gymnasium adapter."""

    Settings: ClassVar[type[GymnasiumSettings]] = GymnasiumSettings

    def __init__(self, settings: GymnasiumSettings) -> None:
        self._settings = settings

    @functools.cached_property
    def spec(self) -> SimulatorSpec:
        """Read from one environment of each task, built and closed for it.

        Raises:
            UserError: one cannot be made, or tasks have other fields or actions than the first.
        """
        s = self._settings
        looks = self._looks
        first_name, first = next(iter(looks.items()))
        for name, look in looks.items():
            check_alike(first_name, first, name, look)
        return SimulatorSpec(
            observation=first.fields,
            action_dim=first.action_dim,
            tasks=tuple(looks),
            instructions=tuple(look.instruction for look in looks.values()),
            step_limits=tuple(
                limit or look.step_limit for limit, look in zip(s.limits, looks.values(), strict=True)
            ),
            fingerprint=_fingerprint(s, first.versions),
        )

    @functools.cached_property
    def _looks(self) -> "dict[str, Look]":
        return {name: look_at(self._settings, name) for name in self._settings.each}

    @functools.cached_property
    def _function(self) -> RewardFunction | None:
        s = self._settings
        return load_reward(s.reward, info_of_a_step(s)) if ":" in s.reward else None

    def require(self) -> None:
        """Make sure that the user's expert can be loaded.

        Raises:
            UserError: it cannot.
        """
        if ":" in self._settings.expert:
            resolve("simulator.options.expert", self._settings.expert, EXPERTS)

    def make(self) -> GymnasiumEnv:
        """Build one environment."""
        return GymnasiumEnv(self._settings, self._function)

    def expert(self, env: GymnasiumEnv) -> GymnasiumExpert:
        """The expert that the settings name.

        Raises:
            LookupError: they name none.
        """
        if not self._settings.expert:
            raise LookupError(
                "simulator gymnasium has no expert for this environment; name one with "
                "simulator.options.expert=module:attribute"
            )
        return GymnasiumExpert(env, self._settings.expert)


def _drawn(
    settings: GymnasiumSettings, words: np.random.SeedSequence
) -> dict[str, npt.NDArray[np.float64]] | None:
    """Options of a reset; None where none are set."""
    if not settings.reset_options:
        return None
    random = np.random.default_rng(words)
    return {name: random.uniform(part.low, part.high) for name, part in settings.reset_options.items()}


def _fingerprint(settings: GymnasiumSettings, versions: Mapping[str, str]) -> dict[str, str]:
    """What changes pixels or physics; entries that say nothing are left out."""
    found = {
        "simulator": "gymnasium",
        "env_id": ",".join(sorted({task.env_id for task in settings.each.values()})),
        "arguments": _text(settings.arguments),
        "relative_to": f"{settings.relative_to} {settings.reach:g}" if settings.relative_to else "",
        "observation": _text(settings.observation.model_dump(exclude_defaults=True)),
        **versions,
    }
    return {name: value for name, value in found.items() if value}


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, default=str) if values else ""
