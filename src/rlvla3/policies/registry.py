"""Policies by name. Importing this module does not import torch."""

from rlvla3.plugins import resolve
from rlvla3.policies.api import Policy

BUILT_IN = {
    "tiny": "rlvla3.policies.tiny:Tiny",
    "emulated": "rlvla3.policies.emulated:Emulated",
}
"""Name → class."""


def policy_class(kind: str) -> type[Policy]:
    """The policy class of a built-in name or ``module:attribute``.

    Raises:
        UserError: there is none, with the nearest name.
    """
    found: type[Policy] = resolve("policy.kind", kind, BUILT_IN)
    return found
