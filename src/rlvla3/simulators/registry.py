"""Find a simulator adapter by name, importing only that one."""

from typing import Any

from rlvla3.plugins import component

BUILT_IN = {
    "metaworld": "rlvla3.simulators.metaworld:Metaworld",
    "libero": "rlvla3.simulators.libero:Libero",
    "synthetic": "rlvla3.simulators.synthetic:Synthetic",
    "robocasa": "rlvla3.simulators.robocasa:Robocasa",
    "gymnasium": "rlvla3.simulators.gymnasium:Gymnasium",
    "maniskill": "rlvla3.simulators.maniskill:Maniskill",
}
"""Adapters of this package as ``module:attribute``."""


def simulator_class(kind: str) -> Any:
    """The adapter class of a built-in name, or of any ``module:attribute``.

    Raises:
        UserError: unknown name (with the nearest one), it cannot be imported, or is no adapter.
    """
    return component("simulator.kind", kind, BUILT_IN, ("spec", "make", "expert"), "rlvla3.simulators.api")
