"""From a recipe and overrides to a frozen, validated settings object, and back to YAML.

A scalar is read by the type of its field: ``off`` stays text for a text field and is False for
a boolean, ``3e-5`` is a number. Every fault becomes one line naming file, field, rule, value
and remedy; all faults are reported together.

A group whose sub-tree depends on another field defines a class method
``option_types(values) -> {field: Settings class}``; ``values`` holds its other fields as given.
Its own validator calls ``options`` to build them, so that their faults carry the full path.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rlvla3.config_loading.description import FieldRow, describe, undocumented
from rlvla3.config_loading.dropping import dropped
from rlvla3.config_loading.dumping import dump
from rlvla3.config_loading.faults import OptionsError, explain
from rlvla3.config_loading.resolver import Resolver
from rlvla3.config_loading.trees import Branch, did_you_mean, override, parse, read, recipe_names
from rlvla3.errors import UserError

__all__ = [
    "Branch",
    "FieldRow",
    "OptionsError",
    "build",
    "describe",
    "did_you_mean",
    "dropped",
    "dump",
    "load",
    "options",
    "override",
    "parse",
    "recipe_names",
    "undocumented",
]

M = TypeVar("M", bound=BaseModel)


def load(
    model: type[M],
    source: str | Path,
    overrides: Sequence[str],
    recipes: Path,
    renamed: Mapping[str, str] | None = None,
) -> M:
    """Read a recipe (a name in ``recipes`` or a path), apply overrides, validate.

    Args:
        model: the settings class of the whole tree.
        source: recipe name or path of a YAML file.
        overrides: ``path=value`` texts; the value is read by the field's type.
        recipes: folder of the shipped recipes.
        renamed: old dotted path -> new dotted path; an old key fails with the new name.

    Raises:
        UserError: one line for each fault.
    """
    return build(model, override(read(source, recipes), overrides), str(source), renamed or {})


def build(model: type[M], tree: Branch, name: str, renamed: Mapping[str, str]) -> M:
    """Validate a merged tree; ``name`` stands for the file where a fault has no line of its own."""
    resolver = Resolver(renamed=renamed, paths=[row.path for row in describe(model)])
    data = resolver.value(tree, model, (), None)
    try:
        result = model.model_validate(data)
    except ValidationError as error:
        resolver.problems += explain(error, model, tree, name, resolver.broken)
        result = None
    except UserError as error:
        resolver.problems.append(f"{name}: {error}")
        result = None
    if resolver.problems:
        raise UserError("\n".join(dict.fromkeys(resolver.problems)))
    assert result is not None
    return result


def options(model: type[M], values: Mapping[str, Any], name: str = "options") -> M:
    """Build the options of a group's kind, inside the group's validator.

    Args:
        model: the settings class of the options.
        values: what the recipe gives for them.
        name: the group's field that holds them.

    Raises:
        OptionsError: a ValueError that `load` reports as faults of the single options.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise OptionsError(name, model, error) from error
