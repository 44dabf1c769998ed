"""The adapter that is checked, what is known of it, and how a check ends."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from unittest import SkipTest

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.plugins import USERS_FAULTS, a_type
from rlvla3.settings import Settings
from rlvla3.simulators.api import Env, Observation, Simulator, SimulatorSpec, Step
from rlvla3.simulators.chunking import a_step
from rlvla3.simulators.registry import build, simulator_class, spec_of

Split = Literal["train", "held_out", "demonstration"]
SPLITS: tuple[Split, ...] = ("train", "held_out", "demonstration")
STATES = (0, 1, 49, 50, 51, 120)
"""Initial states that are compared, where an adapter has any number of them."""
_LOOKED_AT = 10

ELSEWHERE = "in a process of its own: "
"""Begins what is told of a fault that an adapter has in another process."""
FOUND = "rlvla3.conformance: "
"""Begins the line in which a process of its own tells what it found; libraries print as well."""


class ConformanceError(AssertionError):
    """The adapter does not keep a rule: what was found, and what it must be."""


class Skipped(SkipTest):
    """A check cannot be made here, and why."""


def require(condition: bool, text: str) -> None:
    """Fail with ``text`` unless the condition holds."""
    if not condition:
        raise ConformanceError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the checks cannot find out about an adapter by themselves."""

    states: int = 0
    """Initial states of each (task, split); 0: any number."""
    seeded: bool = True
    """Whether a setting ``seed``, where there is one, changes the initial states."""
    images: tuple[str, ...] | None = None
    """Fields that show the scene; None: every uint8 field [H, W, 3]."""
    upright: tuple[str, ...] | None = None
    """Those of them that show up as up; None: the first one. A camera on the moving hand does not."""
    lift: tuple[float, ...] = ()
    """An action [A] that, repeated, moves something in the picture upwards; its negative, downwards."""
    lift_steps: int = 10
    """How often it is repeated."""
    resets: int = 30
    """Resets over which memory must stay flat."""
    growth_mb: float = 1.0
    """Megabytes by which memory may grow with a reset."""
    deadline_s: float = 20.0
    """Seconds after which an env counts as hanging: more than any reset or chunk really takes."""


class Subject:
    """An adapter under test. As a context manager it closes every env that was built."""

    def __init__(
        self, kind: str, options: Mapping[str, Any] | None = None, profile: Profile | None = None
    ) -> None:
        """``kind``: a built-in name or ``module:attribute``. ``options``: its settings.

        Raises:
            UserError: there is no such adapter.
            ValueError: the settings do not fit.
        """
        self.kind = kind
        self.options = dict(options or {})
        self.profile = profile or Profile()
        self._class = simulator_class(kind)
        self.simulator = self.build()
        self._envs: list[Env] = []

    def __enter__(self) -> "Subject":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(*USERS_FAULTS):  # the first fault is the one to tell
            self.close()

    def close(self) -> None:
        """Close every env that was built, also after one that fails; passes on the first fault."""
        while self._envs:
            try:
                self._envs.pop().close()
            except BaseException:
                with contextlib.suppress(*USERS_FAULTS):
                    self.close()
                raise

    def build(self, **changes: Any) -> Simulator:
        """The adapter, with changed settings."""
        settings: Settings = self._class.Settings.model_validate(self.options | changes)
        return build(self.kind, self._class, settings)

    def make(self, **changes: Any) -> Env:
        """An env that is closed at the end; of an adapter with changed settings, where there are any."""
        env = (self.build(**changes) if changes else self.simulator).make()
        self._envs.append(env)
        return env

    def has_setting(self, name: str) -> bool:
        """Whether the adapter has a setting of this name."""
        settings: type[Settings] = self._class.Settings
        return name in settings.model_fields

    @cached_property
    def spec(self) -> SimulatorSpec:
        """What the adapter offers.

        Raises:
            UserError: it does not say it.
        """
        return spec_of(self.kind, self.simulator)

    @property
    def last_task(self) -> int:
        """Index of the last task."""
        return len(self.spec.tasks) - 1

    @cached_property
    def images(self) -> tuple[str, ...]:
        """Fields that show the scene."""
        if self.profile.images is not None:
            return self.profile.images
        shown = [f.name for f in self.spec.observation if f.dtype == "uint8" and f.shape[-1:] == (3,)]
        return tuple(shown)

    @property
    def some_state(self) -> int:
        """One initial state that is not the first, where there are several."""
        return 7 % self.profile.states if self.profile.states else 7

    def unsolved(self, env: Env, split: Split = "train") -> Start:
        """The first state of task 0 that has something to solve.

        Raises:
            Skipped: the first ones have not.
        """
        for state in range(min(_LOOKED_AT, self.profile.states or _LOOKED_AT)):
            start = Start(task=0, split=split, state=state)
            if not env.reset(start, 0):
                return start
        raise Skipped(f"its first states of the split {split} are all solved at their reset")

    def states(self) -> Sequence[int]:
        """Initial states to compare."""
        return tuple(s for s in STATES if s < self.profile.states) if self.profile.states else STATES

    def actions(self, count: int = 6, seed: int = 1) -> npt.NDArray[np.float32]:
        """Random actions [count, A] in [-1, 1], the same ones each time."""
        shape = (count, self.spec.action_dim)
        return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)

    def still(self, count: int) -> npt.NDArray[np.float32]:
        """Zero actions [count, A]."""
        return np.zeros((count, self.spec.action_dim), np.float32)


def fingerprint(env: Env, start: Start, actions: npt.NDArray[np.float32]) -> str:
    """SHA-256 of every observation and outcome of an episode; actions [n, A]. Stops at its end."""
    digest = hashlib.sha256()
    env.reset(start, 0)
    _add_observation(digest, env)
    for action in actions:
        step = stepped(env, action)
        digest.update(repr(plain(step)).encode())
        _add_observation(digest, env)
        if step.terminated or step.truncated:
            break
    return digest.hexdigest()


def observed(env: Env) -> Observation:
    """What an env observes: arrays by name, and nothing else."""
    found: Any = env.observe()
    require(isinstance(found, Mapping), f"observe() must give arrays by name, it gives {a_type(found)}")
    for name, array in found.items():
        require(isinstance(array, np.ndarray), f"field {name!r} must be an array, it is {a_type(array)}")
    fields: Observation = found
    return fields


def stepped(env: Env, action: npt.NDArray[np.float32]) -> Step:
    """The outcome of a sub-step, and nothing else."""
    return a_step(env.step, env.step(action))


def use(env: Env, subject: Subject, state: int) -> None:
    """A reset, some sub-steps and a look."""
    env.reset(Start(task=0, split="train", state=state), 0)
    for action in subject.actions(3):
        step = stepped(env, action)
        if step.terminated or step.truncated:
            break
    observed(env)


def plain(step: Step) -> tuple[float, bool, bool, bool]:
    """An outcome as plain numbers, whatever an adapter makes them of."""
    return float(step.reward), bool(step.terminated), bool(step.truncated), bool(step.success)


def _add_observation(digest: Any, env: Env) -> None:
    for name, array in sorted(observed(env).items()):
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())


def seen(env: Env) -> bytes:
    """What tells an initial state from others: privileged numbers where the env shows some, else all that it
    observes."""
    privileged = getattr(env, "privileged", None)
    arrays = observed(env).values() if privileged is None else [privileged]
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Let the processes that are started meanwhile import whatever this one can."""
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    try:
        yield
    finally:
        if old is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = old


def require_gl(subject: Subject) -> None:
    """Make sure that an adapter that renders with MuJoCo can.

    Raises:
        UserError: no GL back-end works, with the packages to install.
    """
    if subject.spec.needs_gl:
        from rlvla3.simulators.mujoco_rendering import require_backend

        require_backend()


def picture(env: Env) -> npt.NDArray[np.uint8] | None:
    """A frame for people, where the adapter was set up to draw any."""
    try:
        return np.asarray(env.picture())
    except UserError:
        return None
