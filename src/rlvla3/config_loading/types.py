"""What a field's type says about the text that sets it."""

import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

_INTEGER = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|nan)", re.IGNORECASE)
_TRUE = frozenset({"true", "on", "yes"})
_FALSE = frozenset({"false", "off", "no"})
_LISTS = (list, tuple, set, frozenset)


def scalar(text: str) -> Any:
    """A plain scalar without a known type: null, true/false, a number, else text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) < 400 and _INTEGER.fullmatch(text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    special = _SPECIAL.fullmatch(text)
    return float(special[1] + special[2]) if special else text


def members(annotation: Any) -> list[Any]:
    """The alternatives of a type, with Annotated, aliases and unions taken apart."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return members(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [member for arg in get_args(annotation) for member in members(arg)]
    value = getattr(annotation, "__value__", None) or getattr(annotation, "__supertype__", None)
    return [annotation] if value is None else members(value)


def group_models(annotation: Any) -> list[type[BaseModel]]:
    """The settings groups among the alternatives of a type."""
    return [m for m in members(annotation) if isinstance(m, type) and issubclass(m, BaseModel)]


def is_container(member: Any) -> bool:
    """Whether a type holds several values: a list, mapping or group, or Any."""
    kind = get_origin(member) or member
    return member is Any or (
        isinstance(kind, type)
        and issubclass(kind, (*_LISTS, Mapping, BaseModel, Sequence))
        and not issubclass(kind, (str, bytes))
    )


def scalar_for(text: str, annotation: Any) -> Any:
    """A plain scalar read by the type of its field."""
    alternatives = members(annotation)
    guess = scalar(text)
    if guess is None and (type(None) in alternatives or Any in alternatives):
        return None
    literals = [value for m in alternatives if get_origin(m) is Literal for value in get_args(m)]
    kinds = {m for m in alternatives if isinstance(m, type)} | {type(value) for value in literals}
    for value in literals:
        if (type(value), value) in ((type(guess), guess), (str, text)):
            return value
    if bool in kinds and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if type(guess) in kinds or (type(guess) is int and float in kinds):
        return guess
    # A boolean is never a number here: pydantic would take ``true`` for 1.
    as_text = str in kinds or Path in kinds or (isinstance(guess, bool) and Any not in alternatives)
    return text if as_text else guess


def item_type(annotation: Any, index: int) -> Any:
    """Type of one item of a list type; Any where it says nothing."""
    for member in members(annotation):
        args = get_args(member)
        if (get_origin(member) or member) is tuple and args and args[-1] is not Ellipsis:
            return args[index] if index < len(args) else Any
        if is_container(member) and args and not issubclass(get_origin(member), Mapping):
            return args[0]
    return Any


def value_type(annotation: Any) -> Any:
    """Type of the values of a mapping type; Any where it says nothing."""
    for member in members(annotation):
        origin = get_origin(member)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return get_args(member)[1]
    return Any


def is_list(annotation: Any) -> bool:
    """Whether a type admits a list."""
    return any((get_origin(m) or m) in (*_LISTS, Sequence) for m in members(annotation))


def type_name(annotation: Any) -> str:
    """A type as documentation shows it, such as ``int | 'auto'``."""
    return " | ".join(dict.fromkeys(_name(member) for member in members(annotation)))


def _name(member: Any) -> str:
    if member is type(None):
        return "null"
    args = get_args(member)
    if get_origin(member) is Literal:
        return " | ".join(repr(value) for value in args)
    name = getattr(get_origin(member) or member, "__name__", str(member))
    inner = ", ".join(type_name(arg) for arg in args if arg is not Ellipsis)
    return f"{name}[{inner}]" if inner else str(name)
