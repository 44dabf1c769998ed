"""What a check finds."""

from dataclasses import dataclass

from rlvla3.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """One number that follows from a configuration. ``note``: how it comes about, or what it means."""

    name: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A setting that has no effect, wastes something or can stall."""

    field: str
    text: str
    """What is so, and what to do."""


def changed(group: Settings, name: str) -> bool:
    """Whether a setting differs from its default; false where there is none of that name."""
    field = type(group).model_fields.get(name)
    return field is not None and bool(group.model_dump()[name] != field.default)
