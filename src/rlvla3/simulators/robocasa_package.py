"""RoboCasa's package and assets: what is there, and in one line what to do about what is not.

All but ``load`` works without importing RoboCasa, which takes seconds.
"""

import ast
import functools
import os
import re
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rlvla3.errors import UserError, meant

ASSETS = "ROBOCASA_ASSETS_PATH"
"""Environment variable that RoboCasa reads the assets' folder from when it is imported."""
DISTRIBUTIONS = {
    "robocasa": ("robocasa", "rlinf-robocasa365", "rpent-robocasa365"),
    "robosuite": ("robosuite", "praxis-robosuite"),
    "mujoco": ("mujoco",),
}
"""Names under which each package is published."""
_PARTS = ("textures", "objects")
"""Folders of assets that no package contains."""
_FILE = re.compile(r"['\"]?(/[^'\"\s]+\.(?:png|jpg|obj|stl|msh|xml|yaml))", re.IGNORECASE)

_lock = threading.Lock()


def version_of(package: str) -> str:
    """Installed version of a key of ``DISTRIBUTIONS``; ``missing`` where there is none."""
    for name in DISTRIBUTIONS[package]:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "missing"


def folder_of(package: str) -> Path:
    """Where a package lies.

    Raises:
        UserError: it is not installed here.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            f"simulator robocasa: {package} is not installed in {sys.executable}; make an environment for it "
            "(.ci/robocasa-environment FOLDER) and set simulator.python=FOLDER/bin/python"
        )
    return Path(spec.origin).parent


def assets_folder(assets: str) -> Path:
    """Where RoboCasa's assets lie: as set, else as the environment says, else in the package."""
    given = assets or os.environ.get(ASSETS, "")
    return Path(given).expanduser().absolute() if given else folder_of("robocasa") / "models" / "assets"


def require(assets: str, tasks: tuple[str, ...]) -> None:
    """Make sure that RoboCasa, its assets and the tasks are there.

    Raises:
        UserError: one of them is not.
    """
    for package in ("robocasa", "robosuite"):
        folder_of(package)
    known = task_names()
    for task in tasks:
        if task not in known:
            hint = meant(task, known, "see rlvla3 envs robocasa")
            raise UserError(f"simulator.options.tasks: {task!r} is not a task of RoboCasa; {hint}")
    folder = assets_folder(assets)
    lacking = [part for part in _PARTS if not any((folder / part).glob("*/*"))]
    if lacking:
        raise UserError(_get(folder, f"there are no {' and no '.join(lacking)} in {folder}"))


def _get(folder: Path, fault: str) -> str:
    return (
        f"simulator robocasa: {fault}; get RoboCasa's assets (about 10 GB) with: {sys.executable} "
        f"-m robocasa.scripts.download_assets_cli --no-macros -y --assets-path {folder}"
    )


def missing_file(error: BaseException, assets: str) -> UserError | None:
    """The fault in one line, if it is that one of RoboCasa's files is missing."""
    named = [str(error.filename)] if isinstance(error, FileNotFoundError) and error.filename else []
    for name in named or _FILE.findall(str(error)):
        if not Path(name).exists():
            return UserError(_get(assets_folder(assets), f"there is no file {name}"))
    return None


@functools.cache
def task_names() -> tuple[str, ...]:
    """Names of all tasks, read from the package's text."""
    text = (folder_of("robocasa") / "__init__.py").read_text(encoding="utf-8")
    modules = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom))
    kitchens = [m for m in modules if (m.module or "").startswith("robocasa.environments.kitchen.")]
    return tuple(alias.name for module in kitchens for alias in module.names if alias.name != "Kitchen")


def load(assets: str) -> None:
    """Import RoboCasa with these assets; the first import settles where they are, for good.

    Raises:
        UserError: RoboCasa was imported with other ones.
    """
    folder = assets_folder(assets)
    with _lock:
        if "robocasa" not in sys.modules:
            os.environ[ASSETS] = str(folder)
        import robocasa

        used = Path(robocasa.models.assets_root)
    if used != folder:
        raise UserError(
            f"simulator.options.assets = {assets!r}: this process uses RoboCasa with {used}; use one"
        )


def own_step_limit(task: str) -> int:
    """Sub-steps that RoboCasa gives an episode of a task."""
    return _own_step_limits().get(task, _OTHER_LIMIT)


@functools.cache
def _own_step_limits() -> dict[str, int]:
    """Those of all tasks that have one, read from the package's text: ``Task=dict(…, horizon=450)``."""
    text = (folder_of("robocasa") / "utils" / "dataset_registry.py").read_text(encoding="utf-8")
    found: dict[str, int] = {}
    for entry in ast.walk(ast.parse(text)):
        if isinstance(entry, ast.keyword) and entry.arg and isinstance(entry.value, ast.Call):
            for part in entry.value.keywords:
                if part.arg == "horizon":
                    found.setdefault(entry.arg, int(ast.literal_eval(part.value)))
    return found


_OTHER_LIMIT = 1000
"""Robosuite's own, for tasks that RoboCasa gives none."""
