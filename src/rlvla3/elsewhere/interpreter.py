"""Interpreters of other Python environments, and processes of this package in them.

Such a process takes this package's files from here, so both ends always have the same messages, and all
else from its own environment, which need not have this package installed.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvla3.errors import UserError
from rlvla3.lifetime import run_to_end

LEAST = (3, 11)
"""Oldest Python that this package runs in."""
NEEDS = {"numpy": (1, 26), "msgspec": (0, 19), "pydantic": (2, 10), "yaml": (6, 0)}
"""Modules that a Simulator's process imports, with their oldest versions."""
VIDEOS = {"av": (14, 0)}
"""What it imports besides where it records videos."""
Needs = Mapping[str, tuple[int, ...]]
_DISTRIBUTIONS = {"yaml": "PyYAML"}
_FIELD = "simulator.python"
_PROBE_TIMEOUT_S = 60.0

_PROBE = """
import json, sys
found = {"version": list(sys.version_info[:3]), "modules": {}}
for name in sys.argv[1:]:
    try:
        found["modules"][name] = {"version": str(getattr(__import__(name), "__version__", ""))}
    except Exception as error:
        found["modules"][name] = {"fault": "%s: %s" % (type(error).__name__, error)}
sys.stdout.write("\\n" + json.dumps(found))
"""
_START = """
import runpy, sys
from importlib.util import module_from_spec, spec_from_file_location
folder = sys.argv[1]
del sys.argv[:2]
spec = spec_from_file_location("rlvla3", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["rlvla3"] = module_from_spec(spec)
spec.loader.exec_module(package)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module of the package in a given folder; nothing else that lies beside it becomes importable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a process left."""

    out: bytes
    code: int
    said: str
    """Last line of its messages."""


def command(python: str, module: str, *arguments: str) -> list[str]:
    """Command line that runs a module of this package.

    Args:
        python: the interpreter; empty: this one.
        module: its name, such as ``rlvla3.runtime.local.member``.
        arguments: what ``sys.argv[1:]`` will be.
    """
    # A process that was started so itself may lie where this package is not installed.
    if not python and _START not in sys.orig_argv:
        return [sys.executable, "-m", module, *arguments]
    return [python or sys.executable, "-c", _START, str(Path(__file__).parents[1]), module, *arguments]


def environment(python: str) -> dict[str, str]:
    """Environment variables for a process of ``python``, but those that belong to this interpreter."""
    own = ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__") if python else ()
    return {name: value for name, value in os.environ.items() if name not in own}


def located(python: str) -> str:
    """The absolute path of an interpreter that is given by its path, or by a name to look for in ``PATH``.

    A link stays one: it is where an interpreter lies that tells it its environment.

    Raises:
        ValueError: nothing that can be executed is there.
    """
    found = shutil.which(python) if os.sep not in python else None
    path = Path(found or python).expanduser()
    path = path if path.is_absolute() else Path.cwd() / path
    rule = "must be the Python interpreter of an environment, such as ENV/bin/python"
    if path.is_dir():
        inside = path / "bin" / "python"
        remedy = f"use {inside}" if inside.exists() else "name the interpreter in it"
        raise ValueError(f"{rule}; {python!r} is a folder: {remedy}")
    if not path.exists():
        raise ValueError(f"{rule}; there is no file {str(path)!r}: correct it, or make the environment")
    if not os.access(path, os.X_OK):
        raise ValueError(f"{rule}; {str(path)!r} may not be executed: correct the path, or chmod +x it")
    return os.path.abspath(path)  # noqa: PTH100 - resolve() would follow the link


@functools.cache
def check(python: str, *, videos: bool = False) -> None:
    """Make sure that Simulators can run in this environment, and record videos if they are to.

    Raises:
        UserError: it is no Python, too old a one, or lacks what a Simulator's process imports.
    """
    needs = NEEDS | VIDEOS if videos else NEEDS
    found = _probe(python, needs)
    version = tuple(found["version"])
    if version < LEAST:
        raise _refusal(
            python,
            f"it is Python {_dotted(version)}, Simulators need {_dotted(LEAST)} or newer; make it with a "
            "newer one",
        )
    faults = list(_lacking(found["modules"], needs))
    if faults:
        wanted = " ".join(
            f"'{_DISTRIBUTIONS.get(name, name)}>={_dotted(least)}'" for name, least in needs.items()
        )
        raise _refusal(python, f"{', '.join(faults)}; run: {python} -m pip install {wanted}")


def versions(python: str) -> dict[str, str]:
    """Versions of Python and of what Simulators need; after ``check``."""
    found = _probe(python, NEEDS | VIDEOS)
    modules = {name: str(entry.get("version")) for name, entry in found["modules"].items()}
    return {"python": _dotted(tuple(found["version"])), **modules}


def _lacking(modules: Mapping[str, Mapping[str, str]], needs: Needs) -> list[str]:
    faults = []
    for name, least in needs.items():
        answer = modules[name]
        if "fault" in answer:
            faults.append(f"{name} cannot be imported there ({answer['fault']})")
        elif _numbers(answer["version"]) < least:
            faults.append(f"its {name} {answer['version']} is older than {_dotted(least)}")
    return faults


def run(command: Sequence[str], python: str, timeout_s: float, given: bytes = b"") -> Finished:
    """Run a command of another environment to its end. Whatever it started ends with it when it is late:
    an interpreter may be a script that starts the real one.

    Raises:
        OSError: it cannot be started.
        UserError: it said nothing in time.
    """
    try:
        done = run_to_end(command, environment(python), timeout_s, given)
    except subprocess.TimeoutExpired as error:
        raise _refusal(python, f"it said nothing within {timeout_s:g} s; name another interpreter") from error
    said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    return Finished(out=done.stdout, code=done.returncode, said=said)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _probe(python: str, needs: Needs) -> Any:
    try:
        done = run([python, "-c", _PROBE, *needs], python, _PROBE_TIMEOUT_S)
        return json.loads((done.out.decode(errors="replace").splitlines() or [""])[-1])
    except OSError as error:
        raise _refusal(
            python, f"it cannot be started ({error.strerror}); name another interpreter"
        ) from error
    except ValueError as error:
        raise _refusal(
            python, f"it does not answer as Python does (exit code {done.code}: {done.said}); name another"
        ) from error


def _refusal(python: str, text: str) -> UserError:
    return UserError(f"{_FIELD} = {python!r}: {text}")
