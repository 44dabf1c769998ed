"""Find a simulator adapter by name, importing only that one."""

import difflib
import importlib
from typing import Any

from rlvla3.errors import UserError

BUILT_IN = {
    "metaworld": "rlvla3.simulators.metaworld:Metaworld",
    "synthetic": "rlvla3.simulators.synthetic:Synthetic",
    "gymnasium": "rlvla3.simulators.gymnasium:Gymnasium",
}
"""Adapters of this package as ``module:attribute``."""


def simulator_class(kind: str) -> Any:
    """The adapter class of a built-in name, or of any ``module:attribute``.

    Raises:
        UserError: unknown name (with the nearest ones), or it cannot be imported.
    """
    path = BUILT_IN.get(kind, kind)
    if ":" not in path:
        close = difflib.get_close_matches(kind, BUILT_IN, n=2)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UserError(
            f"simulator kind {kind!r} is unknown; {hint}use one of {', '.join(BUILT_IN)} or module:attribute"
        )
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"simulator kind {kind!r} cannot be loaded: {error}") from error
    missing = [name for name in ("Settings", "spec", "make", "expert") if not hasattr(found, name)]
    if missing:
        raise UserError(f"simulator kind {kind!r} has no {', '.join(missing)}; see rlvla3.simulators.api")
    return found
