"""RoboCasa365: a mobile Panda arm (PandaOmron) in thousands of kitchens.

An episode's kitchen, objects and robot pose are all drawn from one seed, which belongs to (split, state).
Each reset builds a new robosuite env, so nothing of an earlier episode can leak into a later one, and
robosuite never renders: a frame is drawn by `mujoco_rendering` when an observation is asked for.

Actions [12] in [-1, 1], in RoboCasa's order: hand displacement x, y, z and rotation about x, y, z in the
robot's frame; gripper (positive closes); base forwards, to the left and turn; torso up; and the mode: where
it is positive the hand's goal goes on from its last goal, otherwise from where the hand is. The base obeys in
both modes.
"""

import copy
import functools
import itertools
import threading
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator, model_validator

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec, Start
from rlvla3.settings import Settings
from rlvla3.simulators import robocasa_package as package
from rlvla3.simulators.api import Observation, SimulatorSpec, Step
from rlvla3.simulators.ending import ending
from rlvla3.simulators.image_fields import image_field
from rlvla3.simulators.mujoco_rendering import SceneRenderer, View, choose_backend
from rlvla3.simulators.robocasa_meaning import meaning
from rlvla3.simulators.tasks import (
    RewardFunction,
    Rewarding,
    TaskSettings,
    differing,
    load_reward,
    without_dense,
)

ACTION_DIM = 12
ROBOT = "PandaOmron"
SPLITS = ("train", "held_out", "demonstration")
CAMERAS = {
    "left": "robot0_agentview_left",
    "right": "robot0_agentview_right",
    "wrist": "robot0_eye_in_hand",
    "center": "robot0_agentview_center",
    "front": "robot0_frontview",
}
"""RoboCasa's name of each camera."""
STATES = {
    16: ("base_pos", "base_quat", "base_to_eef_pos", "base_to_eef_quat", "gripper_qpos"),
    25: (
        *("eef_pos", "eef_quat", "gripper_qpos", "gripper_qvel"),
        *("base_to_eef_pos", "base_to_eef_quat", "base_pos", "base_quat"),
    ),
}
"""Parts of ``proprioception`` by its length, in their order: metres, quaternions x, y, z, w."""
_INFO = ("success",)
_NEAREST_M = 0.6
"""What the cameras look at is farther away, but for the fingers before the wrist."""
_COLLISION_SHAPES = 0
"""Geom group of what robosuite never draws."""
_PICTURE_SIZE = 256
_KITCHENS = 60

CameraName = Literal["left", "right", "wrist", "center", "front"]
Part = Literal["pretrain", "target", "all"]
"""RoboCasa's own division, of kitchens and of objects."""
_Id = Annotated[int, Field(ge=1, le=_KITCHENS)]


class Kitchens(Settings):
    """Kitchens of each split: a set of RoboCasa's (pretrain: layouts and styles 11 to 60, combined; target:
    layout n in style n, 1 to 10; all), or pairs of layout and style."""

    train: Part | tuple[tuple[_Id, _Id], ...] = "pretrain"
    """Kitchens of rollouts."""
    held_out: Part | tuple[tuple[_Id, _Id], ...] = "target"
    """Kitchens of evaluation."""
    demonstration: Part | tuple[tuple[_Id, _Id], ...] = "pretrain"
    """Kitchens of demonstrations."""

    @field_validator("*")
    @classmethod
    def _some(cls, value: Any) -> Any:
        if not value:
            raise ValueError("must be pretrain, target, all, or at least one pair [layout, style]; got none")
        return value


class Objects(Settings):
    """Set of object instances of each split."""

    train: Part = "pretrain"
    """Objects of rollouts."""
    held_out: Part = "target"
    """Objects of evaluation."""
    demonstration: Part = "pretrain"
    """Objects of demonstrations."""


class RobocasaSettings(TaskSettings):
    """Settings of the RoboCasa simulator."""

    tasks: tuple[str, ...] = Field(default=("OpenDrawer",), min_length=1)
    """Names of RoboCasa's tasks; ``Start.task`` indexes them."""
    cameras: tuple[CameraName, ...] = Field(default=("left", "right", "wrist"), min_length=1)
    """One image field each: ``image``, ``image_2``, …"""
    image_size: int = Field(default=224, ge=8, le=1024)
    """Pixels of a side of every camera's image."""
    rendering: Literal["tuned", "stock"] = "tuned"
    """``tuned``: no multisampling, shadows or reflections, merged mesh vertices. Pixels differ a little, so
    use one setting for demonstrations, training and evaluation."""
    state: Literal[16, 25] = 16
    """Numbers of ``proprioception``: 16 in the order of RoboCasa's data sets, or 25 with the hand's pose in
    the room and the fingers' speed."""
    instruction_size: int = Field(default=0, ge=0, le=4096)
    """Bytes of a field ``instruction`` with what RoboCasa says in each episode (which drawer, which object),
    as UTF-8 filled up with zeros; 0: no such field."""
    kitchens: Kitchens = Kitchens()
    """Kitchens of each split."""
    objects: Objects = Objects()
    """Objects of each split."""
    assets: str = ""
    """Folder of RoboCasa's assets; empty: ``$ROBOCASA_ASSETS_PATH``, or the package's own."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed from which the initial states of all splits are derived."""
    reward: str = "success"
    """``success`` (1 at success), or ``module:attribute`` of a function (info, success, dense) -> reward."""

    @field_validator("tasks", "cameras")
    @classmethod
    def _differ(cls, values: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        return differing(str(info.field_name), values)

    @model_validator(mode="after")
    def _has_this_reward(self) -> "RobocasaSettings":
        return without_dense(self, "RoboCasa")


class RobocasaEnv:
    """One environment that plays any of the configured tasks."""

    def __init__(self, settings: RobocasaSettings, reward: RewardFunction | None) -> None:
        self._settings = settings
        self._reward = Rewarding(settings, reward)
        self._inner: Any = None
        self._raw: Mapping[str, npt.NDArray[Any]] = {}
        self._renderers: dict[tuple[int, bool], SceneRenderer] = {}
        self._limit = 0
        self._steps = 0
        self.instruction = ""
        """What RoboCasa says is to be done in this episode."""

    def reset(self, start: Start, step_limit: int) -> bool:
        """Build the kitchen of a start; ``step_limit`` 0 means RoboCasa's own for the task.

        Returns:
            whether the task is solved there already.

        Raises:
            UserError: assets are missing, or the instruction is too long for its field.
        """
        self._drop()
        task = self._settings.tasks[start.task]
        self._inner = _make(self._settings, task, start)
        try:
            self._raw = self._inner.reset()
        except (OSError, ValueError) as error:
            missing = package.missing_file(error, self._settings.assets)
            if missing is None:
                raise
            raise missing from error
        self.instruction = str(self._inner.get_ep_meta()["lang"])
        self._limit = step_limit or package.own_step_limit(task)
        self._steps = 0
        self._reward.begin(0.0)
        return bool(self._inner._check_success())

    def step(self, action: npt.NDArray[np.float32]) -> Step:
        """Execute one action [12], clipped to [-1, 1]."""
        self._raw, own, _, _ = self._inner.step(np.clip(action, -1.0, 1.0).astype(np.float64))
        self._steps += 1
        success = own > 0
        terminated, truncated = ending(
            ended=success and self._settings.terminate_on_success,
            steps=self._steps,
            limit=self._limit,
            limit_is=self._settings.limit_is,
        )
        return Step(
            reward=self._reward({"success": success}, success, 0.0),
            terminated=terminated,
            truncated=truncated,
            success=success,
        )

    def observe(self) -> Observation:
        """Images uint8 [size, size, 3], ``proprioception`` float32, and maybe ``instruction`` uint8."""
        s = self._settings
        renderer = self._renderer(s.image_size, detailed=False)
        fields: dict[str, npt.NDArray[Any]] = {
            image_field(i): renderer.render(self._data, i) for i in range(len(s.cameras))
        }
        parts = [self._raw[f"robot0_{part}"] for part in STATES[s.state]]
        fields["proprioception"] = np.concatenate(parts).astype(np.float32)
        if s.instruction_size:
            fields["instruction"] = _as_bytes(self.instruction, s.instruction_size)
        return fields

    def picture(self) -> npt.NDArray[np.uint8]:
        """The view over the robot's shoulders with all detail, at 256 pixels or more."""
        size = max(_PICTURE_SIZE, self._settings.image_size)
        return self._renderer(size, detailed=True).render(self._data)

    @property
    def _data(self) -> Any:
        return self._inner.sim.data._data

    def _renderer(self, size: int, *, detailed: bool) -> SceneRenderer:
        if self._inner is None:
            raise RuntimeError("a RoboCasa env has no picture before its first reset")
        key = (size, detailed)
        if key not in self._renderers:
            cameras = ("center",) if detailed else self._settings.cameras
            self._renderers[key] = SceneRenderer(
                self._inner.sim.model._model,
                [View(name=CAMERAS[camera], nearest_m=_NEAREST_M) for camera in cameras],
                size,
                tuned=self._settings.rendering == "tuned",
                detailed=detailed,
                name=f"robocasa-{next(_scenes)}",
                hidden_groups=(_COLLISION_SHAPES,),
            )
        return self._renderers[key]

    def _drop(self) -> None:
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        if self._inner is not None:
            self._inner.close()
            self._inner = None

    def close(self) -> None:
        """Free the kitchen and what was uploaded of it."""
        self._drop()


_scenes = itertools.count()
"""No two kitchens look alike to the GL context."""


class Robocasa:
    """The RoboCasa adapter."""

    Settings: ClassVar[type[RobocasaSettings]] = RobocasaSettings

    def __init__(self, settings: RobocasaSettings) -> None:
        self._settings = settings
        self._reward = load_reward(settings.reward, _INFO)

    @property
    def spec(self) -> SimulatorSpec:
        """Known without importing RoboCasa or building an env.

        Raises:
            UserError: RoboCasa, a task or the assets are missing.
        """
        s = self._settings
        package.require(s.assets, s.tasks)
        image = (s.image_size, s.image_size, 3)
        fields = [FieldSpec(name=image_field(i), shape=image, dtype="uint8") for i in range(len(s.cameras))]
        fields.append(FieldSpec(name="proprioception", shape=(s.state,), dtype="float32"))
        if s.instruction_size:
            fields.append(FieldSpec(name="instruction", shape=(s.instruction_size,), dtype="uint8"))
        return SimulatorSpec(
            observation=tuple(fields),
            action_dim=ACTION_DIM,
            tasks=s.tasks,
            instructions=tuple(map(_in_words, s.tasks)),
            step_limits=tuple(
                limit or package.own_step_limit(task) for task, limit in zip(s.tasks, s.limits, strict=True)
            ),
            fingerprint={
                "simulator": "robocasa",
                "robot": ROBOT,
                "cameras": ";".join(s.cameras),
                "image_size": s.image_size,
                "rendering": s.rendering,
                "state": s.state,
                **{name: package.version_of(name) for name in package.DISTRIBUTIONS},
            },
            meaning=meaning(s.cameras, s.image_size, STATES[s.state]),
            needs_gl=True,
        )

    def make(self) -> RobocasaEnv:
        """Build one environment; the first one of a process takes as long as RoboCasa's import and what it
        compiles at its first reset (10 s, minutes after an installation).

        Raises:
            UserError: assets are missing.
        """
        choose_backend()  # robosuite would choose one itself when it is imported
        package.load(self._settings.assets)
        self._warm_up()
        return RobocasaEnv(self._settings, self._reward)

    def _warm_up(self) -> None:
        """An episode for nothing, so that later ones take no longer than they should."""
        with _warming:
            if not _warm:
                env = RobocasaEnv(self._settings, self._reward)
                env.reset(Start(task=0, split="train", state=0), 0)
                env.step(np.zeros(ACTION_DIM, np.float32))
                env.close()
                _warm.append(True)

    def expert(self, env: RobocasaEnv) -> NoReturn:
        """There is none.

        Raises:
            LookupError: always.
        """
        raise LookupError("simulator robocasa has no scripted experts; give a demonstration file instead")


_warming = threading.Lock()
_warm: list[bool] = []
"""Not empty once an episode was begun in this process."""


def _make(settings: RobocasaSettings, task: str, start: Start) -> Any:
    import robosuite

    words = np.random.SeedSequence([settings.seed, SPLITS.index(start.split), start.state])
    objects = getattr(settings.objects, start.split)
    return robosuite.make(
        task,
        robots=ROBOT,
        controller_configs=copy.deepcopy(_controllers()),
        seed=int(words.generate_state(1)[0]),
        layout_and_style_ids=_pairs(getattr(settings.kitchens, start.split)),
        obj_instance_split=None if objects == "all" else objects,
        ignore_done=True,
        # Whatever robosuite renders it keeps: 55 MB for each reset.
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        renderer="mujoco",
    )


@functools.cache
def _controllers() -> Any:
    """RoboCasa's own controllers of the robot."""
    from robosuite.controllers import load_composite_controller_config

    return load_composite_controller_config(controller=None, robot=ROBOT)


def _pairs(kitchens: str | tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Pairs of layout and style."""
    if isinstance(kitchens, tuple):
        return list(kitchens)
    if kitchens == "target":
        return [(number, number) for number in range(1, 11)]
    first = 11 if kitchens == "pretrain" else 1
    numbers = range(first, _KITCHENS + 1)
    return list(itertools.product(numbers, numbers))


def _in_words(task: str) -> str:
    """A task's name as an instruction: ``OpenDrawer`` → ``open drawer``."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in task).strip()


def _as_bytes(text: str, size: int) -> npt.NDArray[np.uint8]:
    data = text.encode()
    if len(data) > size:
        raise UserError(
            f"simulator.options.instruction_size = {size} is too small for {text!r}; use {len(data)} or more"
        )
    return np.frombuffer(data.ljust(size, b"\0"), np.uint8).copy()
