"""Algorithms by name."""

from rlvla3.algorithms.api import Algorithm
from rlvla3.plugins import resolve

BUILT_IN = {"ppo": "rlvla3.algorithms.ppo:PPO"}
"""Name → class."""


def algorithm_class(kind: str) -> type[Algorithm]:
    """The algorithm class of a built-in name or ``module:attribute``.

    Raises:
        UserError: there is none, with the nearest name.
    """
    found: type[Algorithm] = resolve("algorithm.kind", kind, BUILT_IN)
    return found
