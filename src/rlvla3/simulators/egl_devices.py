"""Which GPU renders a process's frames: EGL numbers devices in another order than CUDA.

MuJoCo takes EGL's number from ``MUJOCO_EGL_DEVICE_ID``, and EGL's first device where it is not set: on a
machine with several GPUs all processes would render on one of them, maybe one that is not ours. NVIDIA's
driver tells the CUDA number of each EGL device; CUDA_VISIBLE_DEVICES hides CUDA devices but no EGL devices.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence

from rlvla3.errors import UserError

EGL_DEVICE = "MUJOCO_EGL_DEVICE_ID"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_TIMEOUT_S = 30.0
_log = logging.getLogger("rlvla3")

# Without CUDA_VISIBLE_DEVICES, so that the numbers are those it holds. Prints the CUDA number of each EGL
# device, or - for one that has none (another maker's, or software).
_LIST = """
import ctypes
egl = ctypes.CDLL("libEGL.so.1")
address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(("eglGetProcAddress", egl))
def function(name, *types):
    return ctypes.CFUNCTYPE(ctypes.c_uint, *types)(address(name))
integer, pointer = ctypes.c_int32, ctypes.c_void_p
devices, count = (pointer * 64)(), integer()
query = function(b"eglQueryDevicesEXT", integer, ctypes.POINTER(pointer), ctypes.POINTER(integer))
query(64, devices, ctypes.byref(count))
attribute = function(b"eglQueryDeviceAttribEXT", pointer, integer, ctypes.POINTER(ctypes.c_ssize_t))
EGL_CUDA_DEVICE_NV = 0x323A
for device in devices[: count.value]:
    number = ctypes.c_ssize_t(-1)
    known = attribute(device, EGL_CUDA_DEVICE_NV, ctypes.byref(number))
    print(number.value if known else "-")
"""


def cuda_numbers() -> list[int | None]:
    """CUDA number of each EGL device, in EGL's order; empty where EGL cannot tell its devices."""
    env = {name: value for name, value in os.environ.items() if name != _VISIBLE}
    try:
        run = subprocess.run(
            [sys.executable, "-c", _LIST], env=env, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return []
    return [None if line == "-" else int(line) for line in run.stdout.split()] if not run.returncode else []


def visible(text: str | None, present: Sequence[int]) -> list[int]:
    """The CUDA numbers that CUDA_VISIBLE_DEVICES leaves, in its order; as CUDA does, up to the first that is
    none. ``present``: all that there are."""
    if text is None:
        return sorted(present)
    found: list[int] = []
    for entry in text.split(","):
        if not entry.strip().isdigit() or int(entry) not in present:
            break
        found.append(int(entry))
    return found


def choose(number: int, wanted: Sequence[int]) -> int | None:
    """EGL's number of the device on which the ``number``-th Simulator renders; None leaves it to EGL.

    Args:
        number: of the Simulator, from 0.
        wanted: ``simulator.render_devices``, CUDA numbers dealt out in turn; empty: the visible ones.

    Raises:
        UserError: one of ``wanted`` is no device that EGL knows.
    """
    if EGL_DEVICE in os.environ or os.environ.get("MUJOCO_GL", "egl") != "egl":
        return None
    found = cuda_numbers()
    present = [cuda for cuda in found if cuda is not None]
    if unknown := sorted(set(wanted) - set(present)):
        raise UserError(
            f"simulator.render_devices: EGL has no device with CUDA number {unknown[0]}, it has "
            f"{', '.join(map(str, sorted(present))) or 'none'}; correct it, or leave it out"
        )
    devices = list(wanted) or visible(os.environ.get(_VISIBLE), present)
    if devices:
        return found.index(devices[number % len(devices)])
    if present and os.environ.get(_VISIBLE):
        _log.warning(
            "%s=%s names no device by a number that EGL knows; rendering on EGL's first device",
            _VISIBLE,
            os.environ[_VISIBLE],
        )
    return None


def render_on(device: int | None) -> None:
    """Have this process, and those it starts, render on an EGL device."""
    if device is not None:
        os.environ[EGL_DEVICE] = str(device)
