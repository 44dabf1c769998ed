"""One LIBERO task as a robosuite environment: built, reset exactly, stepped, rendered.

A hard reset of robosuite compiles the same model again, which is nearly all of its time and fills
memory. Compiling is a function of the model's text alone, so a scene compiles once and puts back what
episodes change; the text is made anew and compared at each reset. Everything else of a hard reset
(objects, controllers, fresh simulation data) is done as robosuite does it.

The compiled model has textures of a few pixels only; the real ones go to the GL context.
"""

import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.simulators.libero_source import Folders, Libero, load
from rlvla3.simulators.mujoco_rendering import SceneRenderer, View

COLLISION_GROUP = 0
"""Group of the shapes that robosuite does not draw."""
TEXTURE_SIDES = 4
"""Longest side of a texture in sides of the picture: 180 MB of textures become a few."""
JOINT_NOISE = 0.02
"""Deviation of the arm's joints in an initial state, rad, as in the fixed ones."""
OPEN = -1.0
"""Gripper action that opens it."""
_RETRIES = 1000
# What no episode changes: too large to put back, or switched off once by a tuned renderer.
_KEPT = ("mesh_", "tex_", "hfield_", "skin_", "light_", "mat_", "names", "paths", "text_")
_randomness = threading.Lock()
"""Objects are placed by numpy's global random generator."""


def small_textures(text: str) -> str:
    """A model's text with one-coloured textures of 8 pixels in place of its files."""
    return re.sub(r"<texture\b[^>]*>", _small_texture, text)


def _small_texture(found: re.Match[str]) -> str:
    names = dict(re.findall(r'(\w+)="([^"]*)"', found[0]))
    kind = f'type="{names["type"]}" ' if "type" in names else ""
    name = f'name="{names["name"]}" ' if "name" in names else ""
    return f'<texture {name}{kind}builtin="flat" width="8" height="8"/>'


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let numpy's global random generator begin at ``seed``; for one thread at a time, and put back."""
    with _randomness:
        before = np.random.get_state()
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)


def axis_angle(quaternion: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Axis times angle in [0, 2π] rad, [3], of a unit quaternion [w, x, y, z]; as published states have
    it: q and -q give different ones."""
    w = min(max(float(quaternion[0]), -1.0), 1.0)
    sine = math.sqrt(1 - w * w)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    return np.asarray(quaternion[1:], np.float64) * (2 * math.acos(w) / sine)


class Compiled:
    """The model of one text, and what its arrays were."""

    def __init__(self, text: str) -> None:
        import mujoco

        self.text = text
        self.model = mujoco.MjModel.from_xml_string(small_textures(text))
        names = [name for name in dir(self.model) if not name.startswith(("_", *_KEPT))]
        arrays = {name: getattr(self.model, name) for name in names}
        self._before = {name: a.copy() for name, a in arrays.items() if isinstance(a, np.ndarray) and a.size}

    def restore(self) -> None:
        """Undo what episodes did to the model."""
        for name, array in self._before.items():
            getattr(self.model, name)[:] = array

    def with_textures(self) -> Any:
        """The model as robosuite would compile it; 0.3 GB, so it is not kept."""
        import mujoco

        return mujoco.MjModel.from_xml_string(self.text)


def _lean(problem: type, libero: Libero) -> Any:
    """A class of environments that compile once and have no observables: these are computed at each
    physics step, and nobody reads them."""

    def initialize_sim(self: Any, xml_string: str | None = None) -> None:
        text = xml_string or self.model.get_xml()
        if getattr(self, "compiled", None) is None or self.compiled.text != text:
            self.compiled = Compiled(text)
        else:
            self.compiled.restore()
        self.sim = libero.simulation(self.compiled.model)
        self.sim.forward()
        self.initialize_time(self.control_freq)

    def destroy_sim(self: Any) -> None:
        self.sim = None

    def setup_observables(self: Any) -> dict[str, Any]:
        return {}

    # Not by ``class``: robosuite's metaclass would list it under the name of its parent, which it must
    # have because LIBERO compares names.
    methods = {
        "_initialize_sim": initialize_sim,
        "_destroy_sim": destroy_sim,
        "_setup_observables": setup_observables,
    }
    return type.__new__(type(problem), problem.__name__, (problem,), methods)


@dataclass(kw_only=True, eq=False)
class Scene:
    """A task's environment and its renderers. Belongs to one thread."""

    task: str
    name: str
    """Of suite and task: unlike those of other scenes of this process."""
    inner: Any
    failed_placement: type[Exception]
    renderers: dict[tuple[int, bool], list[SceneRenderer]] = field(default_factory=dict)

    @classmethod
    def build(cls, folders: Folders, suite: str, task: str, hard_reset: bool) -> "Scene":
        """Load the task; 1 to 2 s."""
        libero = load(folders)
        file = str(folders.tasks / suite / f"{task}.bddl")
        problem = libero.problems[libero.problem_of(file)["problem_name"]]
        with _seeded(0):
            inner = _lean(problem, libero)(
                file,
                robots=["Panda"],
                controller_configs=libero.controller(default_controller="OSC_POSE"),
                gripper_types="default",
                initialization_noise=None,
                use_camera_obs=False,
                has_renderer=False,
                has_offscreen_renderer=False,
                control_freq=20,
                ignore_done=True,
                hard_reset=hard_reset,
            )
        return cls(task=task, name=f"{suite}/{task}", inner=inner, failed_placement=libero.failed_placement)

    @property
    def model(self) -> Any:
        """The ``MjModel`` that is simulated; the same one for the scene's whole life."""
        return self.inner.compiled.model

    @property
    def data(self) -> Any:
        """The ``MjData`` of the present episode."""
        return self.inner.sim.data._data

    def begin(self, seed: int, state: npt.NDArray[np.float64], settle_steps: int) -> None:
        """Go to a fixed initial state, then let it settle with the gripper open.

        Args:
            seed: of the places of fixtures, which are not part of a state.
            state: float64 [1 + nq + nv].
            settle_steps: sub-steps without motion.

        Raises:
            ValueError: the state belongs to another model.
        """
        self._place(seed)
        wanted = 1 + self.model.nq + self.model.nv
        if len(state) != wanted:
            raise ValueError(f"initial states of {self.task} have {len(state)} numbers, not {wanted}")
        self._go_on(state, settle_steps)

    def sample(self, seeds: Iterable[int], settle_steps: int) -> None:
        """Go to a state as the fixed ones were made: placements drawn anew, joints near their usual angles.
        Objects that are placed in each other fly apart; a draw that solves the task is not used.

        Args:
            seeds: of one draw after the other.
            settle_steps: sub-steps without motion.

        Raises:
            RuntimeError: all draws were solved.
        """
        for seed in seeds:
            self._place(seed)
            state = self.inner.sim.get_state().flatten()
            joints = 1 + np.array(self.inner.robots[0]._ref_joint_pos_indexes)
            state[joints] += np.random.default_rng(seed).normal(0.0, JOINT_NOISE, len(joints))
            self._go_on(state, settle_steps)
            if not self.solved():
                return
        raise RuntimeError(f"every placement drawn for {self.task} solves it")

    def _go_on(self, state: npt.NDArray[np.float64], settle_steps: int) -> None:
        self.inner.sim.set_state_from_flattened(state)
        self.inner.sim.forward()
        self.solved()  # some goals remember what was switched on; as LIBERO does after a state is set
        self.inner._post_process()
        still = np.array((0, 0, 0, 0, 0, 0, OPEN))
        for _ in range(settle_steps):
            self.inner.step(still)

    def _place(self, seed: int) -> None:
        # Each load appends to this list, and what is in it draws random numbers at each reset.
        if self.inner.hard_reset:
            self.inner.object_property_initializers.clear()
        with _seeded(seed):
            for _ in range(_RETRIES):
                try:
                    self.inner.reset()
                except self.failed_placement:
                    continue
                return
        raise RuntimeError(f"the objects of {self.task} could not be placed in {_RETRIES} tries")

    def step(self, action: npt.NDArray[np.float64]) -> bool:
        """Execute one action [7]; whether the task is solved now."""
        return bool(self.inner.step(action)[2])

    def solved(self) -> bool:
        """Whether the goal holds."""
        return bool(self.inner._check_success())

    def proprioception(self) -> npt.NDArray[np.float32]:
        """float32 [8]: end effector's position (m), its axis-angle (rad), the fingers' positions (m)."""
        robot, data = self.inner.robots[0], self.inner.sim.data
        position = data.site_xpos[robot.eef_site_id]
        fingers = data.qpos[robot._ref_gripper_joint_pos_indexes]
        turn = axis_angle(data.get_body_xquat(robot.robot_model.eef_name))
        return np.concatenate([position, turn, fingers]).astype(np.float32)

    def renderer(
        self, views: tuple[View, ...], size: int, tuned: bool, detailed: bool
    ) -> list[SceneRenderer]:
        """One renderer for each view, with meshes as fine as that view needs."""
        key = (size, detailed)
        if key not in self.renderers:
            source = _once(self.inner.compiled.with_textures)
            self.renderers[key] = [
                SceneRenderer(
                    self.model,
                    [view],
                    size,
                    tuned=tuned,
                    detailed=detailed,
                    name=self.name,
                    hidden_groups=(COLLISION_GROUP,),
                    source=source,
                    texture_sides=TEXTURE_SIDES,
                )
                for view in views
            ]
        return self.renderers[key]

    def close(self) -> None:
        """Forget everything, and free what no other scene of this thread shows."""
        for renderers in self.renderers.values():
            for renderer in renderers:
                renderer.close()
        self.renderers.clear()
        self.inner.close()


def _once(make: Callable[[], Any]) -> Callable[[], Any]:
    made: list[Any] = []

    def get() -> Any:
        if not made:
            made.append(make())
        return made[0]

    return get
