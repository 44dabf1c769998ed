"""Meta-World v3: 50 manipulation tasks with images, a success flag and scripted experts."""

import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from rlvla3.errors import meant
from rlvla3.messages import FieldSpec, Start
from rlvla3.settings import Settings
from rlvla3.simulators.api import Observation, SimulatorSpec, Step
from rlvla3.simulators.ending import ending
from rlvla3.simulators.image_fields import cameras, image_field
from rlvla3.simulators.metaworld_states import (
    STATES_PER_SEED,
    block_seed,
    goal_vector,
    make_inner,
    set_goal_vector,
)
from rlvla3.simulators.metaworld_tasks import INSTRUCTIONS
from rlvla3.simulators.mujoco_rendering import SceneRenderer, View, free_thread
from rlvla3.simulators.packages import require
from rlvla3.simulators.tasks import RewardFunction, Rewarding, TaskSettings, differing, load_reward
from rlvla3.transforms.meaning import Gripper, Meaning, Numbers

ACTION_DIM = 4
"""Three hand displacements (1 = 1 cm) and the gripper effort (positive closes)."""
OWN_STEP_LIMIT = 500
"""Meta-World's own episode length in sub-steps."""
SPLITS = ("train", "held_out", "demonstration")
_INFO = (
    "success",
    "near_object",
    "grasp_success",
    "grasp_reward",
    "in_place_reward",
    "obj_to_target",
    "unscaled_reward",
)
CameraName = Literal["topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV"]
# Seen by eye: these hang upside down in the model.
_TURNED = frozenset({"corner", "corner2", "corner3", "corner4"})
_PICTURE_SIZE = 256
_ROLES = {"gripperPOV": "wrist", "topview": "top"}
"""What these cameras look at; the others look at the front."""
_HAND = Numbers(name="eef_position", size=3)
_FINGERS = Gripper(open=(1.0,), closed=(0.0,))
"""Distance of the fingers over 10 cm."""
_MOVE = Numbers(name="delta_position", size=3, scale=0.01, frame="base")
_GRIP = Gripper(open=(-1.0,), closed=(1.0,))


class FreeCamera(Settings):
    """A camera anywhere; the default looks over the table at the far side, where fixtures stand."""

    lookat: tuple[float, float, float] = (0.0, 0.68, 0.12)
    """Point in the middle of the picture, metres (x right, y away from the robot, z up)."""
    distance: float = Field(default=0.85, gt=0)
    """Metres from ``lookat``."""
    azimuth: float = 130.0
    """Degrees around the vertical."""
    elevation: float = -38.0
    """Degrees; negative looks down."""


class BenchmarkSeeds(Settings):
    """Seed of Meta-World's goal sampling for each split; they must differ."""

    train: int = Field(default=1, ge=0, lt=2**32)
    """Initial states of rollouts."""
    held_out: int = Field(default=2, ge=0, lt=2**32)
    """Initial states of evaluation."""
    demonstration: int = Field(default=3, ge=0, lt=2**32)
    """Initial states of demonstrations."""

    @model_validator(mode="after")
    def _differ(self) -> "BenchmarkSeeds":
        if len({self.train, self.held_out, self.demonstration}) < 3:
            raise ValueError(
                "benchmark_seeds must differ between train, held_out and demonstration, or evaluation "
                f"would run on training states; they are {self.train}, {self.held_out}, {self.demonstration}"
            )
        return self


class MetaworldSettings(TaskSettings):
    """Settings of the Meta-World simulator."""

    tasks: tuple[str, ...] = ("button-press-topdown-v3", "button-press-v3", "handle-press-v3")
    """Names of v3 tasks; ``Start.task`` indexes them."""
    image_size: int = Field(default=64, ge=8, le=1024)
    """Pixels of a side of every camera's image."""
    cameras: tuple[CameraName | FreeCamera, ...] = Field(default=(FreeCamera(),), min_length=1)
    """One image field each (``image``, ``image_2``, …): a camera of the model by name, or a free one."""
    rendering: Literal["tuned", "stock"] = "tuned"
    """``tuned``: no multisampling, shadows or reflections, merged mesh vertices (30× faster on CPUs).
    Pixels differ a little, so use one setting for demonstrations, training and evaluation."""
    benchmark_seeds: BenchmarkSeeds = BenchmarkSeeds()
    """Where each split's initial states come from."""

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        if not tasks:
            raise ValueError("tasks must name at least one Meta-World task")
        for task in tasks:
            if task not in INSTRUCTIONS:
                hint = meant(task, INSTRUCTIONS, "see rlvla3 envs metaworld")
                raise ValueError(f"tasks: {task!r} is not a Meta-World v3 task; {hint}")
        return differing("tasks", tasks)

    @field_validator("cameras")
    @classmethod
    def _cameras_differ(cls, cameras: tuple[Any, ...]) -> tuple[Any, ...]:
        return differing("cameras", cameras)

    @property
    def limits(self) -> tuple[int, ...]:
        """One step limit for each task: Meta-World's where none is given."""
        return tuple(limit or OWN_STEP_LIMIT for limit in super().limits)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """A Meta-World env and its renderers by (cameras, size, detailed)."""

    inner: Any
    renderers: dict[tuple[Any, ...], SceneRenderer] = field(default_factory=dict)


class _ScenePool(threading.local):
    """Idle scenes of one thread by (task, rendering). A reset does not depend on what a scene did
    before, so the thread's envs exchange them and few are built (0.1 s and 20 MB each)."""

    def __init__(self) -> None:
        self.idle: dict[tuple[str, str], list[_Scene]] = {}
        self.open_envs = 0

    def take(self, task: str, rendering: str) -> _Scene:
        idle = self.idle.get((task, rendering))
        return idle.pop() if idle else _Scene(inner=make_inner(task))

    def give(self, task: str, rendering: str, scene: _Scene) -> None:
        self.idle.setdefault((task, rendering), []).append(scene)

    def close_env(self) -> None:
        self.open_envs -= 1
        if self.open_envs == 0:
            self.idle.clear()
            free_thread()


_pool = _ScenePool()


class MetaworldEnv:
    """One environment that plays any of the configured tasks."""

    def __init__(self, settings: MetaworldSettings, reward: RewardFunction | None) -> None:
        self._settings = settings
        self._reward = Rewarding(settings, reward, potential=lambda dense: dense / 10)
        self._views = [_view(camera) for camera in settings.cameras]
        self._task = ""
        self._scene: _Scene | None = None
        self._inner: Any = None
        self._limit = OWN_STEP_LIMIT
        self._steps = 0
        self.privileged = np.zeros(39)
        """Meta-World's own observation with the goal, for scripted experts only; float64 [39]."""
        _pool.open_envs += 1
        self._closed = False

    @property
    def task(self) -> str:
        """Name of the task being played."""
        return self._task

    def reset(self, start: Start, step_limit: int) -> None:
        """Go to initial state ``start``; ``step_limit`` 0 means Meta-World's 500."""
        self._switch(self._settings.tasks[start.task])
        block, index = divmod(start.state, STATES_PER_SEED)
        split_seed = getattr(self._settings.benchmark_seeds, start.split)
        seed = block_seed(split_seed, SPLITS.index(start.split), block)
        vector = goal_vector(self._inner, self._task, seed, index)
        self.privileged = set_goal_vector(self._inner, vector)
        self._limit = step_limit or OWN_STEP_LIMIT
        self._steps = 0
        if self._reward.shaped:
            dense, _ = self._inner.evaluate_state(self.privileged, np.zeros(ACTION_DIM, np.float32))
            self._reward.begin(float(dense))

    def _switch(self, task: str) -> None:
        if task == self._task:
            return
        self._release()
        self._scene = _pool.take(task, self._settings.rendering)
        self._inner, self._task = self._scene.inner, task

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action [4], clipped to [-1, 1]."""
        self.privileged, dense, _, _, info = self._inner.step(np.clip(action, -1.0, 1.0))
        self._steps += 1
        success = bool(info["success"])
        terminated, truncated = ending(
            ended=success and self._settings.terminate_on_success,
            steps=self._steps,
            limit=self._limit,
            limit_is=self._settings.limit_is,
        )
        return Step(
            reward=self._reward(info, success, float(dense)),
            terminated=terminated,
            truncated=truncated,
            success=success,
        )

    def observe(self) -> Observation:
        """Images uint8 [size, size, 3] and ``proprioception`` float32 [4] (hand x, y, z; gripper)."""
        renderer = self._renderer(self._settings.image_size, detailed=False)
        fields: dict[str, npt.NDArray[Any]] = {
            image_field(i): renderer.render(self._inner.data, i) for i in range(len(self._views))
        }
        fields["proprioception"] = self.privileged[:4].astype(np.float32)
        return fields

    def picture(self) -> npt.NDArray[np.uint8]:
        """The first camera's view with all detail, at 256 pixels or more."""
        size = max(_PICTURE_SIZE, self._settings.image_size)
        return self._renderer(size, detailed=True).render(self._inner.data)

    def _renderer(self, size: int, detailed: bool) -> SceneRenderer:
        if self._scene is None:
            raise RuntimeError("a Meta-World env has no picture before its first reset")
        key = (self._settings.cameras, size, detailed)
        if key not in self._scene.renderers:
            self._scene.renderers[key] = SceneRenderer(
                self._inner.model,
                self._views,
                size,
                tuned=self._settings.rendering == "tuned",
                detailed=detailed,
                name=self._task,
            )
        return self._scene.renderers[key]

    def _release(self) -> None:
        if self._scene is not None:
            _pool.give(self._task, self._settings.rendering, self._scene)
        self._scene, self._inner, self._task = None, None, ""

    def close(self) -> None:
        """Give the scene back; the last env of a thread to close frees everything."""
        if not self._closed:
            self._closed = True
            self._release()
            _pool.close_env()


class MetaworldExpert:
    """Meta-World's scripted policy for whatever task the env is playing."""

    def __init__(self, env: MetaworldEnv) -> None:
        from metaworld.policies import ENV_POLICY_MAP

        self._env = env
        self._policies: Mapping[str, Any] = ENV_POLICY_MAP
        self._made: dict[str, Any] = {}

    def act(self) -> npt.NDArray[np.float32]:
        """The scripted action [4], clipped to [-1, 1] (20-100 % of raw ones exceed it)."""
        task = self._env.task
        if task not in self._made:
            self._made[task] = self._policies[task]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            action = self._made[task].get_action(self._env.privileged)
        clipped: npt.NDArray[np.float32] = np.clip(action, -1.0, 1.0).astype(np.float32)
        return clipped


class Metaworld:
    """The Meta-World adapter."""

    Settings: ClassVar[type[MetaworldSettings]] = MetaworldSettings

    def __init__(self, settings: MetaworldSettings) -> None:
        self._settings = settings
        self._reward = load_reward(settings.reward, _INFO)

    @property
    def spec(self) -> SimulatorSpec:
        """Known without building an env or importing Meta-World."""
        s = self._settings
        image = (s.image_size, s.image_size, 3)
        images = [FieldSpec(name=image_field(i), shape=image, dtype="uint8") for i in range(len(s.cameras))]
        return SimulatorSpec(
            observation=(*images, FieldSpec(name="proprioception", shape=(4,), dtype="float32")),
            action_dim=ACTION_DIM,
            tasks=s.tasks,
            instructions=tuple(INSTRUCTIONS[task] for task in s.tasks),
            step_limits=s.limits,
            fingerprint={
                "simulator": "metaworld",
                "cameras": ";".join(c if isinstance(c, str) else c.model_dump_json() for c in s.cameras),
                "image_size": s.image_size,
                "rendering": s.rendering,
                "metaworld": _version_of("metaworld"),
                "mujoco": _version_of("mujoco"),
            },
            meaning=_meaning(s),
            needs_gl=True,
        )

    def require(self) -> None:
        """Make sure that Meta-World is here.

        Raises:
            UserError: it is not, with the command that installs it.
        """
        require("metaworld")

    def make(self) -> MetaworldEnv:
        """Build one environment; models are loaded at the first reset of each task."""
        return MetaworldEnv(self._settings, self._reward)

    def expert(self, env: MetaworldEnv) -> MetaworldExpert:
        """The scripted expert (all 50 tasks have one)."""
        return MetaworldExpert(env)


def _meaning(settings: MetaworldSettings) -> Meaning:
    roles: list[str] = []
    for camera in settings.cameras:
        role = _ROLES.get(camera, "front") if isinstance(camera, str) else "front"
        roles.append(role if role not in roles else f"{role}_{len(roles) + 1}")
    return Meaning(
        cameras=cameras(roles, settings.image_size),
        state={"proprioception": (_HAND, _FINGERS)},
        action=(_MOVE, _GRIP),
    )


def _view(camera: str | FreeCamera) -> View:
    if isinstance(camera, str):
        return View(name=camera, turned=camera in _TURNED)
    return View(
        lookat=camera.lookat,
        distance=camera.distance,
        azimuth=camera.azimuth,
        elevation=camera.elevation,
    )
