"""``rlvla3 envs``: which simulators there are, and how to get the others. Imports none of them."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from rlvla3 import run_folder
from rlvla3.config_loading import did_you_mean
from rlvla3.errors import UserError
from rlvla3.simulators import mujoco_rendering
from rlvla3.simulators.packages import PACKAGES, Package

_MESA_VULKAN = "mesa-vulkan-drivers"
_DRIVERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
_NAMED_DRIVERS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorRow:
    """One simulator."""

    name: str
    version: str
    """Empty where it is not installed."""
    tasks: str
    """How many, or which."""
    observations: str
    graphics: str
    """What draws its images: GL, Vulkan, or nothing that must be installed."""
    install: str
    """The command that installs it; empty where it is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryRow:
    """One graphics library."""

    name: str
    found: bool
    install: str
    """The command that installs it; empty where it is there."""


def command(simulator: str, json: Path | None) -> None:
    """Print both tables, or the tasks of one simulator.

    Raises:
        UserError: there is no such simulator, or its tasks cannot be listed here.
    """
    if simulator:
        _list(simulator, json)
        return
    simulators, libraries = survey(), graphics()
    _show(simulators, libraries)
    if json is not None:
        rows = [asdict(row) | {"kind": "simulator"} for row in simulators]
        rows += [asdict(row) | {"kind": "library"} for row in libraries]
        run_folder.write_json(json, {"rows": rows, "versions": run_folder.versions()})


def _list(simulator: str, json: Path | None) -> None:
    """Print the tasks of one simulator: with their numbers where these stand for names."""
    if simulator not in PACKAGES:
        raise UserError(f"{simulator!r} is no simulator; {did_you_mean(simulator, list(PACKAGES))}")
    package = PACKAGES[simulator]
    suites = package.listed()
    if not suites:
        raise UserError(
            f"{simulator}: its tasks are {package.uncounted}, which it cannot list; "
            f"give one as simulator.options.{package.plays}"
        )
    for suite, names in suites.items():
        if suite:
            typer.echo(f"suite {suite}")
        for number, name in enumerate(names):
            typer.echo(f"{number:>4}  {name}" if package.in_suites else name)
    if json is not None:
        rows = [{"suite": suite, "tasks": list(names)} for suite, names in suites.items()]
        run_folder.write_json(json, {"rows": rows, "versions": run_folder.versions()})


def survey() -> list[SimulatorRow]:
    """Every built-in simulator."""
    return [_row(name, package) for name, package in PACKAGES.items()]


def _row(name: str, package: Package) -> SimulatorRow:
    version = package.version
    return SimulatorRow(
        name=name,
        version=version,
        tasks=_counted(package),
        observations=package.sees,
        graphics=package.graphics,
        install="" if version else package.command,
    )


def _counted(package: Package) -> str:
    if not package.tasks:
        return package.uncounted
    count = str(len(package.names))
    return f"{count} in {len(package.suites)} suites" if package.in_suites else count


def graphics() -> list[LibraryRow]:
    """The libraries that draw images. Whether they really do is found out by ``rlvla3 doctor``."""
    packages = mujoco_rendering.PACKAGES
    return [
        _library("GL osmesa", packages["osmesa"], _loads("libOSMesa.so.8") or _loads("libOSMesa.so.6")),
        _library("GL egl", packages["egl"], _loads("libEGL.so.1")),
        _library(
            "Vulkan", f"libvulkan1 {_MESA_VULKAN}", _loads("libvulkan.so.1") and bool(_vulkan_drivers())
        ),
    ]


def _library(name: str, package: str, found: bool) -> LibraryRow:
    return LibraryRow(name=name, found=found, install="" if found else f"apt-get install {package}")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _vulkan_drivers() -> Sequence[Path]:
    """Files that name the drivers of Vulkan: those that the environment names, or the system's."""
    named = [Path(part) for name in _NAMED_DRIVERS for part in os.environ.get(name, "").split(":") if part]
    files = named or [file for folder in _DRIVERS for file in Path(folder).glob("*.json")]
    return [file for file in files if file.exists()]


def _show(simulators: Sequence[SimulatorRow], libraries: Sequence[LibraryRow]) -> None:
    table = Table()
    for title in ("simulator", "version", "tasks", "observations", "images need"):
        table.add_column(title)
    for row in simulators:
        table.add_row(
            row.name, row.version or "missing", row.tasks, row.observations, row.graphics or "nothing"
        )
    Console().print(table)
    for library in libraries:
        typer.echo(f"{library.name:<10} {'found' if library.found else 'missing'}")
    rows: list[SimulatorRow | LibraryRow] = [*simulators, *libraries]
    for missing in [row for row in rows if row.install]:
        typer.echo(f"to get {missing.name}: {missing.install}")
    typer.echo("the tasks of one: rlvla3 envs NAME; what really draws a frame: rlvla3 doctor")
