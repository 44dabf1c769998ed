"""Find a simulator adapter by name, importing only that one."""

import contextlib
from collections.abc import Iterator
from typing import Any

from rlvla3.errors import UserError
from rlvla3.plugins import USERS_FAULTS, component, guarded
from rlvla3.settings import Settings
from rlvla3.simulators.api import Env, Simulator, SimulatorSpec

BUILT_IN = {
    "metaworld": "rlvla3.simulators.metaworld:Metaworld",
    "libero": "rlvla3.simulators.libero:Libero",
    "synthetic": "rlvla3.simulators.synthetic:Synthetic",
    "robocasa": "rlvla3.simulators.robocasa:Robocasa",
    "gymnasium": "rlvla3.simulators.gymnasium:Gymnasium",
    "maniskill": "rlvla3.simulators.maniskill:Maniskill",
}
"""Adapters of this package as ``module:attribute``."""
_RUN_OTHERS = ("gymnasium",)
"""Those of them whose envs are code of others, which the user named."""


def simulator_class(kind: str) -> Any:
    """The adapter class of a built-in name, or of any ``module:attribute``.

    Raises:
        UserError: unknown name (with the nearest one), it cannot be imported, or is no adapter.
    """
    return component("simulator.kind", kind, BUILT_IN, ("spec", "make", "expert"), "rlvla3.simulators.api")


def build(kind: str, adapter: Any, settings: Settings) -> Simulator:
    """An adapter of the class ``adapter``, which ``kind`` names.

    Raises:
        UserError: a class of the user's own raises something.
    """
    with guarded("simulator.kind", kind, adapter):
        made: Simulator = adapter(settings)
    return made


def require(kind: str, simulator: Simulator) -> None:
    """Make sure that what an adapter needs for its envs is in this environment.

    Raises:
        UserError: it is not, or an adapter of the user's own fails.
    """
    with guarded("simulator.kind", kind):
        getattr(simulator, "require", lambda: None)()


def spec_of(kind: str, simulator: Simulator) -> SimulatorSpec:
    """What an adapter offers.

    Raises:
        UserError: one of the user's own does not say it, or says something else.
    """
    with guarded("simulator.kind", kind):
        found: object = simulator.spec
    if not isinstance(found, SimulatorSpec):
        raise UserError(
            f"simulator.kind = {kind!r}: its spec must be a SimulatorSpec, it is {found!r}; "
            "see rlvla3.simulators.api"
        )
    if found.steps_together and not hasattr(simulator, "make_batch"):
        raise UserError(
            f"simulator.kind = {kind!r}: its spec says steps_together, but it has no make_batch; "
            "see rlvla3.simulators.api"
        )
    return found


def watched(kind: str) -> contextlib.AbstractContextManager[None]:
    """Tell in one line what goes wrong in envs that are no code of this package.

    Raises:
        UserError: such code raised something.
    """
    return guarded("simulator.kind", kind, foreign=kind in _RUN_OTHERS)


@contextlib.contextmanager
def env_of(kind: str, simulator: Simulator) -> Iterator[Env]:
    """An env of an adapter for a while; it is closed at the end, and the first fault is the one that is told.

    Raises:
        UserError: code that is not of this package raised something.
    """
    with watched(kind):
        env = simulator.make()
        try:
            yield env
        except BaseException:
            with contextlib.suppress(*USERS_FAULTS):
                env.close()
            raise
        env.close()
