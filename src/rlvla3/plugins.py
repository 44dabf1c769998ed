"""Looking a component up by its built-in name or as ``module:attribute``."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from rlvla3.errors import UserError


def resolve(what: str, kind: str, built_in: Mapping[str, str]) -> Any:
    """The attribute that ``kind`` names.

    Args:
        what: the setting, for messages, such as ``policy.kind``.
        kind: a key of ``built_in`` or ``module:attribute``.
        built_in: name → ``module:attribute``.

    Raises:
        UserError: unknown name (with the nearest one), module or attribute.
    """
    target = built_in.get(kind, kind)
    module_name, colon, attribute = target.partition(":")
    if not colon:
        near = difflib.get_close_matches(kind, built_in, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"{what} = {kind!r} is unknown; {hint}valid: {', '.join(built_in)}, or your own module:attribute"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{what} = {kind!r}: no module {error.name!r}; install it or correct the name"
        ) from error
    if not hasattr(module, attribute):
        raise UserError(f"{what} = {kind!r}: module {module_name!r} has no attribute {attribute!r}")
    return getattr(module, attribute)
