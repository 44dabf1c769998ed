"""``rlvla3 settings``."""

from collections.abc import Iterator, Sequence

import typer
from pydantic import BaseModel

from rlvla3.config import Config, load_config
from rlvla3.config_loading import FieldRow, describe, did_you_mean
from rlvla3.errors import UserError


def command(recipe: str, overrides: Sequence[str], prefix: str) -> None:
    """Print every setting of a recipe: path, value in force, type, meaning.

    Raises:
        UserError: no setting begins with ``prefix``.
    """
    config = load_config(recipe, list(overrides))
    found = list(rows(config))
    shown = [row for row in found if row.path.startswith(prefix)]
    if not shown:
        hint = did_you_mean(prefix, [row.path for row in found] + list(Config.model_fields))
        raise UserError(f"--prefix {prefix}: no setting begins so; {hint}")
    for row in shown:
        typer.echo(f"{row.path} = {_value(config, row.path)}    ({row.type})")
        typer.echo(f"    {row.doc}")


def rows(config: Config) -> Iterator[FieldRow]:
    """All settings; those of a component are the ones of its kind."""
    for row in describe(Config):
        options = _value(config, row.path)
        if isinstance(options, BaseModel):
            yield from describe(type(options), f"{row.path}.")
        else:
            yield row


def _value(config: Config, path: str) -> object:
    """The value in force; that of the whole group where it is not one group (none, several, by name)."""
    value: object = config
    for name in path.split("."):
        if not isinstance(value, BaseModel):
            break
        value = getattr(value, name)
    return value
