"""What an environment's ``info`` says, by the settings that name its entries."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlvla3.errors import UserError
from rlvla3.simulators.gymnasium_observation import entry
from rlvla3.simulators.gymnasium_settings import OWN_REWARD


def number(info: Mapping[str, Any], setting: str, path: str) -> float | None:
    """An entry of ``info``; None where it has none.

    Raises:
        UserError: it is neither a number nor true or false.
    """
    try:
        found = entry(info, path) if path else None
    except (KeyError, IndexError, TypeError):
        return None
    if found is None:
        return None
    try:
        value = np.asarray(found)
        if value.size == 1 and value.dtype.kind in "biuf":
            return float(value.item())
    except ValueError:
        pass
    raise UserError(
        f"simulator.options.{setting} = {path!r}: what this environment's info has there is no single "
        f"number and not true or false ({type(found).__name__}); name an entry that is, or {OWN_REWARD}"
    )


def missing(setting: str, name: str, info: Mapping[str, Any]) -> str:
    """The line for an entry that is not there."""
    return (
        f"simulator.options.{setting} = {name!r}: this environment's info has no such entry; it has "
        f"{', '.join(info) or 'none'}; name one of these, or {OWN_REWARD}"
    )
