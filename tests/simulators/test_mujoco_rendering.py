import os
import subprocess
import sys

import numpy as np
import pytest

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.simulators import mujoco_rendering
from rlvla3.simulators.metaworld import FreeCamera, Metaworld, MetaworldSettings

pytestmark = pytest.mark.metaworld


def frames(env, random, count=6):
    env.reset(Start(task=0, split="train", state=0), 0)
    taken = []
    for action in np.repeat(random.uniform(-1, 1, (count, 4)), 10, axis=0).astype(np.float32):
        env.step(action)
        taken.append({k: v for k, v in env.observe().items() if v.dtype == np.uint8})
    return taken[9::10]


def test_leaving_out_what_is_out_of_view_changes_no_pixel(monkeypatch):
    cameras = (FreeCamera(), FreeCamera(azimuth=20, distance=0.5), "corner2", "gripperPOV", "topview")
    env = Metaworld(MetaworldSettings(cameras=cameras)).make()
    culled = frames(env, np.random.default_rng(0))
    monkeypatch.setattr(
        mujoco_rendering.SceneRenderer,
        "_out_of_view",
        lambda self, data: np.zeros(self._model.ngeom, bool),
    )
    everything = frames(env, np.random.default_rng(0))
    env.close()
    for one, other in zip(culled, everything, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_merged_meshes_look_alike_and_leave_physics_alone():
    env = Metaworld(MetaworldSettings()).make()
    env.reset(Start(task=0, split="train", state=0), 0)
    model = env._inner.model
    faces = model.mesh_facenum.copy()
    merged = mujoco_rendering.merge_vertices(model, 0.006)
    assert merged.mesh_facenum.sum() < 0.4 * faces.sum()
    np.testing.assert_array_equal(model.mesh_facenum, faces)
    coarse = env.observe()["image"].astype(int)
    fine = env._renderer(64, detailed=True).render(env._inner.data).astype(int)
    assert (np.abs(coarse - fine).max(-1) > 16).mean() < 0.03
    env.close()


def test_cameras_that_hang_upside_down_are_turned():
    names = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
    env = Metaworld(MetaworldSettings(cameras=names)).make()
    env.reset(Start(task=0, split="train", state=0), 0)
    env.observe()
    renderer = env._renderer(64, detailed=False)
    for index, name in enumerate(names):
        renderer.render(env._inner.data, index)
        points_down = renderer._scene.camera[0].up[2] < -0.1
        assert renderer._turned[index] == points_down, name
    env.close()


def test_pictures_for_people_are_larger():
    env = Metaworld(MetaworldSettings()).make()
    env.reset(Start(task=0, split="train", state=0), 0)
    before = env.observe()["image"]
    assert env.picture().shape == (256, 256, 3)
    np.testing.assert_array_equal(env.observe()["image"], before)
    env.close()


def test_an_unknown_back_end_is_refused(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    with pytest.raises(UserError, match="egl, osmesa"):
        mujoco_rendering.choose_backend()


def test_no_back_end_names_the_packages(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(mujoco_rendering, "_PROBE", "import sys; sys.exit('no {backend} here')")
    with pytest.raises(UserError, match=r"egl fails: no egl here; apt-get install libegl1; .*libosmesa6"):
        mujoco_rendering.choose_backend()


_FRAME = """
import logging, os, sys
logging.basicConfig(level="WARNING")
from rlvla3.messages import Start
from rlvla3.simulators.metaworld import Metaworld, MetaworldSettings
env = Metaworld(MetaworldSettings()).make()
env.reset(Start(task=0, split="train", state=0), 0)
assert env.observe()["image"].std() > 10
env.close()
sys.stdout.write(os.environ["MUJOCO_GL"])
"""


@pytest.mark.live
def test_osmesa_takes_over_with_a_notice_where_egl_fails():
    environment = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "PYOPENGL_PLATFORM")}
    environment["MUJOCO_EGL_DEVICE_ID"] = "99"
    run = subprocess.run([sys.executable, "-c", _FRAME], env=environment, capture_output=True, text=True)
    assert run.stdout == "osmesa", run.stderr
    assert "rendering with osmesa, because egl fails" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.live
def test_every_back_end_is_probed():
    found = mujoco_rendering.gl_backends()
    assert set(found) == {"egl", "osmesa"}
    assert any(result.startswith("works: ") for result in found.values())
