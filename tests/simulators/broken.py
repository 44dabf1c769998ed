"""Adapters that break one rule each; kinds ``broken:NAME``."""

import os
import sys
import time
from typing import Any

import numpy as np

from rlvla3.messages import Start
from rlvla3.simulators.api import Step
from rlvla3.simulators.synthetic import ReachEnv, Synthetic

_leaked: list[Any] = []
"""What nobody frees."""


def changed(step: Step, **changes: Any) -> Step:
    values = {name: getattr(step, name) for name in ("reward", "terminated", "truncated", "success")}
    return Step(**(values | changes))


def adapter(env: type[ReachEnv], name: str) -> type[Synthetic]:
    """An adapter of such envs."""

    def make(self: Synthetic) -> ReachEnv:
        return env(self._settings)

    return type(name, (Synthetic,), {"make": make})


class _Mistyped(ReachEnv):
    def observe(self):
        return {**super().observe(), "proprioception": np.zeros(4)}


class _Remembers(ReachEnv):
    drift = 0.0

    def reset(self, start: Start, step_limit: int) -> bool:
        solved = super().reset(start, step_limit)
        self.drift += 0.01
        self._pointer = self._pointer + self.drift
        return solved


class _Shares(ReachEnv):
    pointer = np.zeros(2)

    def step(self, action: np.ndarray) -> Step:
        _Shares.pointer = _Shares.pointer + action
        return super().step(action)

    def reset(self, start: Start, step_limit: int) -> bool:
        _Shares.pointer = np.zeros(2)
        return super().reset(start, step_limit)

    def observe(self):
        seen = dict(super().observe())
        seen["proprioception"] = seen["proprioception"] + np.float32(_Shares.pointer.sum())
        return seen


class _FewStates(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> bool:
        return super().reset(Start(task=start.task, split=start.split, state=start.state % 50), step_limit)


class _OneSplit(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> bool:
        return super().reset(Start(task=start.task, split="train", state=start.state), step_limit)


class _Unseeded(ReachEnv):
    def __init__(self, settings) -> None:
        super().__init__(settings.model_copy(update={"seed": 0}))


class _Skips(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> bool:
        return super().reset(Start(task=start.task, split=start.split, state=start.state // 2), step_limit)


class _Secretive(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> None:
        super().reset(start, step_limit)
        self._pointer = self._target.copy()


class _Unclipped(ReachEnv):
    def step(self, action: np.ndarray) -> Step:
        step = super().step(action)
        self._pointer = self._pointer + 0.001 * action
        return step


class _Unlimited(ReachEnv):
    def step(self, action: np.ndarray) -> Step:
        return changed(super().step(action), truncated=False)


class _Off(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> bool:
        return super().reset(start, step_limit + 1 if step_limit > 4 else step_limit)


class _StartsAnew(ReachEnv):
    def step(self, action: np.ndarray) -> Step:
        step = super().step(action)
        if step.truncated:
            self.reset(Start(task=0, split="train", state=1), 0)
        return step


class _ChangedByLooking(ReachEnv):
    def observe(self):
        self._pointer = self._pointer + 1e-3
        return super().observe()


class _Early(ReachEnv):
    def step(self, action: np.ndarray) -> Step:
        step = super().step(action)
        return changed(step, success=True, terminated=False) if 0.12 < self._distance() < 0.3 else step


class _Black(ReachEnv):
    def observe(self):
        seen = dict(super().observe())
        return {**seen, "image": np.zeros_like(seen["image"])}


class _Upside(ReachEnv):
    def observe(self):
        seen = dict(super().observe())
        return {**seen, "image": np.ascontiguousarray(seen["image"][::-1])}


class _ByProcess(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> bool:
        solved = super().reset(start, step_limit)
        self._pointer = self._pointer + os.getpid() * 1e-9
        return solved


class _KeepsFile(ReachEnv):
    def __init__(self, settings) -> None:
        super().__init__(settings)
        _leaked.append(os.open(os.devnull, os.O_RDONLY))


class _KeepsThread(ReachEnv):
    def __init__(self, settings) -> None:
        import threading

        super().__init__(settings)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class _KeepsProcess(ReachEnv):
    def __init__(self, settings) -> None:
        import subprocess

        super().__init__(settings)
        _leaked.append(subprocess.Popen(["sleep", "20"]))


class _KeepsMemory(ReachEnv):
    def __init__(self, settings) -> None:
        super().__init__(settings)
        _leaked.append(np.ones(3_000_000))


class _LeaksWithResets(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> bool:
        _leaked.append(np.ones(400_000))
        return super().reset(start, step_limit)


class _SlowResets(ReachEnv):
    def reset(self, start: Start, step_limit: int) -> bool:
        time.sleep(3)
        return super().reset(start, step_limit)


ENVS = {name[1:]: env for name, env in list(globals().items()) if name[0] == "_" and isinstance(env, type)}
globals().update({name: adapter(env, name) for name, env in ENVS.items()})


class Torch(Synthetic):
    """Imports torch to describe itself."""

    @property
    def spec(self):
        sys.modules.setdefault("torch", sys)
        return super().spec


class Expertless(Synthetic):
    """Has no expert."""

    def expert(self, env):
        raise LookupError("nobody knows how")


class Leaky(Synthetic):
    """Leaks 3 MB with each reset, and says so."""

    def make(self):
        return _LeaksWithResets(self._settings)

    @property
    def spec(self):
        import dataclasses

        return dataclasses.replace(super().spec, recycle_after=200)


class _Wordless(ReachEnv):
    def observe(self):
        return None


Wordless = adapter(_Wordless, "Wordless")
