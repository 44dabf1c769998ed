"""Any registered Gymnasium environment with a continuous action box."""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec, Start
from rlvla3.plugins import USERS_FAULTS, in_words, permit
from rlvla3.settings import Settings
from rlvla3.simulators.api import Observation, SimulatorSpec, Step
from rlvla3.simulators.ending import LimitIs, ending

SPLITS = ("train", "held_out", "demonstration")


class GymnasiumSettings(Settings):
    """Settings of the Gymnasium simulator."""

    env_id: str
    """Registered id such as ``Pendulum-v1``, or ``module:id`` to import the module that registers it."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment."""
    instruction: str = "do the task"
    """What the policy is told."""
    image: Literal["none", "render"] = "none"
    """``render``: add a field ``image`` with the environment's own picture."""
    image_size: int = Field(default=64, ge=8, le=1024)
    """Pixels of a side of the rendered image (nearest-neighbour resampling)."""
    step_limits: int = Field(default=0, ge=0)
    """Sub-steps of an episode; 0: the environment's own limit, which always holds as well."""
    limit_is: LimitIs = "truncated"
    """Whether this step limit cuts the episode or is part of the task."""
    success_key: str = "is_success"
    """Entry of ``info`` that says whether the task is solved; absent means no."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed from which the initial states of all splits are derived."""

    @model_validator(mode="after")
    def _permit(self) -> "GymnasiumSettings":
        if ":" in self.env_id:
            permit("env_id", self.env_id)
        return self


class GymnasiumEnv:
    """One Gymnasium environment."""

    def __init__(self, settings: GymnasiumSettings) -> None:
        self._settings = settings
        self._env = _make(settings)
        self._low, self._high = self._env.action_space.low, self._env.action_space.high
        self._raw: Any = None
        self._limit = 0
        self._steps = 0

    def reset(self, start: Start, step_limit: int) -> None:
        """Reset with a seed of its own for each (split, state); ``step_limit`` 0 adds no limit."""
        words = np.random.SeedSequence([self._settings.seed, SPLITS.index(start.split), start.state])
        self._raw, _ = self._env.reset(seed=int(words.generate_state(1)[0]))
        self._limit, self._steps = step_limit, 0

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action [A] in [-1, 1], rescaled to the environment's bounds."""
        share = (np.clip(action, -1.0, 1.0) + 1) / 2
        scaled = (self._low + share * (self._high - self._low)).astype(self._low.dtype)
        self._raw, reward, ended, cut, info = self._env.step(scaled)
        self._steps += 1
        terminated, truncated = ending(
            ended=bool(ended),
            steps=self._steps,
            limit=self._limit,
            limit_is=self._settings.limit_is,
        )
        return Step(
            reward=float(reward),
            terminated=terminated,
            truncated=truncated or (bool(cut) and not terminated),
            success=bool(info.get(self._settings.success_key, False)),
        )

    def observe(self) -> Observation:
        """Images uint8 as they are; every other array flat as float32."""
        fields = {name: _as_field(array) for name, array in _parts(self._raw).items()}
        if self._settings.image == "render":
            fields["image"] = _resample(self._env.render(), self._settings.image_size)
        return fields

    def picture(self) -> npt.NDArray[np.uint8]:
        """The environment's own picture.

        Raises:
            UserError: ``image`` is not ``render``.
        """
        if self._settings.image != "render":
            raise UserError("simulator gymnasium: set image: render to get pictures and videos")
        return np.asarray(self._env.render(), np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class Gymnasium:
    """The Gymnasium adapter."""

    Settings: ClassVar[type[GymnasiumSettings]] = GymnasiumSettings

    def __init__(self, settings: GymnasiumSettings) -> None:
        self._settings = settings

    @functools.cached_property
    def spec(self) -> SimulatorSpec:
        """Read from one environment that is built and closed for it."""
        from gymnasium import __version__

        s = self._settings
        env = _make(s)
        raw, _ = env.reset(seed=0)
        fields = {name: _as_field(array) for name, array in _parts(raw).items()}
        action_dim = int(env.action_space.shape[0])
        env.close()
        if s.image == "render":
            fields["image"] = np.zeros((s.image_size, s.image_size, 3), np.uint8)
        return SimulatorSpec(
            observation=tuple(
                FieldSpec(name=name, shape=array.shape, dtype=str(array.dtype))
                for name, array in fields.items()
            ),
            action_dim=action_dim,
            tasks=(s.env_id,),
            instructions=(s.instruction,),
            step_limits=(s.step_limits,),
            fingerprint={"simulator": "gymnasium", "env_id": s.env_id, "gymnasium": __version__},
        )

    def make(self) -> GymnasiumEnv:
        """Build one environment."""
        return GymnasiumEnv(self._settings)

    def expert(self, env: GymnasiumEnv) -> NoReturn:
        """There is none.

        Raises:
            LookupError: always.
        """
        raise LookupError("simulator gymnasium has no experts; give a demonstration file instead")


def _make(settings: GymnasiumSettings) -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise UserError(
            f"simulator gymnasium needs its extra: pip install 'rlvla3[gymnasium]' ({error})"
        ) from error
    arguments = dict(settings.arguments)
    if settings.image == "render":
        arguments["render_mode"] = "rgb_array"
    try:
        env: Any = gymnasium.make(settings.env_id, **arguments)
    except USERS_FAULTS as error:
        raise UserError(
            f"simulator.options.env_id = {settings.env_id!r} cannot be made: {in_words(error)}; correct "
            "env_id or simulator.options.arguments"
        ) from error
    space = env.action_space
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        raise UserError(
            f"simulator.options.env_id = {settings.env_id!r}: actions must be a bounded Box [A], they are "
            f"{space}; choose another one or wrap it"
        )
    return env


def _parts(raw: Any) -> Mapping[str, npt.NDArray[Any]]:
    """A raw observation as named arrays: a dictionary's own names, else ``image`` or ``proprioception``."""
    if isinstance(raw, Mapping):
        return {name: np.asarray(array) for name, array in raw.items()}
    array = np.asarray(raw)
    return {"image" if _is_image(array) else "proprioception": array}


def _is_image(array: npt.NDArray[Any]) -> bool:
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3


def _as_field(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.copy() if _is_image(array) else array.astype(np.float32).ravel()


def _resample(picture: Any, size: int) -> npt.NDArray[np.uint8]:
    pixels = np.asarray(picture, np.uint8)
    rows, columns = (((np.arange(size) + 0.5) * n / size).astype(int) for n in pixels.shape[:2])
    resampled: npt.NDArray[np.uint8] = pixels[rows][:, columns]
    return resampled
