"""The environment of one task, and what a look at it shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.simulators.gymnasium_making import draws, make, provenance
from rlvla3.simulators.gymnasium_observation import Transform
from rlvla3.simulators.gymnasium_settings import GymnasiumSettings


class Scene:
    """The environment of one task, built when the task is first played."""

    def __init__(self, settings: GymnasiumSettings, name: str) -> None:
        task = settings.each[name]
        self.what = f"simulator.options{f'.tasks.{name}' if settings.tasks else ''}.env_id"
        self.env = make(task.env_id, task.arguments, self.what)
        rendered = settings.image_size if settings.image == "render" else 0
        if rendered and not draws(self.env):
            self.env.close()
            raise UserError(
                f"{self.what} = {task.env_id!r} draws no pictures, so image: render has none; "
                "leave image out, or set simulator.options.arguments.render_mode"
            )
        self.transform = Transform(self.env, settings.observation, rendered, self.what)
        self.low, self.high = self.env.action_space.low, self.env.action_space.high

    def scaled(self, action: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """An action [A] in [-1, 1] in the environment's own units."""
        share = (np.clip(action, -1.0, 1.0) + 1) / 2
        own: npt.NDArray[Any] = (self.low + share * (self.high - self.low)).astype(self.low.dtype)
        return own

    def unscaled(self, own: Any) -> npt.NDArray[np.float32]:
        """The inverse of ``scaled``, clipped."""
        share = (np.asarray(own, np.float64) - self.low) / (self.high - self.low)
        action: npt.NDArray[np.float32] = np.clip(2 * share - 1, -1.0, 1.0).astype(np.float32)
        return action


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a task's environment shows."""

    fields: tuple[FieldSpec, ...]
    action_dim: int
    instruction: str
    versions: Mapping[str, str]


def look_at(settings: GymnasiumSettings, name: str) -> Look:
    """Build a task's environment, reset it once, and close it.

    Raises:
        UserError: it cannot be made, or the settings do not fit it.
    """
    scene = Scene(settings, name)
    try:
        raw, _ = scene.env.reset(seed=0)
        return Look(
            fields=scene.transform.specs(raw),
            action_dim=len(scene.low),
            instruction=scene.transform.instruction(raw) or settings.each[name].instruction,
            versions=provenance(scene.env),
        )
    finally:
        scene.env.close()


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
    scene = Scene(settings, next(iter(settings.each)))
    try:
        scene.env.reset(seed=0)
        return tuple(scene.env.step(scene.scaled(np.zeros(len(scene.low), np.float32)))[4])
    finally:
        scene.env.close()
