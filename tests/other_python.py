"""A second Python environment, with a simulator that can be imported nowhere else."""

import site
import sys
import venv
from pathlib import Path

ADAPTER = "kept_apart:KeptApart"
_MARKER = "only_there"

_MODULE = '''
"""The echo simulator, in an environment of its own."""

import os
import sys
from pathlib import Path

import only_there
from echo import EchoSimulator

from rlvla3.simulators.api import SimulatorSpec

print("noise of a library")
with Path(__file__).with_name("imports.txt").open("a") as file:
    file.write(f"{os.getpid()}\\n")


class KeptApart(EchoSimulator):
    """Says where it runs."""

    @property
    def spec(self) -> SimulatorSpec:
        spec = super().spec
        return SimulatorSpec(
            observation=spec.observation,
            action_dim=spec.action_dim,
            tasks=spec.tasks,
            instructions=spec.instructions,
            step_limits=spec.step_limits,
            fingerprint={**spec.fingerprint, "prefix": sys.prefix, "mark": only_there.MARK},
        )


class Speechless(EchoSimulator):
    """Has no spec."""

    spec = 7
'''


def make_environment(folder: Path, *, packages: bool = True) -> Path:
    """The interpreter of a new environment in ``folder``.

    ``packages``: whether it sees the packages of this environment. The adapter ``ADAPTER`` is in it in
    any case; the tests' folder must be importable for it.
    """
    venv.create(folder, symlinks=True)
    place = Path(site_packages(folder))
    (place / f"{_MARKER}.py").write_text("MARK = 'there'\n")
    (place / "kept_apart.py").write_text(_MODULE)
    if packages:
        here = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (place / "here.pth").write_text("\n".join([*here, site.getusersitepackages()]) + "\n")
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    """Where an environment's modules lie."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def imports(python: Path) -> list[int]:
    """Processes that imported the adapter so far, one after the other."""
    file = site_packages(python.parents[1]) / "imports.txt"
    return [int(line) for line in file.read_text().split()] if file.exists() else []
