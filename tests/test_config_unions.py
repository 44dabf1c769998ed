"""Whatever is written for a setting, what is said of it names the setting as the user wrote it, once."""

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest
from pydantic import BaseModel, Field

from rlvla3.algorithms.registry import BUILT_IN as ALGORITHMS
from rlvla3.config import Config
from rlvla3.config_loading import Branch, build, parse
from rlvla3.config_loading.types import members
from rlvla3.errors import UserError
from rlvla3.learner.registry import BUILT_IN as LEARNERS
from rlvla3.plugins import resolve
from rlvla3.policies.registry import BUILT_IN as POLICIES
from rlvla3.settings import Settings
from rlvla3.simulators.registry import BUILT_IN as SIMULATORS

COMPONENTS = {
    kind: resolve("kind", kind, known).Settings
    for known in (SIMULATORS, POLICIES, LEARNERS, ALGORITHMS)
    for kind in known
}
WRONG = [
    "zz",
    "-7.5",
    "null",
    "[zz]",
    "[[1]]",
    "[{zz: 1}]",
    "{zz: 1}",
    "{zz: [1]}",
    "{zz: {zz: 1}}",
    "{0: 1}",
]
INTERNAL = re.compile(r"\w\[|function-|nullable|\b(str|int|float|bool|tuple|dict|NoneType)\b|Input ")
"""What the validating library calls the alternatives of a type."""


def groups(annotation: Any) -> Iterator[type[Settings]]:
    """All groups of settings within a type, and within those."""
    for member in members(annotation):
        if isinstance(member, type) and issubclass(member, Settings):
            yield member
            for info in member.model_fields.values():
                yield from groups(info.annotation)
        for inner in get_args(member):
            yield from groups(inner)


def has_union(annotation: Any) -> bool:
    alternatives = [member for member in members(annotation) if member is not type(None)]
    inner = [arg for member in alternatives for arg in get_args(member) if not isinstance(arg, str)]
    return len(alternatives) > 1 or any(has_union(arg) for arg in inner if arg is not Ellipsis)


UNIONS = sorted(
    {
        (group.__name__, name): (group, name)
        for model in (Config, *COMPONENTS.values())
        for group in groups(model)
        for name, info in group.model_fields.items()
        if has_union(info.annotation)
    }.values(),
    key=str,
)


def lines(group: type[BaseModel], text: str) -> list[str]:
    tree = parse(text, "a.yaml")
    assert isinstance(tree, Branch)
    try:
        build(group, tree, "a.yaml", {})
    except UserError as error:
        return str(error).splitlines()
    return []


def test_there_are_many() -> None:
    assert len(UNIONS) >= 15


@pytest.mark.parametrize(("group", "name"), UNIONS, ids=lambda part: getattr(part, "__name__", part))
def test_a_wrong_value_of_a_union_is_told_without_internal_names(group: type[Settings], name: str) -> None:
    told = [line for value in WRONG for line in lines(group, f"{name}: {value}")]
    about = [line for line in told if line.split(": ")[1].split(".")[0] == name]
    assert about
    for line in about:
        _, path, rule = line.split(": ", 2)
        assert all(
            part in (name, "zz") or part.isdigit() or part in fields(group, name) for part in path.split(".")
        )
        assert not INTERNAL.search(f"{path}: {rule.partition(' (')[0]}"), line
        assert not rule.startswith((f"{name}:", f"{name} ")), line


def fields(group: type[Settings], name: str) -> set[str]:
    return {key for inner in groups(group.model_fields[name].annotation) for key in inner.model_fields}


class Part(Settings):
    """A group."""

    size: int = 1
    """A number."""


class Whole(Settings):
    """One of each kind of union."""

    part: str | Part = ""
    """One part."""
    parts: dict[str, str | Part] = Field(default={})
    """Parts by name."""
    limit: Literal["none"] | int | tuple[int, ...] = "none"
    """A limit."""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("part: [1]", "part: must be a string or must be a group of 'key: value' settings (One part)"),
        ("part: {size: x}", "part.size: must be an integer, got x (A number)"),
        (
            "parts: {a: [1]}",
            "parts.a: must be a string or must be a group of 'key: value' settings (Parts by",
        ),
        ("limit: x", "limit: must be 'none' or must be an integer or must be a list, got x (A limit)"),
        ("limit: {0: 1}", "limit: it is 'none' and no list; give the whole list"),
        ("limit: [x]", "limit.0: must be an integer, got x (A limit)"),
    ],
)
def test_the_allowed_forms_are_told(text: str, said: str) -> None:
    [line] = lines(Whole, text)
    assert line.startswith(f"a.yaml:1: {said}")
