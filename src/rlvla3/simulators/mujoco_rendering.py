"""Cheap, exact-enough frames from MuJoCo scenes under software or hardware GL.

At the sizes a policy sees (64-84 px) software GL spends its time on the triangles of the robot's
meshes, not on pixels. ``tuned`` rendering therefore

- turns multisampling, shadows and reflections off,
- leaves out geoms whose bounding sphere is outside the view (the pixels stay bit-identical),
- uploads meshes whose vertices were merged on a grid of half a pixel's footprint, and coarser
  primitives, to the GL context only: physics keeps the full model.

All GL objects belong to the thread that made them; envs of one thread share them.
"""

import atexit
import copy
import importlib
import logging
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError

BACKENDS = ("egl", "osmesa")
"""GL back-ends in the order they are tried."""
PACKAGES = {"egl": "libegl1", "osmesa": "libosmesa6"}
"""Debian/Ubuntu package of each back-end."""
_HIDDEN_GROUP = 5
_PIXEL_SHARE = 0.5

_log = logging.getLogger("rlvla3")
_PROBE_TIMEOUT_S = 60.0
_choice_lock = threading.Lock()
_tried: set[tuple[str, str]] = set()
"""Interpreters and back-ends that rendered a frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Where a picture is taken from: a camera of the model (``name``) or a free one."""

    name: str = ""
    lookat: tuple[float, float, float] = (0.0, 0.0, 0.0)
    distance: float = 1.0
    """Metres."""
    azimuth: float = 0.0
    """Degrees."""
    elevation: float = 0.0
    """Degrees."""
    nearest: float = 0.0
    """Metres to the nearest thing that a camera on a moving body looks at; 0: unknown, meshes stay whole."""
    turned: bool = False
    """Turn the picture by 180 degrees: the model's camera hangs upside down."""


# --- GL back-ends ----------------------------------------------------------------------------


def choose_backend(python: str = "") -> str:
    """The GL back-end of this process and of those it starts: the first of EGL and OSMesa that works.

    Each is tried in a process of its own (0.5 s): a library that was loaded and failed would spoil
    the next one. The choice is exported as ``MUJOCO_GL``; where that is set already it is
    believed. A controller that calls this before it starts its Simulators spares them the trial.

    Args:
        python: the interpreter that they are tried with; empty: this one.

    Raises:
        UserError: none works, with the packages to install.
    """
    with _choice_lock:
        wanted = os.environ.get("MUJOCO_GL", "").lower()
        if wanted and wanted not in BACKENDS:
            raise UserError(f"MUJOCO_GL must be one of {', '.join(BACKENDS)} or unset; it is {wanted!r}")
        if not wanted:
            wanted = os.environ["MUJOCO_GL"] = _first_working(python)
        return wanted


def require_backend(python: str = "") -> None:
    """Make sure that the Simulators to come can render: `choose_backend`, and a trial of what the
    environment asks for.

    Args:
        python: the interpreter that will run them; empty: this one.

    Raises:
        UserError: no back-end works, or not the one asked for.
    """
    asked = "MUJOCO_GL" in os.environ
    backend = choose_backend(python)
    if asked and (python, backend) not in _tried:
        result = _probe(backend, _PROBE_TIMEOUT_S, python)
        if not result.startswith("works"):
            raise UserError(f"MUJOCO_GL={backend} {result}, or unset it to try the other back-end")
    _tried.add((python, backend))


def _first_working(python: str) -> str:
    failures: list[str] = []
    for backend in BACKENDS:
        result = _probe(backend, _PROBE_TIMEOUT_S, python)
        if result.startswith("works"):
            if failures:
                _log.warning("rendering with %s, because %s", backend, failures[0])
            return backend
        failures.append(f"{backend} {result}")
    raise UserError("no GL back-end renders a frame on this machine: " + "; ".join(failures))


def _open(size: int) -> Any:
    """A current GL context of the chosen back-end."""
    # llvmpipe reads this when its library is loaded. With one process for each core its worker
    # threads only add switches, and CPU time that no profile of the stepping thread shows.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    backend = choose_backend()
    try:
        context = importlib.import_module(f"mujoco.{backend}").GLContext(size, size)
        context.make_current()
    except Exception as error:
        raise UserError(
            f"MUJOCO_GL={backend} does not work here ({error}); apt-get install {PACKAGES[backend]}, "
            "or unset it to try the other back-end"
        ) from error
    return context


_PROBE = """
import mujoco, numpy, sys
from mujoco.{backend} import GLContext
gl = GLContext(32, 32); gl.make_current()
xml = "<mujoco><worldbody><light pos='0 0 3'/><geom size='.4' rgba='1 0 0 1'/></worldbody></mujoco>"
model = mujoco.MjModel.from_xml_string(xml); data = mujoco.MjData(model); mujoco.mj_forward(model, data)
scene = mujoco.MjvScene(model, 10); camera = mujoco.MjvCamera(); option = mujoco.MjvOption()
context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
mujoco.mjv_updateScene(model, data, option, None, camera, mujoco.mjtCatBit.mjCAT_ALL, scene)
out = numpy.zeros((32, 32, 3), numpy.uint8); view = mujoco.MjrRect(0, 0, 32, 32)
mujoco.mjr_render(view, scene, context); mujoco.mjr_readPixels(out, None, view, context)
from OpenGL import GL
name = GL.glGetString(GL.GL_RENDERER).decode()
context.free(); gl.free()
if not out.any(): sys.exit("the frame is black")
sys.stdout.write(name)
"""


def gl_backends(timeout_s: float = _PROBE_TIMEOUT_S, python: str = "") -> dict[str, str]:
    """Render one frame with every back-end, each in a process of its own (of ``python``; empty: of this one).

    Returns:
        for each back-end ``"works: <renderer>"`` or ``"fails: <reason>; apt-get install <package>"``.
    """
    return {backend: _probe(backend, timeout_s, python) for backend in BACKENDS}


def _probe(backend: str, timeout_s: float, python: str = "") -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("PYOPENGL_PLATFORM", "MUJOCO_GL")}
    try:
        run = subprocess.run(
            [python or sys.executable, "-c", _PROBE.format(backend=backend)],
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"fails: no frame within {timeout_s:.0f} s"
    if run.returncode == 0 and run.stdout:
        return f"works: {run.stdout}"
    lines = run.stderr.strip().splitlines() or ["no message"]
    # The first error is the cause; later ones come from what it left half built.
    reason = next((line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)), lines[-1])
    if run.returncode < 0:
        reason = f"killed by signal {-run.returncode}"
    return f"fails: {reason}; apt-get install {PACKAGES[backend]}"


# --- GL objects of one thread ----------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Contexts:
    """The GL context of one thread and what was uploaded to it, shared by its envs."""

    gl: Any = None
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    users: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def take(self, key: tuple[Any, ...], model: Callable[[], Any], size: int) -> Any:
        """The context of ``key``, uploaded from ``model()`` at its first use (0.1-0.3 s)."""
        import mujoco

        if key not in self.made:
            if self.gl is None:
                self.gl = _open(size)
                # Registered after the library's own exit handler, so it runs before: EGL prints
                # a traceback when a context outlives its display.
                atexit.register(self.free)
            upload = model()
            upload.vis.global_.offwidth = upload.vis.global_.offheight = size
            self.made[key] = mujoco.MjrContext(upload, mujoco.mjtFontScale.mjFONTSCALE_50)
        self.users[key] += 1
        return self.made[key]

    def give(self, key: tuple[Any, ...]) -> None:
        """One of those that took the context of ``key`` needs it no more."""
        self.users[key] -= 1
        if key in self.made and self.users[key] <= 0:
            self.made.pop(key).free()
            if not self.made:
                self.free()

    def free(self) -> None:
        for context in self.made.values():
            context.free()
        self.made.clear()
        self.users.clear()
        if self.gl is not None:
            self.gl.free()
            self.gl = None
            atexit.unregister(self.free)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.contexts = _Contexts()


_thread = _PerThread()


def free_thread() -> None:
    """Free all GL objects of the calling thread; its renderers must not be used again."""
    _thread.contexts.free()


# --- meshes ----------------------------------------------------------------------------------


def merge_vertices(model: Any, cell_m: float) -> Any:
    """A copy of ``model`` whose meshes have vertices merged on a grid of ``cell_m`` metres.

    Faces that collapse or coincide are dropped. Only for uploading to GL: collision data of the
    copy is inconsistent.
    """
    model = copy.copy(model)
    for mesh in range(model.nmesh):
        _merge_mesh(model, mesh, cell_m)
    return model


def _merge_mesh(model: Any, mesh: int, cell_m: float) -> None:
    vertices = slice(model.mesh_vertadr[mesh], model.mesh_vertadr[mesh] + model.mesh_vertnum[mesh])
    first, count = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    cells = np.round(model.mesh_vert[vertices] / cell_m).astype(np.int64)
    _, kept_vertex, cell_of = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    faces = kept_vertex[cell_of.ravel()][model.mesh_face[first : first + count]]
    corners = np.sort(faces, axis=1)
    _, unique = np.unique(corners, axis=0, return_index=True)
    unique.sort()
    kept = unique[(corners[unique, 0] != corners[unique, 1]) & (corners[unique, 1] != corners[unique, 2])]
    if len(kept) < 4:
        return
    end = first + len(kept)
    model.mesh_face[first:end] = faces[kept]
    for corner_index in (model.mesh_facenormal, model.mesh_facetexcoord):
        corner_index[first:end] = corner_index[first : first + count][kept]
    model.mesh_facenum[mesh] = len(kept)


# --- the renderer of one model ---------------------------------------------------------------


class SceneRenderer:
    """Renders square pictures of one model from fixed views. Belongs to one thread.

    Args:
        model: the env's ``MjModel``; ``tuned`` switches its shadows and reflections off.
        views: one picture for each.
        size: pixels of a side.
        tuned: see the module; ``False`` renders the model as it is.
        detailed: keep all triangles (pictures for people).
        name: equal names promise equal meshes and textures, so that contexts can be shared.
        hidden: geom groups that are not drawn, where a model has its collision shapes in one.
    """

    def __init__(
        self,
        model: Any,
        views: Sequence[View],
        size: int,
        *,
        tuned: bool,
        detailed: bool,
        name: str,
        hidden: Sequence[int] = (),
    ) -> None:
        import mujoco

        self._mujoco = mujoco
        self._model = model
        self._tuned = tuned
        self._groups = model.geom_group.copy()
        self._turned = [view.turned for view in views]
        self._cameras = [self._camera(view) for view in views]
        if tuned:
            model.light_castshadow[:] = 0
            model.mat_reflectance[:] = 0
        self._option = mujoco.MjvOption()
        for group in hidden:
            self._option.geomgroup[group] = 0
        self._scene = mujoco.MjvScene(model, model.ngeom + model.nsite + 64)
        self._rect = mujoco.MjrRect(0, 0, size, size)
        self._buffer = np.empty((size, size, 3), np.uint8)
        cell_m = 0.0 if detailed or not tuned else self._cell(views, size)
        self._key = (name, size, tuned, detailed, round(cell_m, 6))
        self._context = _thread.contexts.take(self._key, lambda: self._upload_model(cell_m, detailed), size)

    def close(self) -> None:
        """Free what was uploaded for it, unless another renderer shares it: for a model that goes."""
        _thread.contexts.give(self._key)

    def _camera(self, view: View) -> Any:
        camera = self._mujoco.MjvCamera()
        if view.name:
            camera.type = self._mujoco.mjtCamera.mjCAMERA_FIXED
            camera.fixedcamid = self._model.camera(view.name).id
            return camera
        camera.type = self._mujoco.mjtCamera.mjCAMERA_FREE
        camera.lookat[:] = view.lookat
        camera.distance, camera.azimuth, camera.elevation = view.distance, view.azimuth, view.elevation
        return camera

    def _cell(self, views: Sequence[View], size: int) -> float:
        """Half a pixel's footprint in metres at what the nearest view looks at; 0: keep all."""
        cells = []
        for view in views:
            fovy_deg, distance_m = float(self._model.vis.global_.fovy), view.distance
            if view.name:
                camera = self._model.camera(view.name)
                fovy_deg = float(camera.fovy[0])
                distance_m = float(np.linalg.norm(camera.pos - np.array((0.0, 0.6, 0.1))))
                if self._model.cam_bodyid[camera.id] != 0:
                    distance_m = view.nearest
            cells.append(2 * np.tan(np.radians(fovy_deg) / 2) * distance_m / size * _PIXEL_SHARE)
        return float(min(cells))

    def _upload_model(self, cell_m: float, detailed: bool) -> Any:
        if not self._tuned:
            return copy.copy(self._model)
        model = merge_vertices(self._model, cell_m) if cell_m > 0 else copy.copy(self._model)
        quality = model.vis.quality
        quality.offsamples = 0
        quality.shadowsize = 1
        if not detailed:
            quality.numslices, quality.numstacks, quality.numquads = 12, 8, 1
        return model

    def render(self, data: Any, index: int = 0) -> npt.NDArray[np.uint8]:
        """A new frame [size, size, 3] of ``data`` from view ``index``, top row first."""
        mujoco = self._mujoco
        self._update(data, self._cameras[index])
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(self._buffer, None, self._rect, self._context)
        return (self._buffer[:, ::-1] if self._turned[index] else self._buffer[::-1]).copy()

    def _update(self, data: Any, camera: Any) -> None:
        update, every = self._mujoco.mjv_updateScene, self._mujoco.mjtCatBit.mjCAT_ALL.value
        update(self._model, data, self._option, None, camera, every, self._scene)
        if not self._tuned:
            return
        unseen = self._out_of_view(data)
        self._model.geom_group[unseen] = _HIDDEN_GROUP
        update(self._model, data, self._option, None, camera, every, self._scene)
        self._model.geom_group[:] = self._groups

    def _out_of_view(self, data: Any) -> npt.NDArray[np.bool_]:
        """Geoms [ngeom] whose bounding sphere lies outside the four sides of the square view."""
        left, right = self._scene.camera[0], self._scene.camera[1]
        (fx, fy, fz), (ux, uy, uz) = left.forward, left.up
        sideways = (fy * uz - fz * uy, fz * ux - fx * uz, fx * uy - fy * ux)
        offset = data.geom_xpos - (np.array(left.pos) + np.array(right.pos)) / 2
        depth, across, upwards = (offset @ np.array((left.forward, sideways, left.up)).T).T
        slope = left.frustum_top / left.frustum_near
        radius = self._model.geom_rbound
        reach = radius * np.sqrt(1 + slope * slope) + slope * depth
        # A plane has no bounding sphere (radius 0) and is always drawn.
        unseen: npt.NDArray[np.bool_] = (np.abs(across) > reach) | (np.abs(upwards) > reach)
        unseen &= radius > 0
        return unseen
