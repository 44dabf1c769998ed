"""The environment of one task, and what a look at it shows."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.plugins import USERS_FAULTS, in_words
from rlvla3.simulators.gymnasium_info import missing, number
from rlvla3.simulators.gymnasium_making import close, draws, make, own_step_limit, provenance
from rlvla3.simulators.gymnasium_observation import Transform, drawn, entry, leaves
from rlvla3.simulators.gymnasium_settings import GymnasiumSettings


class Scene:
    """The environment of one task, built when the task is first played."""

    def __init__(self, settings: GymnasiumSettings, name: str) -> None:
        task = settings.each[name]
        self.what = f"simulator.options{f'.tasks.{name}' if settings.tasks else ''}.env_id"
        self.env = make(task.env_id, task.arguments, self.what)
        rendered = settings.image_size if settings.image == "render" else 0
        if rendered and not draws(self.env):
            close(self.env)
            raise UserError(
                f"{self.what} = {task.env_id!r} draws no pictures, so image: render has none; "
                "leave image out, or set simulator.options.arguments.render_mode"
            )
        self.transform = Transform(self.env, settings.observation, rendered, self.what)
        self._relative_to, self._reach = settings.relative_to, settings.reach
        self.low, self.high = self.env.action_space.low, self.env.action_space.high

    def reset(self, seed: int, options: Mapping[str, Any] | None = None) -> tuple[Any, Mapping[str, Any]]:
        """The first observation and its ``info``.

        Raises:
            UserError: the environment returns something else.
        """
        found = self.env.reset(seed=seed, options=options)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):
            return found
        raise UserError(
            f"{self.what}: its reset must return (observation, info), it returned {_shown(found)}; mend the "
            "environment, or wrap one that was made for an older Gymnasium"
        )

    def step(self, own: npt.NDArray[Any]) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Observation, reward, terminated, truncated and ``info`` after an action in the own units.

        Raises:
            UserError: the environment returns something else.
        """
        found = self.env.step(own)
        if isinstance(found, tuple) and len(found) == 5 and isinstance(found[4], Mapping):
            observation, reward, ended, cut, info = found
            try:
                return observation, float(reward), bool(ended), bool(cut), info
            except (TypeError, ValueError) as error:
                raise UserError(
                    f"{self.what}: reward, terminated and truncated of its step must be a number and two of "
                    f"true or false, they are {reward!r}, {ended!r} and {cut!r}; mend the environment"
                ) from error
        raise UserError(
            f"{self.what}: its step must return (observation, reward, terminated, truncated, info), it "
            f"returned {_shown(found)}; mend the environment, or wrap one made for an older Gymnasium"
        )

    def picture(self) -> npt.NDArray[np.uint8]:
        """The environment's own picture [H, W, 3].

        Raises:
            UserError: it draws something else.
        """
        pixels = np.asarray(drawn(self.env.render, self.what))
        if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3:
            return pixels
        raise UserError(
            f"{self.what}: its render must give a picture uint8 [H, W, 3], it gives {pixels.dtype} "
            f"{list(pixels.shape)}; mend the environment"
        )

    def scaled(self, action: npt.NDArray[np.float32], raw: Any) -> npt.NDArray[Any]:
        """An action [A] in [-1, 1] in the environment's own units, after it has shown ``raw``."""
        clipped = np.clip(action, -1.0, 1.0)
        if self._relative_to:
            own = np.clip(self._origin(raw) + self._reach * clipped, self.low, self.high)
        else:
            own = self.low + (clipped + 1) / 2 * (self.high - self.low)
        typed: npt.NDArray[Any] = own.astype(self.low.dtype)
        return typed

    def unscaled(self, own: Any, raw: Any) -> npt.NDArray[np.float32]:
        """The inverse of ``scaled``; what is farther away is approached in its direction."""
        there = np.asarray(own, np.float64)
        if self._relative_to:
            action = (there - self._origin(raw)) / self._reach
            action /= max(1.0, float(np.abs(action).max()))
        else:
            action = np.clip(2 * (there - self.low) / (self.high - self.low) - 1, -1.0, 1.0)
        return action.astype(np.float32)

    def _origin(self, raw: Any) -> npt.NDArray[np.float64]:
        try:
            origin = np.asarray(entry(raw, self._relative_to), np.float64)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.what}: relative_to = {self._relative_to!r} is no entry of numbers it shows, "
                f"which are {', '.join(path for path, _ in leaves(self.env.observation_space))}"
            ) from error
        if origin.shape != self.low.shape:
            raise UserError(
                f"{self.what}: relative_to = {self._relative_to!r} has the shape {list(origin.shape)}, "
                f"actions have {list(self.low.shape)}; name an entry of the same shape"
            )
        return origin


def _shown(found: object) -> str:
    if isinstance(found, tuple):
        return f"a tuple of {len(found)}: {', '.join(type(part).__name__ for part in found)}"
    return "None" if found is None else f"one {type(found).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a task's environment shows."""

    fields: tuple[FieldSpec, ...]
    action_dim: int
    step_limit: int
    """The environment's own; 0: none is known."""
    instruction: str
    versions: Mapping[str, str]


def look_at(settings: GymnasiumSettings, name: str) -> Look:
    """Build a task's environment, reset it once, and close it. Where settings name entries of ``info``, a
    sub-step shows whether they are there.

    Raises:
        UserError: it cannot be made or looked at, or the settings do not fit it.
    """
    with _built(settings, name) as scene:
        raw, _ = scene.reset(0)
        idle = scene.scaled(np.zeros(len(scene.low), np.float32), raw)
        fields, told = scene.transform.specs(raw), scene.transform.instruction(raw)
        if settings.entries:
            _check_entries(settings, scene.step(idle)[4])
        return Look(
            fields=fields,
            action_dim=len(scene.low),
            step_limit=own_step_limit(scene.env),
            instruction=told or settings.each[name].instruction,
            versions=provenance(scene.env),
        )


def _check_entries(settings: GymnasiumSettings, info: Mapping[str, Any]) -> None:
    for setting, name in settings.entries.items():
        if number(info, setting, name) is None:
            raise UserError(missing(setting, name, info))


@contextlib.contextmanager
def _built(settings: GymnasiumSettings, name: str) -> Iterator[Scene]:
    """A scene for a moment; what its environment raises is one line."""
    scene = Scene(settings, name)
    try:
        try:
            yield scene
        except BaseException:
            close(scene.env)
            raise
        scene.env.close()
    except UserError:
        raise
    except USERS_FAULTS as error:
        raise UserError(f"{scene.what}: the environment fails: {in_words(error)}; mend it") from error


def check_alike(first_name: str, first: Look, name: str, look: Look) -> None:
    """Make sure that one policy can play both tasks.

    Raises:
        UserError: they have other fields, or another number of actions.
    """
    for what, here, there in (
        ("fields", _listed(look.fields), _listed(first.fields)),
        ("actions", f"{look.action_dim} numbers", f"{first.action_dim} numbers"),
    ):
        if here != there:
            raise UserError(
                f"simulator.options.tasks: {name!r} has other {what} ({here}) than {first_name!r} ({there}); "
                "choose equal ones with simulator.options.observation, or train them apart"
            )


def _listed(fields: tuple[FieldSpec, ...]) -> str:
    return ", ".join(f"{field.name} {field.dtype} {list(field.shape)}" for field in fields)


def info_of_a_step(settings: GymnasiumSettings) -> tuple[str, ...]:
    """Entries of ``info`` that the first task's environment gives at a step."""
    with _built(settings, next(iter(settings.each))) as scene:
        raw, _ = scene.reset(0)
        return tuple(scene.step(scene.scaled(np.zeros(len(scene.low), np.float32), raw))[4])
