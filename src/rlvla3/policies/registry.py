"""Policies by name. Importing this module does not import torch."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rlvla3.plugins import component
from rlvla3.policies.api import Policy

BUILT_IN = {
    "tiny": "rlvla3.policies.tiny:Tiny",
    "pi0": "rlvla3.policies.pi.family:Pi0",
    "pi05": "rlvla3.policies.pi.family:Pi05",
    "emulated": "rlvla3.policies.emulated:Emulated",
}
"""Name → class."""


def policy_class(kind: str) -> type[Policy]:
    """The policy class of a built-in name or ``module:attribute``.

    Raises:
        UserError: there is none, with the nearest name, it cannot be imported, or is no policy.
    """
    needs = ("record_spec", "build")
    found: type[Policy] = component("policy.kind", kind, BUILT_IN, needs, "rlvla3.policies.api")
    return found


def weight_shapes(kind: str, settings: Any) -> Mapping[str, Any]:
    """The settings that decide which weights a built-in policy has, as JSON values.

    Empty for a policy of the user's own: its model finds out when it loads them.
    """
    if kind == "tiny":
        from rlvla3.policies.tiny import architecture

        sizes = {name: getattr(settings, name) for name in ("patch", "stem", "text_length")}
        # Named only where it is not the default, so that checkpoints of before it was a setting still match.
        head = {"head": settings.head} if settings.head != "flow" else {}
        return asdict(architecture(settings)) | sizes | head
    if kind in ("pi0", "pi05"):
        noise = {"method": settings.method} if settings.method == "noise" else {}
        return {"size": settings.size, "normalisation": settings.normalisation} | noise
    if kind == "emulated":
        return {"weight_count": settings.weight_count}
    return {}
