"""Describes settings classes for the documentation and the command line."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlvla3.config_loading.types import group_models, type_name


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One setting: dotted path, type, default (``required`` if none) and documentation."""

    path: str
    type: str
    default: str
    doc: str


def describe(model: type[BaseModel], prefix: str = "") -> list[FieldRow]:
    """All settings of a tree, depth first; groups are expanded and have no row themselves."""
    return list(_rows(model, prefix, ()))


def undocumented(model: type[BaseModel]) -> list[str]:
    """Paths of the settings without a docstring; a test asserts that there are none."""
    return [row.path for row in describe(model) if not row.doc]


def _rows(model: type[BaseModel], prefix: str, outer: tuple[type[BaseModel], ...]) -> Iterator[FieldRow]:
    for name, info in model.model_fields.items():
        path = f"{prefix}{name}"
        groups = [group for group in group_models(info.annotation) if group not in outer]
        if not groups:
            doc = " ".join((info.description or "").split())
            yield FieldRow(path=path, type=type_name(info.annotation), default=_default(info), doc=doc)
        for group in groups:
            yield from _rows(group, f"{path}.", (*outer, model))


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value: Any = info.get_default(call_default_factory=True)
    if isinstance(value, tuple):
        value = list(value)
    return str(value) if not isinstance(value, str) else value or "''"
