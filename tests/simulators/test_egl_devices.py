"""CUDA numbers are not EGL numbers: tried with a small EGL library of our own, where there is a compiler."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rlvla3.errors import UserError
from rlvla3.simulators.egl_devices import choose, cuda_numbers, render_on, visible

# EGL's order here: CUDA 2, none (software), CUDA 0, CUDA 1. CUDA numbers are local to what is visible.
_EGL = """
#include <stdlib.h>
#include <string.h>
static long cuda[] = {2, -1, 0, 1};
static unsigned devices(int most, void **found, int *count) {
    for (int i = 0; i < 4 && i < most; i++) found[i] = &cuda[i];
    *count = 4;
    return 1;
}
static unsigned attribute(void *device, int name, long *value) {
    if (name != 0x323A || *(long *)device < 0) return 0;
    *value = getenv("CUDA_VISIBLE_DEVICES") ? 0 : *(long *)device;
    return 1;
}
void *eglGetProcAddress(const char *name) {
    if (!strcmp(name, "eglQueryDevicesEXT")) return (void *)devices;
    return strcmp(name, "eglQueryDeviceAttribEXT") ? NULL : (void *)attribute;
}
"""


@pytest.fixture
def four_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build an EGL library with four devices")
    (tmp_path / "egl.c").write_text(_EGL)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", tmp_path / "libEGL.so.1", tmp_path / "egl.c"], check=True
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    for name in ("MUJOCO_EGL_DEVICE_ID", "MUJOCO_GL", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.live
@pytest.mark.parametrize(
    ("shown", "wanted", "chosen"),
    [
        (None, (), [2, 3, 0, 2]),
        ("1", (), [3, 3, 3, 3]),
        ("2,0", (), [0, 2, 0, 2]),
        (None, (2, 1), [0, 3, 0, 3]),
        ("1", (0,), [2, 2, 2, 2]),
        ("", (), [None] * 4),
        ("GPU-8932f937", (), [None] * 4),
    ],
)
def test_simulators_are_dealt_out_to_devices(
    shown: str | None,
    wanted: tuple[int, ...],
    chosen: list[int | None],
    four_devices: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert cuda_numbers() == [2, None, 0, 1]
    assert [choose(number, wanted) for number in range(4)] == chosen


@pytest.mark.live
def test_a_device_that_egl_does_not_know_is_refused(four_devices: None) -> None:
    with pytest.raises(
        UserError, match=r"render_devices: EGL has no device with CUDA number 7, it has 0, 1, 2"
    ):
        choose(0, (0, 7))


@pytest.mark.parametrize(("name", "value"), [("MUJOCO_EGL_DEVICE_ID", "3"), ("MUJOCO_GL", "osmesa")])
def test_what_the_user_set_is_believed(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert choose(0, ()) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("0,-1,1", [0]), ("0,5,1", [0]), ("", []), ("NoDevFiles", [])],
)
def test_visible_devices_end_at_the_first_that_is_none(text: str | None, found: list[int]) -> None:
    assert visible(text, [2, 0, 1]) == found


def test_the_choice_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "9")
    render_on(None)
    assert os.environ["MUJOCO_EGL_DEVICE_ID"] == "9"
    render_on(2)
    assert os.environ["MUJOCO_EGL_DEVICE_ID"] == "2"
