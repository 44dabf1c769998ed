"""Algorithms by name."""

from rlvla3.algorithms.api import Algorithm
from rlvla3.plugins import component

BUILT_IN = {
    "ppo": "rlvla3.algorithms.ppo:PPO",
    "grpo": "rlvla3.algorithms.grouped:GRPO",
    "rloo": "rlvla3.algorithms.grouped:RLOO",
    "reinforce++": "rlvla3.algorithms.reinforce:ReinforcePlusPlus",
}
"""Name → class."""


def algorithm_class(kind: str) -> type[Algorithm]:
    """The algorithm class of a built-in name or ``module:attribute``.

    Raises:
        UserError: there is none, with the nearest name, it cannot be imported, or is no algorithm.
    """
    needs = ("estimates", "loss")
    found: type[Algorithm] = component("algorithm.kind", kind, BUILT_IN, needs, "rlvla3.algorithms.api")
    return found
