"""What every env batch needs that can only step as a whole: no-op actions, and ends that are kept."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.messages import Start
from rlvla3.simulators.api import Observation, Step


class WholeBatch:
    """An ``EnvBatch`` whose envs all step at once, wanted or not.

    Envs without an episode, or past the end of theirs, get an action of zeros, and what they do is ignored.
    The last observation of an episode that was cut is taken before anything moves its env on.
    A subclass says how envs are reset, stepped, observed and drawn.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.busy = 0
        self._running: set[int] = set()
        """Envs in mid-episode."""
        self._cut: set[int] = set()
        """Envs whose last observation may be asked for and was not taken yet."""
        self._last: dict[int, Observation] = {}
        """Last observations of cut episodes, once their envs have moved on."""
        self._actions = np.zeros((size, 0), np.float32)

    # --- what a subclass provides ----------------------------------------------------------------

    def _reset(self, index: int, start: Start, step_limit: int) -> None:
        """Reset one env, leaving all others as they are."""
        raise NotImplementedError

    def _begin(self, actions: npt.NDArray[np.float32]) -> float:
        """Begin a sub-step of all envs, actions [size, A]; until when ``_finish`` would wait, or 0."""
        return 0.0

    def _finish(self, actions: npt.NDArray[np.float32]) -> Sequence[Step]:
        """Outcomes of the sub-step of all envs [size]."""
        raise NotImplementedError

    def _observe(self, indices: Sequence[int]) -> Sequence[Observation]:
        """The named envs as they are now."""
        raise NotImplementedError

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """A frame of one env for people."""
        raise NotImplementedError

    def close(self) -> None:
        """Free everything."""
        raise NotImplementedError

    # --- EnvBatch --------------------------------------------------------------------------------

    def reset(self, index: int, start: Start, step_limit: int) -> None:
        """Begin an episode in one env."""
        self.busy = index
        self._reset(index, start, step_limit)
        self._running.add(index)
        self._cut.discard(index)
        self._last.pop(index, None)

    def begin(self, indices: Sequence[int], actions: npt.NDArray[np.float32]) -> float:
        """Begin one sub-step; actions [n, A] of the named envs, which are all that are in mid-episode.

        Raises:
            RuntimeError: an env in mid-episode would move on without its action, or one without an
                episode got one.
        """
        if self._running != set(indices):
            wrong = sorted(self._running.symmetric_difference(indices))
            raise RuntimeError(f"envs {sorted(self._running)} step at once; wrong: {wrong}")
        self._keep_cut()
        self._actions = np.zeros((self.size, actions.shape[1]), np.float32)
        self._actions[list(indices)] = actions
        return self._begin(self._actions)

    def finish(self, indices: Sequence[int]) -> Sequence[Step]:
        """Outcomes of the named envs."""
        steps = self._finish(self._actions)
        for index in indices:
            step = steps[index]
            if step.terminated or step.truncated:
                self._running.discard(index)
            if step.truncated and not step.terminated:
                self._cut.add(index)
        return [steps[index] for index in indices]

    def observe(self, indices: Sequence[int]) -> Sequence[Observation]:
        """The named envs: as they are, or as they were at the end of an episode that was cut."""
        now = [index for index in indices if index not in self._last]
        found: Mapping[int, Observation] = dict(zip(now, self._observe(now), strict=True)) if now else {}
        return [self._last[index] if index in self._last else found[index] for index in indices]

    def _keep_cut(self) -> None:
        cut = sorted(self._cut)
        if cut:
            for index, observation in zip(cut, self._observe(cut), strict=True):
                self._last[index] = {name: np.array(value) for name, value in observation.items()}
            self._cut.clear()


class EnvsTogether(WholeBatch):
    """A whole batch of single envs. It exists to try out what such a batch changes without a device.

    Envs may have ``begin`` and ``finish`` (``WaitingEnv``). Those without an episode really move on:
    ``drift`` is a sub-step that nobody wants.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__(len(envs))
        self._envs = list(envs)
        self._known: set[int] = set()
        """Envs that were reset at least once."""

    def _reset(self, index: int, start: Start, step_limit: int) -> None:
        self._envs[index].reset(start, step_limit)
        self._known.add(index)

    def _begin(self, actions: npt.NDArray[np.float32]) -> float:
        until_s = 0.0
        for index in sorted(self._running):
            self.busy = index
            if hasattr(self._envs[index], "begin"):
                until_s = max(until_s, self._envs[index].begin(actions[index]))
        return until_s

    def _finish(self, actions: npt.NDArray[np.float32]) -> Sequence[Step]:
        steps = [Step(reward=0.0, terminated=False, truncated=False, success=False)] * self.size
        for index, env in enumerate(self._envs):
            self.busy = index
            if index in self._running:
                steps[index] = env.finish() if hasattr(env, "begin") else env.step(actions[index])
            elif index in self._known:
                env.drift(actions[index])
        return steps

    def _observe(self, indices: Sequence[int]) -> Sequence[Observation]:
        return [self._envs[index].observe() for index in indices]

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """A frame of one env."""
        picture: npt.NDArray[np.uint8] = self._envs[index].picture()
        return picture

    def close(self) -> None:
        """Close every env."""
        for env in self._envs:
            env.close()
