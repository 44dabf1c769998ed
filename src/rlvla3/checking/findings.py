"""What a check finds."""

from dataclasses import dataclass


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
