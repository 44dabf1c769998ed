"""Which layers get adapters, by their names. Importing this module does not import torch."""

import re
from collections.abc import Collection, Mapping, Sequence

from rlvla3.errors import UserError
from rlvla3.policies.settings import LoraSettings

_SHOWN = 5


def choose_named(layers: Mapping[str, bool], settings: LoraSettings) -> list[str]:
    """Names of the layers that get adapters, of a policy that names its layers (``api.NamesLayers``).

    Raises:
        UserError: as for ``choose``.
    """
    open_to = [name for name, trains in layers.items() if trains]
    return choose(layers, [n for n in open_to if not _found(settings.train, f"{n}.weight")], settings)


def choose(layers: Collection[str], open_to: Collection[str], settings: LoraSettings) -> list[str]:
    """Names of the layers that get adapters.

    Args:
        layers: all linear layers of a model.
        open_to: those whose weight would train and may have adapters.
        settings: of the adapters.

    Raises:
        UserError: a target is none of them.
    """
    if not settings.targets:
        chosen = [n for n in layers if n in open_to and not _found(settings.train, f"{n}.weight")]
        if not chosen:
            raise UserError(
                "policy.lora.rank: no linear layer is left that would train and could have an adapter; set "
                "policy.lora.targets, or policy.lora.rank=0"
            )
        return chosen
    for pattern in settings.targets:
        matched = [name for name in layers if re.search(pattern, name)]
        if not any(name in open_to for name in matched):
            why = f"only layers that do not train, or that train whole ({some(matched)})" if matched else ""
            raise UserError(
                f"policy.lora.targets: {pattern!r} matches {why or 'no linear layer'}; "
                f"layers to choose from: {some(open_to)}"
            )
    return [name for name in layers if name in open_to and _found(settings.targets, name)]


def matching(names: Collection[str], patterns: Sequence[str], setting: str) -> list[str]:
    """The names in which a pattern is found.

    Raises:
        UserError: a pattern is found in none of them.
    """
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise UserError(
                f"{setting}: {pattern!r} matches no parameter that may train; such are {some(names)}"
            )
    return [name for name in names if _found(patterns, name)]


def _found(patterns: Sequence[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def some(names: Collection[str]) -> str:
    """The first of some names."""
    shown = ", ".join(list(names)[:_SHOWN])
    return shown + (", …" if len(names) > _SHOWN else "") if names else "none"
