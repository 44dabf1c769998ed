"""The one chunk-step, and envs stepped one after the other as a batch."""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.messages import Start
from rlvla3.plugins import a_type, defined
from rlvla3.simulators.api import Env, EnvBatch, Observation, Step


@dataclass(slots=True, eq=False)
class ChunkResult:
    """What executing one action chunk gave one env. Plain numbers: one at a time they are slow in arrays."""

    reward: list[float]
    """[C]: reward of each executed sub-step, 0 after the end of the episode."""
    sub_steps: int = 0
    """Executed sub-steps, 1…C."""
    terminated: bool = False
    """The episode ended by its task; never together with ``truncated``."""
    truncated: bool = False
    """The episode was cut; the observation now is the one to bootstrap from."""
    success: bool = False
    """The task succeeded at some executed sub-step of this chunk."""


def chunk_step(
    batch: EnvBatch,
    indices: Sequence[int],
    actions: npt.NDArray[np.float32],
    on_sub_step: Callable[[int], None] | None = None,
) -> list[ChunkResult]:
    """Execute one action chunk, waiting wherever an env waits; see ``chunk_steps``."""
    steps = chunk_steps(batch, indices, actions, on_sub_step)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            results: list[ChunkResult] = end.value
            return results


def chunk_steps(
    batch: EnvBatch,
    indices: Sequence[int],
    actions: npt.NDArray[np.float32],
    on_sub_step: Callable[[int], None] | None = None,
) -> Generator[float, None, list[ChunkResult]]:
    """Execute one action chunk in each named env, stopping each at its first end.

    Nothing after the end of an episode is executed or counted. Nothing is rendered here.

    Args:
        batch: the envs.
        indices: n different envs of the batch, all in mid-episode.
        actions: [n, C, A] float32.
        on_sub_step: called with the env's index after each executed sub-step (video frames).

    Yields:
        Where envs wait for something outside: the monotonic time until which going on would only
        wait. Other work can be done meanwhile; going on earlier is allowed.

    Raises:
        ValueError: wrong shape, or an action or a reward that is not finite, naming env and field.
    """
    _check_actions(indices, actions)
    n, chunk = actions.shape[:2]
    results = [ChunkResult([0.0] * chunk) for _ in indices]
    running = list(range(n))
    for sub_step in range(chunk):
        stepped = indices if len(running) == n else [indices[i] for i in running]
        ready_s = batch.begin(
            stepped, actions[:, sub_step] if len(running) == n else actions[running, sub_step]
        )
        if ready_s > 0.0:
            yield ready_s
        for i, step in zip(running, batch.finish(stepped), strict=True):
            if not math.isfinite(step.reward):
                raise ValueError(f"env {indices[i]}: reward of sub-step {sub_step} is {step.reward}")
            result = results[i]
            result.reward[sub_step] = float(step.reward)
            result.sub_steps += 1
            result.success = result.success or bool(step.success)
            result.terminated = bool(step.terminated)
            result.truncated = bool(step.truncated) and not result.terminated
            if on_sub_step is not None:
                on_sub_step(indices[i])
        running = [i for i in running if not (results[i].terminated or results[i].truncated)]
        if not running:
            break
    return results


def _check_actions(indices: Sequence[int], actions: npt.NDArray[np.float32]) -> None:
    if actions.ndim != 3 or len(actions) != len(indices):
        raise ValueError(
            f"actions must be [{len(indices)}, C, A] for {len(indices)} envs, are {actions.shape}"
        )
    if len(set(indices)) != len(indices):
        raise ValueError(f"envs of one chunk-step must differ, are {list(indices)}")
    finite = np.isfinite(actions)
    if not finite.all():
        i, sub_step, dimension = (int(k) for k in np.argwhere(~finite)[0])
        raise ValueError(
            f"env {indices[i]}: action of sub-step {sub_step}, dimension {dimension} is "
            f"{actions[i, sub_step, dimension]}"
        )


def a_step(method: Callable[..., object], found: object) -> Step:
    """What the ``method`` of an env gave back, which is to be the outcome of a sub-step.

    Raises:
        TypeError: it is none.
    """
    if isinstance(found, Step):
        return found
    given = "None" if found is None else a_type(found)
    raise TypeError(
        f"{method.__name__}() must return a rlvla3.simulators.api.Step, it returned {given}{defined(method)}"
    )


class SerialBatch:
    """An ``EnvBatch`` of single envs, stepped in turn by the thread that calls.

    An exception of an env is passed on with a note naming the env and what it did.
    """

    def __init__(self, envs: Sequence[Env]) -> None:
        self._envs = list(envs)
        self._begins = [getattr(env, "begin", None) for env in self._envs]
        self._actions: dict[int, npt.NDArray[np.float32]] = {}
        self.size = len(self._envs)
        self.busy = 0

    def _named(self, index: int, verb: str, call: Callable[..., Any], *arguments: Any) -> Any:
        self.busy = index
        try:
            return call(*arguments)
        except Exception as error:
            error.add_note(f"in env {index} of its batch, while it {verb}")
            raise

    def reset(self, index: int, start: Start, step_limit: int) -> bool:
        """Reset one env; whether its task is solved already."""
        return bool(self._named(index, "reset", self._envs[index].reset, start, step_limit))

    def begin(self, indices: Sequence[int], actions: npt.NDArray[np.float32]) -> float:
        """Begin one sub-step of the named envs; actions [n, A]."""
        ready_s = 0.0
        for index, action in zip(indices, actions, strict=True):
            begin = self._begins[index]
            if begin is None:
                self._actions[index] = action
            else:
                ready_s = max(ready_s, self._named(index, "stepped", begin, action))
        return ready_s

    def finish(self, indices: Sequence[int]) -> Sequence[Step]:
        """Outcomes of the sub-step begun; envs that only compute do it now."""
        return [self._finish(index) for index in indices]

    def _finish(self, index: int) -> Step:
        env: Any = self._envs[index]
        if self._begins[index] is None:
            return a_step(env.step, self._named(index, "stepped", env.step, self._actions[index]))
        return a_step(env.finish, self._named(index, "stepped", env.finish))

    def observe(self, indices: Sequence[int]) -> Sequence[Observation]:
        """The named envs' observations, rendered now."""
        return [self._named(i, "observed", self._envs[i].observe) for i in indices]

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """A frame for people."""
        picture: npt.NDArray[np.uint8] = self._named(index, "drew a picture", self._envs[index].picture)
        return picture

    def close(self) -> None:
        """Close every env."""
        for index, env in enumerate(self._envs):
            self._named(index, "closed", env.close)
