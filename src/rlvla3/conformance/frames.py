"""Checks of what the pictures show."""

import numpy as np
import numpy.typing as npt

from rlvla3.conformance.subject import Skipped, Subject, observed, picture, require, stepped
from rlvla3.messages import Start
from rlvla3.simulators.api import Env

_FIRST = Start(task=0, split="train", state=0)
_LEAST_DEVIATION = 2.0
"""Standard deviation of the pixels of a frame that shows something (of 255)."""
_CHANGE = 12
"""Difference of a pixel (of 255) that counts as a change."""


def frames_show_something(subject: Subject) -> None:
    """A frame is neither black nor of one colour."""
    env = subject.make()
    env.reset(_FIRST, 0)
    if not subject.images:
        raise Skipped("it shows no pictures")
    observation = observed(env)
    frames = {f"field {name!r}": np.asarray(observation[name]) for name in subject.images}
    if (frame := picture(env)) is not None:
        frames["picture()"] = frame
    for name, pixels in frames.items():
        deviation = float(pixels.std())
        require(
            deviation >= _LEAST_DEVIATION,
            f"{name} is blank: its pixels have mean {pixels.mean():.1f} and deviation {deviation:.1f}",
        )


def frames_are_upright(subject: Subject) -> None:
    """What moves up in the world moves up in the picture (row 0 is the top)."""
    profile = subject.profile
    fields = subject.images[:1] if profile.upright is None else profile.upright
    if not fields:
        raise Skipped("it shows no pictures whose up is up")
    if not profile.lift:
        raise Skipped("no action is known that lifts something; give Profile.lift, or --lift")
    require(len(profile.lift) == subject.spec.action_dim, f"lift must have {subject.spec.action_dim} numbers")
    env, lift = subject.make(), np.array(profile.lift, np.float32)
    for field in fields:
        before, up = _moved(env, field, lift, profile.lift_steps)
        _, down = _moved(env, field, -lift, profile.lift_steps)
        upper, lower = _centre_row(before, up), _centre_row(before, down)
        require(upper < lower, f"{field!r} is upside down: rising moves row {lower:.1f} to {upper:.1f}")


def _moved(
    env: Env, field: str, action: npt.NDArray[np.float32], count: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The picture before and after an action, repeated."""
    env.reset(_FIRST, 0)
    before = np.array(observed(env)[field])
    for _ in range(count):
        step = stepped(env, action)
        if step.terminated or step.truncated:
            break
    return before, np.array(observed(env)[field])


def _centre_row(before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8]) -> float:
    """Mean row of the pixels that changed."""
    changed = np.abs(before.astype(int) - after.astype(int)).max(-1) > _CHANGE
    require(
        bool(changed.any()), "lift changes nothing in the picture; give another action, or more lift_steps"
    )
    return float(np.nonzero(changed)[0].mean())
