"""One ManiSkill environment of N scenes behind numpy: built quietly, stepped without rendering."""

import contextlib
import functools
import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.plugins import in_words
from rlvla3.simulators.api import Observation
from rlvla3.simulators.image_fields import image_field
from rlvla3.simulators.maniskill_tasks import TASKS, WIDOWX_CONTROL, Task

PICTURE_SIZE = 256
"""Pixels of a side of pictures for people; those of the WidowX keep their own size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneSettings:
    """What a scene is built from."""

    task: str
    privileged: bool
    """Whether the vector holds the true state of the objects; there are no images then."""
    length: int
    """Length of the vector; that of a task with fewer entries ends in zeros."""
    cameras: tuple[str, ...]
    """``scene`` or ``hand``, one for each image."""
    image_size: int
    view: tuple[tuple[float, float, float], tuple[float, float, float], float] | None
    """Another place for the scene camera: eye, target (metres) and field of view (radians)."""
    control: str
    gpu: bool
    """Whether physics and rendering run on a CUDA device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a sub-step, or a reset, led to in all N scenes."""

    dense: npt.NDArray[np.float64]
    """[N]: normalised dense reward; 0 where the task has none."""
    success: npt.NDArray[np.bool_]
    """[N]."""
    fail: npt.NDArray[np.bool_]
    """[N]: the task can no longer succeed."""
    info: dict[str, npt.NDArray[Any]]
    """Everything else that ManiSkill says, [N, ...]."""


@functools.cache
def prepare() -> None:
    """Import ManiSkill so that it renders in software where it must, and says nothing needless.

    Raises:
        UserError: it is not installed.
    """
    found = Path(sys.prefix) / "lavapipe" / "icd.json"
    chosen = {"VK_ICD_FILENAMES", "VK_DRIVER_FILES"} & os.environ.keys()
    if not chosen and found.is_file():
        os.environ["VK_ICD_FILENAMES"] = str(found)
    os.environ.setdefault("MS_RENDERER_LOG_LEVEL", "critical")  # it complains that there is no display
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import mani_skill.envs
            import sapien
            import torch
    except ImportError as error:
        raise UserError(
            f"simulator maniskill needs its extra: pip install 'rlvla3[maniskill]' ({error})"
        ) from error
    sapien.render.set_log_level(os.environ["MS_RENDERER_LOG_LEVEL"])
    sapien.set_log_level("error")
    logging.getLogger("mani_skill").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    assert mani_skill.envs
    # ManiSkill collects garbage at each reset; going through all that was just imported takes 0.1 s.
    gc.freeze()


def check_assets(task: str) -> None:
    """Make sure that a task's assets are there: ManiSkill would ask at the terminal. It is not imported.

    Raises:
        UserError: they are missing, with the commands that download them.
    """
    folder = Path(os.environ.get("MS_ASSET_DIR", "~/.maniskill")).expanduser() / "data"
    missing = [name for name, place in TASKS[task].assets.items() if not (folder / place).exists()]
    if missing:
        commands = " && ".join(
            f"{sys.executable} -m mani_skill.utils.download_asset -y {name}" for name in missing
        )
        raise UserError(
            f"simulator.options.tasks: {task} needs assets that are not on this machine; to get them: "
            f"{commands}"
        )


@functools.cache
def _renderer(device: str) -> Any:
    """An empty render system that lives as long as the process.

    SAPIEN drops what its renderer has computed with its last scene, and computes it anew at the next one's
    first picture: six seconds of a core where rendering is in software.
    """
    import sapien

    return sapien.render.RenderSystem(sapien.Device(device))


class ManiskillScene:
    """N scenes of one task. On the CPU N is 1; on a GPU all step at once. Belongs to one thread."""

    def __init__(self, settings: SceneSettings, size: int) -> None:
        prepare()
        check_assets(settings.task)
        import torch

        self._torch = torch
        self._settings = settings
        self._task: Task = TASKS[settings.task]
        self._size = size
        self.base = self._make()
        """ManiSkill's own environment, for experts."""
        self._mode = self.base._obs_mode
        self._seen: list[Observation] | None = None
        """Observations of all scenes, while nothing has moved since they were made."""

    def _make(self) -> Any:
        import gymnasium

        s, task = self._settings, self._task
        cameras: dict[str, Any] = {}
        people: dict[str, Any] = {}
        if task.robot == "panda":  # the WidowX's camera is that of a data set, whose size must not change
            cameras = {"width": s.image_size, "height": s.image_size}
            people = {"width": PICTURE_SIZE, "height": PICTURE_SIZE}
            if s.view is not None:
                cameras[task.scene_camera] = self._view(*s.view)
        images = "rgb" if task.robot == "panda" else "rgb+segmentation"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _renderer("cuda" if s.gpu else "cpu")
                env = gymnasium.make(
                    s.task,
                    num_envs=self._size,
                    obs_mode="state_dict" if s.privileged else images,
                    reward_mode="normalized_dense" if task.dense else "none",
                    control_mode=s.control if task.robot == "panda" else WIDOWX_CONTROL,
                    render_mode="rgb_array",
                    sim_backend="physx_cuda" if s.gpu else "physx_cpu",
                    render_backend="gpu" if s.gpu else "cpu",
                    sensor_configs=cameras,
                    human_render_camera_configs=people,
                )
        except RuntimeError as error:
            need = "a CUDA device" if s.gpu else "a Vulkan device, even without images"
            remedy = (
                "set simulator.options.backend: cpu"
                if s.gpu
                else "run .ci/lavapipe, or install Mesa 23 or newer with its Vulkan drivers"
            )
            raise UserError(f"simulator maniskill needs {need}: {in_words(error)}; {remedy}") from error
        return env.unwrapped

    def _view(
        self, eye: tuple[float, float, float], target: tuple[float, float, float], fov: float
    ) -> dict[str, Any]:
        from mani_skill.utils.sapien_utils import look_at

        size = self._settings.image_size
        return {"pose": look_at(list(eye), list(target)), "fov": fov, "width": size, "height": size}

    @contextlib.contextmanager
    def _blind(self) -> Iterator[None]:
        """Nothing is rendered: ManiSkill would make an observation at every reset and sub-step."""
        self.base._obs_mode = "none"
        try:
            yield
        finally:
            self.base._obs_mode = self._mode

    def reset(self, index: int, seed: int) -> Outcome:
        """Put one scene into the initial state of ``seed``, the others stay; where all are now.

        A single scene is built anew: what PhysX remembers of earlier contacts would show at the first
        contact of the next episode. Scenes of a batch cannot be.
        """
        options: dict[str, Any] = {"reconfigure": True}
        if self._size > 1:
            options = {"env_idx": self._torch.tensor([index], device=self.base.device)}
        with self._blind():
            _, info = self.base.reset(seed=seed, options=options)
            idle = self._torch.zeros(self.base.action_space.shape, device=self.base.device)
            reward = self.base.get_reward(obs={}, action=idle, info=info)
        self._seen = None
        return self._outcome(reward, info)

    def step(self, actions: npt.NDArray[np.float32]) -> Outcome:
        """Execute one action of each scene, [N, A] in [-1, 1] (clipped)."""
        clipped = np.clip(actions, -1.0, 1.0)
        with self._blind():
            _, reward, _, _, info = self.base.step(self._torch.from_numpy(clipped).to(self.base.device))
        self._seen = None
        return self._outcome(reward, info)

    def _outcome(self, reward: Any, info: dict[str, Any]) -> Outcome:
        arrays = {name: _numpy(value) for name, value in info.items() if hasattr(value, "cpu")}
        never = np.zeros(self._size, np.bool_)
        return Outcome(
            dense=_numpy(reward).reshape(self._size).astype(np.float64),
            success=arrays.get("success", never).astype(np.bool_),
            fail=arrays.get("fail", never).astype(np.bool_),
            info=arrays,
        )

    def observe(self, indices: Sequence[int]) -> list[Observation]:
        """Images uint8 [size, size, 3] and ``proprioception`` float32 [length] of the named scenes.

        All scenes are rendered together, once for each time that something moved.
        """
        if self._seen is None:
            raw = self.base.get_obs()
            vectors, images = self._vectors(raw), self._images(raw)
            self._seen = [
                {**{name: pixels[i] for name, pixels in images.items()}, "proprioception": vectors[i]}
                for i in range(self._size)
            ]
        return [self._seen[index] for index in indices]

    def _vectors(self, raw: dict[str, Any]) -> npt.NDArray[np.float32]:
        agent, extra = raw["agent"], raw["extra"]
        names = self._task.vector(self._settings.privileged)
        parts = [agent["qpos"], agent["qvel"], *(extra[name] for name in names)]
        found = np.concatenate(
            [_numpy(part).reshape(self._size, -1).astype(np.float32) for part in parts], axis=1
        )
        vectors = np.zeros((self._size, self._settings.length), np.float32)
        vectors[:, : found.shape[1]] = found
        return vectors

    def _images(self, raw: dict[str, Any]) -> dict[str, npt.NDArray[np.uint8]]:
        names = {"scene": self._task.scene_camera, "hand": self._task.hand_camera}
        images: dict[str, npt.NDArray[np.uint8]] = {}
        for i, camera in enumerate(self._settings.cameras):
            pixels = _numpy(raw["sensor_data"][names[camera]]["rgb"])
            images[image_field(i)] = _resized(pixels, self._settings.image_size)
        return images

    def picture(self, index: int) -> npt.NDArray[np.uint8]:
        """A frame [size, size, 3] of one scene for people; the goal is drawn."""
        self._seen = None  # rendering shows what is hidden from the policy
        picture: npt.NDArray[np.uint8] = _numpy(self.base.render_rgb_array())[index].astype(np.uint8)
        return picture

    def close(self) -> None:
        """Free the scenes and their renderer."""
        self.base.close()


def _numpy(tensor: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _resized(pixels: npt.NDArray[Any], size: int) -> npt.NDArray[np.uint8]:
    """Pictures [N, H, W, 3] at ``size`` x ``size``, each pixel the mean of the area it covers."""
    if pixels.shape[1:3] == (size, size):
        return pixels.astype(np.uint8)
    smaller = pixels.astype(np.float32)
    for axis in (1, 2):
        smaller = np.moveaxis(_shares(pixels.shape[axis], size) @ np.moveaxis(smaller, axis, -2), -2, axis)
    return smaller.round().astype(np.uint8)


def _shares(before: int, after: int) -> npt.NDArray[np.float32]:
    """[after, before]: which part of each new pixel every old one is."""
    edges = np.linspace(0, before, after + 1)
    old = np.arange(before)
    overlap = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    shares: npt.NDArray[np.float32] = (np.maximum(overlap, 0) * after / before).astype(np.float32)
    return shares
