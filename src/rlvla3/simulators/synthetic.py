"""Environments without a simulator: ``delay`` for schedules and faults, ``reach`` for learning.

Neither needs GL, downloads or another package, and a sub-step costs microseconds (plus, in
``delay``, the latency that was asked for).
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from rlvla3.messages import FieldSpec, Start
from rlvla3.simulators.api import Observation, SimulatorSpec, Step
from rlvla3.simulators.ending import ending
from rlvla3.simulators.synthetic_faults import Fault, strike
from rlvla3.simulators.synthetic_reach import (
    COLOURS,
    OWN_STEP_LIMIT,
    REACHED,
    STEP_LENGTH,
    Scene,
    draw,
    place,
)
from rlvla3.simulators.tasks import RewardFunction, Rewarding, TaskSettings, differing, load_reward
from rlvla3.simulators.whole_batch import EnvsTogether
from rlvla3.transforms.meaning import Camera, Meaning, Numbers

SPLITS = ("train", "held_out", "demonstration")
_IMAGE_SIZE = 32
_LATENCY, _PLACES = 0, 1
_BLOCK = 64
"""Sub-steps whose latencies are drawn together."""
_OF_DELAY = ("mean_ms", "cv", "latency", "action_dim", "constant_reward", "success_at")
_OF_REACH = ("colours", "reward", "shaping_weight", "shaping_discount", "step_penalty")
_REACH = Meaning(
    cameras=(Camera(field="image", role="front", height=_IMAGE_SIZE, width=_IMAGE_SIZE),),
    state={
        "proprioception": (
            Numbers(name="pointer_position", size=2),
            Numbers(name="pointer_velocity", size=2, scale=STEP_LENGTH),
        )
    },
    action=(Numbers(name="delta_pointer", size=2, scale=STEP_LENGTH),),
)


class SyntheticSettings(TaskSettings):
    """Settings of the synthetic simulator."""

    task: Literal["delay", "reach"] = "reach"
    """``reach``: move a pointer to the disc of the named colour, from pixels. ``delay``: nothing to
    learn; every sub-step sleeps, and observations echo who they are."""
    colours: tuple[Literal["red", "green", "blue", "yellow"], ...] = Field(
        default=("red", "green", "blue"), min_length=1
    )
    """Tasks of ``reach``; all four colours are always in the picture."""
    mean_ms: float | tuple[float, ...] = 0.0
    """Mean latency of a sub-step of ``delay``: one number, or one for each task (several tasks)."""
    cv: float = Field(default=0.0, ge=0)
    """Coefficient of variation (deviation / mean) of the latency."""
    latency: Literal["constant", "log_normal", "heavy_tail"] = "constant"
    """Distribution of the latency; ``heavy_tail`` is a Pareto distribution with this mean and cv."""
    action_dim: int = Field(default=4, ge=1)
    """A of ``delay`` (``reach`` has 2)."""
    episode_length: int = Field(default=0, ge=0)
    """Own step limit; 0: 50 for ``reach``, none for ``delay``."""
    constant_reward: float = 1.0
    """Reward of every sub-step of ``delay``."""
    success_at: int = Field(default=0, ge=0)
    """Sub-step (from 1) at which ``delay`` succeeds; 0: never."""
    solved_states: tuple[int, ...] = ()
    """Initial states of every task and split in which the task is solved already: ``reach`` puts the pointer
    on its target, ``delay`` succeeds with the first sub-step."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of latencies and of the scenes."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong, and where."""
    together: bool = False
    """Step each env batch as a whole, as simulators on a GPU do: envs without an episode move on too."""

    @model_validator(mode="after")
    def _fit(self) -> "SyntheticSettings":
        if isinstance(self.mean_ms, tuple) and not self.mean_ms:
            raise ValueError("mean_ms must have a number for each task; it is empty")
        differing("colours", self.colours)
        if min(_each(self.mean_ms, 1)) < 0:
            raise ValueError(f"mean_ms must be 0 or more; it is {self.mean_ms}")
        if self.latency != "constant" and self.cv == 0:
            raise ValueError(f"latency {self.latency} needs cv > 0; use constant for a fixed latency")
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """Task names."""
        if self.task == "reach":
            return self.colours
        return tuple(f"delay-{i}" for i in range(len(_each(self.mean_ms, 1))))

    @property
    def own_limit(self) -> int:
        """Step limit when none is given; 0: unlimited."""
        return self.episode_length or (OWN_STEP_LIMIT if self.task == "reach" else 0)

    @property
    def limits(self) -> tuple[int, ...]:
        """One step limit for each task: the own one where none is given; 0: unlimited."""
        return tuple(limit or self.own_limit for limit in super().limits)

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """See ``TaskSettings``."""
        if self.task == "reach":
            yield from super().without_effect()
        for name in _OF_DELAY if self.task == "reach" else _OF_REACH:
            yield name, f"task {self.task} does not use it"


def _each(value: float | tuple[float, ...], count: int) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,) * count


def _random(seed: int, start: Start, use: int, step: int) -> np.random.Generator:
    """A generator of its own for each (seed, start, use, sub-step)."""
    key = (start.task << 56) | (SPLITS.index(start.split) << 54) | (use << 50) | start.state
    return np.random.Generator(np.random.Philox(counter=[0, 0, 0, step], key=[seed, key]))


def latency_s(settings: SyntheticSettings, start: Start, step: int) -> float:
    """Latency in seconds of sub-step ``step`` of the episode ``start``: a pure function of its arguments."""
    return _latencies_s(settings, start, step // _BLOCK)[step % _BLOCK]


def _latencies_s(settings: SyntheticSettings, start: Start, block: int) -> list[float]:
    """Latencies of ``_BLOCK`` sub-steps: a random generator for each would cost more than the draw."""
    mean_s = _each(settings.mean_ms, len(settings.tasks))[start.task] / 1000
    if settings.latency == "constant" or mean_s == 0:
        return [float(mean_s)] * _BLOCK
    random = _random(settings.seed, start, _LATENCY, block)
    if settings.latency == "log_normal":
        variance = math.log1p(settings.cv**2)
        normal = random.standard_normal(_BLOCK)
        return (mean_s * np.exp(math.sqrt(variance) * normal - variance / 2)).tolist()  # type: ignore[no-any-return]
    # Pareto with shape a has mean a/(a-1) and cv² = 1/(a(a-2)) for a scale of 1.
    shape = 1 + math.sqrt(1 + settings.cv**-2)
    return (mean_s * (shape - 1) / shape * (1 + random.pareto(shape, _BLOCK))).tolist()  # type: ignore[no-any-return]


class _SyntheticEnv:
    """What both tasks share: the start, the sub-step counter, limits and faults."""

    def __init__(self, settings: SyntheticSettings) -> None:
        self._settings = settings
        self._start = Start(task=0, split="train", state=0)
        self._limit = 0
        self._steps = 0
        self._blind = False

    def reset(self, start: Start, step_limit: int) -> bool:
        """Go to ``start``; ``step_limit`` 0 means the own limit. Whether the task is solved already."""
        self._start, self._steps = start, 0
        self._limit = step_limit or self._settings.own_limit
        self._strike(resets=True)
        return start.state in self._settings.solved_states

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action, clipped to [-1, 1]."""
        self._steps += 1
        struck = self._strike(resets=False)
        reward, success = self._act(np.minimum(np.maximum(action, -1.0), 1.0))
        terminated, truncated = ending(
            ended=success and self._settings.terminate_on_success,
            steps=self._steps,
            limit=self._limit,
            limit_is=self._settings.limit_is,
        )
        return Step(
            reward=float("nan") if "nan_reward" in struck else reward,
            terminated=terminated,
            truncated=truncated,
            success=success,
        )

    def _act(self, action: npt.NDArray[np.float32]) -> tuple[float, bool]:
        raise NotImplementedError

    def drift(self, action: npt.NDArray[np.float32]) -> None:
        """Move on without an episode: nobody counts it, and no fault strikes."""
        self._steps += 1
        self._act(action)

    def _strike(self, resets: bool) -> list[str]:
        """Let the faults of this place strike; returns their kinds."""
        start = self._start
        struck = strike(
            self._settings.faults, (start.task, start.split, start.state, 0 if resets else self._steps)
        )
        self._blind = "nan_observation" in struck
        return struck

    def _seen(self, observation: dict[str, npt.NDArray[Any]]) -> Observation:
        """The observation, unless a fault made it NaN."""
        if not self._blind:
            return observation
        return {n: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for n, a in observation.items()}

    def close(self) -> None:
        """Nothing to free."""


class DelayEnv(_SyntheticEnv):
    """Sleeps at every sub-step; its observation says which episode and sub-step it belongs to."""

    def __init__(self, settings: SyntheticSettings) -> None:
        super().__init__(settings)
        self._action = np.zeros(settings.action_dim, np.float32)
        self._begun = self._action
        self._ready_s = 0.0
        self._latencies_s: list[float] = []
        """Of the block of sub-steps that the present one belongs to."""

    def reset(self, start: Start, step_limit: int) -> bool:
        """Go to ``start``."""
        self._action = np.zeros(self._settings.action_dim, np.float32)
        self._latencies_s = _latencies_s(self._settings, start, 0)
        return super().reset(start, step_limit)

    def begin(self, action: npt.NDArray[np.float32]) -> float:
        """Begin a sub-step, which takes its latency from now on."""
        self._begun = action
        step = self._steps + 1
        if step % _BLOCK == 0:
            self._latencies_s = _latencies_s(self._settings, self._start, step // _BLOCK)
        pause_s = self._latencies_s[step % _BLOCK]
        self._ready_s = time.monotonic() + pause_s if pause_s > 0 else 0.0
        return self._ready_s

    def finish(self) -> Step:
        """The outcome, once the latency has passed."""
        left_s = self._ready_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        return super().step(self._begun)

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action, clipped to [-1, 1], and wait its latency."""
        self.begin(action)
        return self.finish()

    def _act(self, action: npt.NDArray[np.float32]) -> tuple[float, bool]:
        self._action = action.astype(np.float32)
        solved = self._start.state in self._settings.solved_states
        success = self._steps == (1 if solved else self._settings.success_at)
        return self._settings.constant_reward, success

    def observe(self) -> Observation:
        """``tag`` float32 [4]: task, split number, state, sub-step; ``last_action`` float32 [A];
        ``proprioception`` = tag / 1000; ``image`` uint8 [32, 32, 3] with the state's and the
        sub-step's low bytes in its first two channels."""
        start = self._start
        tag = np.array((start.task, SPLITS.index(start.split), start.state, self._steps), np.float32)
        # Filling an array would hand the GIL to another lane and wait to get it back.
        pixel = bytes((start.state % 256, self._steps % 256, start.task % 256))
        image = np.frombuffer(pixel * _IMAGE_SIZE**2, np.uint8).reshape(_IMAGE_SIZE, _IMAGE_SIZE, 3)
        return self._seen(
            {"image": image, "proprioception": tag / 1000, "tag": tag, "last_action": self._action}
        )

    def picture(self) -> npt.NDArray[np.uint8]:
        """The observation's image, enlarged."""
        return np.asarray(self.observe()["image"]).repeat(8, 0).repeat(8, 1)


class ReachEnv(_SyntheticEnv):
    """A pointer among four coloured discs. Dense reward, and potential: 1 − distance / 2."""

    def __init__(self, settings: SyntheticSettings, reward: RewardFunction | None = None) -> None:
        super().__init__(settings)
        self._reward = Rewarding(settings, reward)
        self._scene: Scene = place(np.random.Generator(np.random.Philox(key=[settings.seed, 0])))
        self._pointer = self._scene.pointer.copy()
        self._velocity = np.zeros(2, np.float32)
        self._target = self._scene.targets[0]

    def reset(self, start: Start, step_limit: int) -> bool:
        """Go to ``start``. The scene depends on split and state, not on the colour asked for."""
        layout = Start(task=0, split=start.split, state=start.state)
        self._scene = place(_random(self._settings.seed, layout, _PLACES, 0))
        self._pointer = self._scene.pointer.copy()
        self._velocity = np.zeros(2, np.float32)
        colour = self._settings.colours[start.task]
        self._target = self._scene.targets[list(COLOURS).index(colour)]
        if start.state in self._settings.solved_states:
            self._pointer = self._target.copy()
        self._reward.begin(self._dense())
        return super().reset(start, step_limit)

    def _distance(self) -> float:
        return float(np.hypot(*(self._target - self._pointer)))

    def _dense(self) -> float:
        return 1 - self._distance() / 2

    def _act(self, action: npt.NDArray[np.float32]) -> tuple[float, bool]:
        self._velocity = action.astype(np.float32)
        self._pointer = np.clip(self._pointer + STEP_LENGTH * action.astype(np.float64), -1.0, 1.0)
        success = self._distance() <= REACHED
        return self._reward({}, success, self._dense()), success

    def observe(self) -> Observation:
        """``image`` uint8 [32, 32, 3]; ``proprioception`` float32 [4]: pointer x, y, last action."""
        seen: dict[str, npt.NDArray[Any]] = {
            "image": draw(self._scene, self._pointer, _IMAGE_SIZE),
            "proprioception": np.concatenate([self._pointer, self._velocity]).astype(np.float32),
        }
        return self._seen(seen)

    def picture(self) -> npt.NDArray[np.uint8]:
        """The scene at 256 pixels."""
        return draw(self._scene, self._pointer, 256)

    def way(self) -> npt.NDArray[np.float32]:
        """Action [2] straight towards the target: the expert's privileged view."""
        way: npt.NDArray[np.float64] = np.clip((self._target - self._pointer) / STEP_LENGTH, -1.0, 1.0)
        return way.astype(np.float32)


class ReachExpert:
    """Goes straight to the target."""

    def __init__(self, env: ReachEnv) -> None:
        self._env = env

    def act(self) -> npt.NDArray[np.float32]:
        """Action [2]."""
        return self._env.way()


class Synthetic:
    """The synthetic adapter."""

    Settings: ClassVar[type[SyntheticSettings]] = SyntheticSettings

    def __init__(self, settings: SyntheticSettings) -> None:
        self._settings = settings
        self._reward = load_reward(settings.reward, ())

    @property
    def spec(self) -> SimulatorSpec:
        """What it offers."""
        s = self._settings
        reach = s.task == "reach"
        action_dim = 2 if reach else s.action_dim
        fields = [
            FieldSpec(name="image", shape=(_IMAGE_SIZE, _IMAGE_SIZE, 3), dtype="uint8"),
            FieldSpec(name="proprioception", shape=(4,), dtype="float32"),
        ]
        if not reach:
            fields.append(FieldSpec(name="tag", shape=(4,), dtype="float32"))
            fields.append(FieldSpec(name="last_action", shape=(action_dim,), dtype="float32"))
        return SimulatorSpec(
            observation=tuple(fields),
            action_dim=action_dim,
            tasks=s.tasks,
            instructions=tuple(f"reach the {t} disc" if reach else f"wait in {t}" for t in s.tasks),
            step_limits=s.limits,
            fingerprint={"simulator": "synthetic", "task": s.task, "seed": s.seed},
            meaning=_REACH if reach else None,
            waits=s.task == "delay",
            steps_together=s.together,
            endless=not (s.own_limit or (s.success_at and s.terminate_on_success)),
        )

    def make(self) -> DelayEnv | ReachEnv:
        """Build one environment."""
        s = self._settings
        return ReachEnv(s, self._reward) if s.task == "reach" else DelayEnv(s)

    def make_batch(self, size: int) -> EnvsTogether:
        """Build an env batch that steps as a whole (``together``)."""
        return EnvsTogether([self.make() for _ in range(size)])

    def expert(self, env: ReachEnv) -> ReachExpert:
        """The scripted expert of ``reach``.

        Raises:
            LookupError: ``delay`` has nothing to demonstrate.
        """
        if self._settings.task != "reach":
            raise LookupError("synthetic task 'delay' has no expert; use task: reach for demonstrations")
        return ReachExpert(env)
