"""ManiSkill 3: tabletop manipulation in SAPIEN, one env at a time on the CPU or many at once on a GPU.

ManiSkill is made of torch, so its Simulator processes are the ones that load it; torch is held to one thread.
"""

import functools
from collections.abc import Iterator, Sequence
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
from rlvla3.simulators.image_fields import image_field
from rlvla3.simulators.maniskill_experts import ManiskillExpert
from rlvla3.simulators.maniskill_meaning import meaning
from rlvla3.simulators.maniskill_scene import ManiskillScene, Outcome, SceneSettings, check_assets
from rlvla3.simulators.maniskill_tasks import ACTION_DIM, TASKS, WIDOWX_ACTION_DIM
from rlvla3.simulators.packages import require
from rlvla3.simulators.tasks import RewardFunction, Rewarding, TaskSettings, differing, load_reward
from rlvla3.simulators.whole_batch import WholeBatch

SPLITS = ("train", "held_out", "demonstration")
_INFO = ("success", "fail", "is_grasped", "is_obj_placed", "is_robot_static")


class View(Settings):
    """Where the scene camera stands instead of its own place."""

    eye: tuple[float, float, float] = (0.3, 0.0, 0.6)
    """Position in metres (x away from the robot, y to its left, z up from the table)."""
    target: tuple[float, float, float] = (-0.1, 0.0, 0.1)
    """Point in the middle of the picture, metres."""
    fov_deg: float = Field(default=90.0, gt=1, lt=170)
    """Field of view."""


class ManiskillSettings(TaskSettings):
    """Settings of the ManiSkill simulator."""

    tasks: tuple[str, ...] = ("PickCube-v1",)
    """Names of tasks; ``Start.task`` indexes them."""
    observation: Literal["image", "state"] = "image"
    """``image``: cameras and what a robot knows of itself; ``state``: the true poses instead of cameras."""
    image_size: int = Field(default=64, ge=8, le=1024)
    """Pixels of a side of every camera's image."""
    cameras: tuple[Literal["scene", "hand"], ...] = Field(default=("scene",), min_length=1)
    """One image field each (``image``, ``image_2``): the camera that overlooks the scene, the one at the
    gripper (only where the task has one)."""
    view: View | None = None
    """Another place for the scene camera."""
    control: Literal[
        "pd_ee_delta_pose",
        "pd_ee_delta_pos",
        "pd_ee_target_delta_pose",
        "pd_ee_target_delta_pos",
        "pd_joint_delta_pos",
        "pd_joint_target_delta_pos",
    ] = "pd_ee_delta_pose"
    """What an action is: of the end effector ``pose`` (x, y, z, three rotations, gripper) or ``pos`` (without
    rotations), or of the joints; ``target`` adds to the last target instead of to where the arm is. The
    WidowX has one mode of its own: metres, radians, gripper."""
    backend: Literal["cpu", "gpu"] = "cpu"
    """``cpu``: each env by itself; ``gpu``: env batches step on a CUDA device, as a whole."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed from which the initial states of all splits are derived."""

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        if not tasks:
            raise ValueError("tasks must name at least one ManiSkill task")
        for task in tasks:
            if task not in TASKS:
                hint = meant(task, TASKS, f"known: {', '.join(TASKS)}")
                raise ValueError(f"tasks: {task!r} is not a ManiSkill task that this adapter knows; {hint}")
        differing("tasks", tasks)
        if len({TASKS[task].robot for task in tasks}) > 1:
            raise ValueError(f"tasks must have the same robot; they are {', '.join(tasks)}")
        return tasks

    @field_validator("cameras")
    @classmethod
    def _cameras_differ(
        cls, cameras: tuple[Literal["scene", "hand"], ...]
    ) -> tuple[Literal["scene", "hand"], ...]:
        return differing("cameras", cameras)

    @model_validator(mode="after")
    def _fit(self) -> "ManiskillSettings":
        chosen = [TASKS[task] for task in self.tasks]
        if "hand" in self.cameras and not all(task.hand_camera for task in chosen):
            without = ", ".join(n for n, t in zip(self.tasks, chosen, strict=True) if not t.hand_camera)
            raise ValueError(f"cameras: {without} has no camera at the gripper; use cameras: [scene]")
        if chosen[0].robot == "widowx" and self.observation == "state":
            raise ValueError("observation: the WidowX tasks give images only; use observation: image")
        if chosen[0].robot == "widowx" and self.reward in ("dense", "shaped"):
            raise ValueError(
                f"reward: the WidowX tasks have no dense reward, it is {self.reward}; use reward: success"
            )
        if self.backend == "gpu":
            self._fit_gpu()
        return self

    def _fit_gpu(self) -> None:
        if len(self.tasks) > 1:
            raise ValueError("backend gpu: an env batch plays one task; give one, or use backend: cpu")
        task = TASKS[self.tasks[0]]
        if task.rebuilt:
            raise ValueError(
                f"backend gpu: {self.tasks[0]} builds other objects for each episode, which a batch cannot; "
                "use backend: cpu"
            )
        if "target" in self.control or task.robot == "widowx":
            raise ValueError(
                "backend gpu: a reset of one env moves the targets of all others; use a control without "
                "target, or backend: cpu"
            )

    def without_effect(self) -> Iterator[tuple[str, str]]:
        """See ``TaskSettings``."""
        yield from super().without_effect()
        if self.privileged:
            for name in ("image_size", "cameras", "view"):
                yield name, "observation state has no images"
        elif "scene" not in self.cameras:
            yield "view", "the scene camera is not one of cameras"
        if TASKS[self.tasks[0]].robot == "widowx":
            yield "view", "the WidowX tasks' camera is that of a data set and stays where it is"
            yield "control", "the WidowX has one control mode of its own"

    @property
    def limits(self) -> tuple[int, ...]:
        """One step limit for each task: ManiSkill's where none is given."""
        given = super().limits
        return tuple(limit or TASKS[task].limit for task, limit in zip(self.tasks, given, strict=True))

    @property
    def privileged(self) -> bool:
        """Whether the policy sees the true state."""
        return self.observation == "state"

    def scene(self, task: str) -> SceneSettings:
        """What a scene of one of the tasks is built from."""
        view = self.view
        return SceneSettings(
            task=task,
            privileged=self.privileged,
            length=max(TASKS[name].length(self.privileged) for name in self.tasks),
            cameras=() if self.privileged else self.cameras,
            image_size=self.image_size,
            view=None if view is None else (view.eye, view.target, float(np.radians(view.fov_deg))),
            control=self.control,
            gpu=self.backend == "gpu",
        )


def seed_of(settings: ManiskillSettings, start: Start) -> int:
    """A seed of its own for each (split, state)."""
    words = np.random.SeedSequence([settings.seed, SPLITS.index(start.split), start.state])
    return int(words.generate_state(1)[0] & 0x7FFFFFFF)


class _Episode:
    """Limit and rewards of one env's episode."""

    def __init__(self, settings: ManiskillSettings, reward: RewardFunction | None) -> None:
        self._settings = settings
        self._reward = Rewarding(settings, reward)
        self._limit = self._steps = 0

    def begin(self, limit: int, outcome: Outcome, index: int) -> None:
        self._limit, self._steps = limit, 0
        self._reward.begin(float(outcome.dense[index]))

    def step(self, outcome: Outcome, index: int) -> Step:
        self._steps += 1
        success, fail = bool(outcome.success[index]), bool(outcome.fail[index])
        terminated, truncated = ending(
            ended=(success and self._settings.terminate_on_success) or fail,
            steps=self._steps,
            limit=self._limit,
            limit_is=self._settings.limit_is,
        )
        info = {name: array[index] for name, array in outcome.info.items()}
        return Step(
            reward=self._reward(info, success, float(outcome.dense[index])),
            terminated=terminated,
            truncated=truncated,
            success=success,
        )


class ManiskillEnv:
    """One environment that plays any of the configured tasks; a scene of each is kept."""

    def __init__(self, settings: ManiskillSettings, reward: RewardFunction | None) -> None:
        self._settings = settings
        self._episode = _Episode(settings, reward)
        self._scenes: dict[str, ManiskillScene] = {}
        self.task = settings.tasks[0]
        """Name of the task being played."""

    @property
    def _scene(self) -> ManiskillScene:
        if self.task not in self._scenes:
            self._scenes[self.task] = ManiskillScene(self._settings.scene(self.task), 1)
        return self._scenes[self.task]

    @property
    def base(self) -> Any:
        """ManiSkill's own environment of the task being played, for experts."""
        return self._scene.base

    def reset(self, start: Start, step_limit: int) -> None:
        """Go to initial state ``start``; ``step_limit`` 0 means ManiSkill's own."""
        self.task = self._settings.tasks[start.task]
        outcome = self._scene.reset(0, seed_of(self._settings, start))
        self._episode.begin(step_limit or TASKS[self.task].limit, outcome, 0)

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action [A], clipped to [-1, 1]."""
        return self._episode.step(self._scene.step(action[None]), 0)

    def observe(self) -> Observation:
        """See ``ManiskillScene.observe``."""
        return self._scene.observe([0])[0]

    def picture(self) -> npt.NDArray[np.uint8]:
        """See ``ManiskillScene.picture``."""
        return self._scene.picture(0)

    def close(self) -> None:
        """Free all scenes."""
        while self._scenes:
            self._scenes.popitem()[1].close()


class ManiskillBatch(WholeBatch):
    """An env batch that steps as a whole. With ``backend: cpu`` it can only have one env (for tests)."""

    def __init__(self, settings: ManiskillSettings, reward: RewardFunction | None, size: int) -> None:
        super().__init__(size)
        self._settings = settings
        self._scene = ManiskillScene(settings.scene(settings.tasks[0]), size)
        self._episodes = [_Episode(settings, reward) for _ in range(size)]

    def _reset(self, index: int, start: Start, step_limit: int) -> None:
        outcome = self._scene.reset(index, seed_of(self._settings, start))
        limit = step_limit or TASKS[self._settings.tasks[0]].limit
        self._episodes[index].begin(limit, outcome, index)

    def _finish(self, actions: npt.NDArray[np.float32]) -> Sequence[Step]:
        outcome = self._scene.step(actions)
        return [episode.step(outcome, index) for index, episode in enumerate(self._episodes)]

    def _observe(self, indices: Sequence[int]) -> Sequence[Observation]:
        return self._scene.observe(indices)

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """See ``ManiskillScene.picture``."""
        return self._scene.picture(index)

    def close(self) -> None:
        """Free the scenes."""
        self._scene.close()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


class Maniskill:
    """The ManiSkill adapter."""

    Settings: ClassVar[type[ManiskillSettings]] = ManiskillSettings

    def __init__(self, settings: ManiskillSettings) -> None:
        self._settings = settings
        self._reward = load_reward(settings.reward, _INFO)

    @functools.cached_property
    def spec(self) -> SimulatorSpec:
        """Known without building an env or importing ManiSkill."""
        s = self._settings
        scene = s.scene(s.tasks[0])
        image = (s.image_size, s.image_size, 3)
        fields = [
            FieldSpec(name=image_field(i), shape=image, dtype="uint8") for i in range(len(scene.cameras))
        ]
        return SimulatorSpec(
            observation=(*fields, FieldSpec(name="proprioception", shape=(scene.length,), dtype="float32")),
            action_dim=self._action_dim,
            tasks=s.tasks,
            instructions=tuple(TASKS[task].instruction for task in s.tasks),
            step_limits=s.limits,
            fingerprint={
                "simulator": "maniskill",
                "observation": s.observation,
                "cameras": ",".join(scene.cameras),
                "image_size": s.image_size,
                "view": "" if s.view is None else s.view.model_dump_json(),
                "control": s.control,
                "backend": s.backend,
                "mani_skill": _version_of("mani_skill"),
                "sapien": _version_of("sapien"),
            },
            meaning=meaning(s.tasks, scene.cameras, s.image_size, control=s.control, privileged=s.privileged),
            steps_together=s.backend == "gpu",
            needs_cuda="backend=gpu" if s.backend == "gpu" else "",
        )

    @property
    def _action_dim(self) -> int:
        widowx = TASKS[self._settings.tasks[0]].robot == "widowx"
        return WIDOWX_ACTION_DIM if widowx else ACTION_DIM[self._settings.control]

    def require(self) -> None:
        """Make sure that ManiSkill and the tasks' assets are here.

        Raises:
            UserError: they are not, with the command that gets them.
        """
        require("maniskill")
        for task in self._settings.tasks:
            check_assets(task)

    def make(self) -> ManiskillEnv:
        """Build one environment; scenes are built at the first reset of each task."""
        return ManiskillEnv(self._settings, self._reward)

    def make_batch(self, size: int) -> ManiskillBatch:
        """Build an env batch that steps as a whole (``backend: gpu``)."""
        return ManiskillBatch(self._settings, self._reward, size)

    def expert(self, env: ManiskillEnv) -> ManiskillExpert:
        """The scripted expert of the cube tasks.

        Raises:
            LookupError: a task or the control mode has none.
        """
        return ManiskillExpert(env, self._settings.tasks, self._settings.control, self._action_dim)
