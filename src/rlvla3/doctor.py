"""Looks at the machine: what is installed, what renders, how many cores and how much memory."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlvla3.elsewhere import interpreter
from rlvla3.errors import UserError
from rlvla3.run_folder import package_versions

_GIB = 1024**3
_SIMULATORS = ("metaworld",)
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. ``remedy``: the exact command to run, empty where nothing is wrong."""

    name: str
    value: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing needs mending."""
        return not self.remedy


def report(run_folder: Path = Path("runs"), python: str = "") -> list[Check]:
    """Every finding, in reading order. Renders a frame with each GL back-end (some seconds).

    ``python``: another environment's interpreter, to look at that as well, and to render with it.
    """
    there = elsewhere(python) if python else []
    usable = python if all(check.ok for check in there) else ""
    return [*software(package_versions()), *there, *graphics(_backends(usable)), *machine(run_folder)]


def software(installed: Mapping[str, str]) -> list[Check]:
    """Python and package versions; packages that the default recipe needs but lacks."""
    rows = [Check(name="python", value=platform.python_version())]
    rows += [Check(name=name, value=version) for name, version in installed.items()]
    rows += [
        Check(name=name, value="not installed", remedy=f"{sys.executable} -m pip install 'rlvla3[{name}]'")
        for name in _SIMULATORS
        if name not in installed
    ]
    rows.append(_cuda(installed))
    return rows


def elsewhere(python: str) -> list[Check]:
    """The versions of what Simulators need in another environment (``simulator.python``)."""
    name = f"simulator.python {python}"
    try:
        path = interpreter.located(python)
        interpreter.check(path, videos=True)
    except (UserError, ValueError) as error:
        return [Check(name=name, value="cannot run Simulators", remedy=str(error))]
    found = interpreter.versions(path)
    return [Check(name=name, value=", ".join(f"{part} {version}" for part, version in found.items()))]


def _cuda(installed: Mapping[str, str]) -> Check:
    if "torch" not in installed:
        return Check(name="cuda", value="torch is not installed", remedy="make install")
    devices = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    build = installed["torch"].partition("+")[2]
    if devices and build == "cpu":
        remedy = f"{sys.executable} -m pip install --force-reinstall --no-deps torch=={_release(installed)}"
        remedy += " (from an index that has the CUDA build, see pytorch.org/get-started)"
        return Check(name="cuda", value=f"{len(devices)} GPUs, but torch is the CPU build", remedy=remedy)
    return Check(
        name="cuda", value=f"{len(devices)} GPUs" if devices else "no NVIDIA GPU; running on the CPU"
    )


def _release(installed: Mapping[str, str]) -> str:
    return installed["torch"].partition("+")[0]


def _backends(python: str) -> dict[str, str]:
    from rlvla3.simulators.mujoco_rendering import gl_backends

    return gl_backends(python=python)


def graphics(backends: Mapping[str, str]) -> list[Check]:
    """One row for each GL back-end; a remedy only where none can render."""
    works = any(text.startswith("works") for text in backends.values())
    rows = []
    for name, text in backends.items():
        found, _, command = text.partition("; ")
        rows.append(Check(name=f"GL {name}", value=found, remedy="" if works else command or "make install"))
    return rows


def machine(run_folder: Path) -> list[Check]:
    """Cores, memory and free space."""
    cores = usable_cores()
    few = "use a machine with 2 cores or more; with one, Simulators and the Trainer take turns"
    return [
        Check(name="cores", value=f"{cores:g} usable of {os.cpu_count()}", remedy=few if cores < 2 else ""),
        _memory(),
        _space(f"run folder {run_folder}", run_folder, 1.0, "free some space or choose another run folder"),
        _writable(run_folder),
    ]


def usable_cores(cgroup: Path = _CGROUP) -> float:
    """Cores this process may use: the affinity mask, cut by the control group's quota."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = _quota(cgroup)
    return min(cores, quota) if quota else cores


def _quota(cgroup: Path) -> float:
    """Cores of the control group's quota, version 2 or 1; 0 without one."""
    text = _read(cgroup / "cpu.max").split()
    if len(text) == 2 and text[0] != "max":
        return int(text[0]) / int(text[1])
    quota, period = (_read(cgroup / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota and period and int(quota) > 0 else 0.0


def usable_memory(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that can still be had: the system's available memory, cut by the group's limit.

    Cached files count as used by the group, but those that nobody reads are given up first.
    """
    available = 0
    for row in _read(meminfo).splitlines():
        if row.startswith("MemAvailable:"):
            available = int(row.split()[1]) * 1024
    limit, used = (_read(cgroup / f"memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        cached = _statistics(cgroup).get("inactive_file", 0)
        available = min(available, int(limit) - max(int(used) - cached, 0))
    return available


def _statistics(cgroup: Path) -> dict[str, int]:
    rows = (row.split() for row in _read(cgroup / "memory.stat").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2}


def _memory() -> Check:
    free = usable_memory() / _GIB
    remedy = "close other programs; the default recipe needs about 3 GiB" if free < 3 else ""
    return Check(name="memory", value=f"{free:.1f} GiB available", remedy=remedy)


def _space(name: str, folder: Path, least_gib: float, remedy: str) -> Check:
    existing = next((path for path in (folder, *folder.absolute().parents) if path.exists()), Path("/"))
    try:
        free = shutil.disk_usage(existing).free / _GIB
    except OSError as error:
        return Check(name=name, value=f"cannot be read: {error.strerror}", remedy=remedy)
    return Check(name=name, value=f"{free:.1f} GiB free", remedy=remedy if free < least_gib else "")


def _writable(folder: Path) -> Check:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    ok = os.access(existing, os.W_OK) and existing.is_dir()
    remedy = "" if ok else "choose another run folder"
    return Check(name="run folder", value=f"{existing} is {'' if ok else 'not '}writable", remedy=remedy)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def render(rows: list[Check], write: Callable[[str], None]) -> None:
    """Write each finding as one aligned line, a remedy after an arrow."""
    width = max(len(row.name) for row in rows)
    for row in rows:
        mark = "ok  " if row.ok else "MEND"
        arrow = "" if row.ok else f"  ->  {row.remedy}"
        write(f"{mark} {row.name:<{width}}  {row.value}{arrow}")
