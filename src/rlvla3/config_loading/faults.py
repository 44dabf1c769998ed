"""Turns validation errors into one line each: file, field, rule, value, remedy."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rlvla3.config_loading.resolver import pick
from rlvla3.config_loading.trees import COMMAND_LINE, Branch, Items, Leaf, Tree, did_you_mean, leaves
from rlvla3.config_loading.types import group_models, item_type, members, value_type


class OptionsError(ValueError):
    """The options of a group are not what its kind wants; reported as faults of their fields.

    ``name``: the dotted path of the options within the group.
    """

    def __init__(self, name: str, model: type[BaseModel], error: ValidationError) -> None:
        super().__init__(f"{name}: {error.error_count()} faults")
        self.name = name
        self.model = model
        self.error = error


def explain(
    error: ValidationError,
    model: type[BaseModel],
    tree: Branch,
    name: str,
    reported: Set[tuple[str, ...]] = frozenset(),
) -> Iterator[str]:
    """One line for each field at fault, and for each line that a rule of ours says, except in groups whose
    fault is ``reported`` already."""
    found: dict[tuple[str, ...], list[str]] = {}
    docs: dict[tuple[str, ...], str] = {}
    own: dict[tuple[str, ...], bool] = {}
    for path, text, doc, ours in _flatten(error, model, tree, ()):
        found.setdefault(path, []).append(text)
        docs[path], own[path] = doc, ours
    for path, texts in found.items():
        if any(path[: len(group)] == group for group in reported):
            continue
        rules = " or ".join(dict.fromkeys(texts))
        if any(_is_below(other, path) for other in found):
            # Of a list with an item at fault nothing else is known: items at fault are not counted, and what
            # else might have stood in its place was not meant.
            continue
        value = _find(tree, path)
        got = (
            f", got {_shown(value)}"
            if isinstance(value, Leaf) and not (own[path] and _tells(rules, value))
            else ""
        )
        remedy = f" ({docs[path]})" if docs[path] else ""
        dotted = f"{'.'.join(path)}: " if path else ""
        for rule in rules.splitlines():
            yield f"{_place(tree, path, name, rule)}: {dotted}{rule}{got}{remedy}"


def located_rules(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Path, and rule with documentation, of each fault in values whose text is not known."""
    for item in error.errors(include_url=False):
        path = _path(item["loc"], model, None)
        if path is not None:
            doc = _doc(model, path)
            yield path, _rule(item, model) + (f" ({doc})" if doc else "")


def _tells(rules: str, leaf: Leaf) -> bool:
    """Whether rules of ours say themselves what they got."""
    return "got " in rules or "".join(leaf.text.split()) in "".join(rules.split())


def _is_below(path: tuple[str, ...], above: tuple[str, ...]) -> bool:
    return len(path) > len(above) and path[: len(above)] == above


def _flatten(
    error: ValidationError, model: type[BaseModel], tree: Tree | None, prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str, str, bool]]:
    """Path, rule, documentation, and whether the rule is of ours and not pydantic's."""
    for item in error.errors(include_url=False):
        inner = _path(item["loc"], model, tree)
        if inner is None:
            continue
        path = (*prefix, *inner)
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, OptionsError):
            name = tuple(cause.name.split("."))
            options = _find(tree, (*inner, *name))
            yield from _flatten(cause.error, cause.model, options, (*path, *name))
        else:
            yield path, _rule(item, model), _doc(model, inner), item["type"] == "value_error"


def _path(loc: tuple[str | int, ...], model: type[BaseModel], tree: Tree | None) -> tuple[str, ...] | None:
    """A location without the names of union alternatives that pydantic puts into it.

    None: a fault of an alternative that was not meant.
    """
    parts: list[str] = []
    annotation: Any = model
    for element in loc:
        groups = group_models(annotation)
        if groups and element in {group.__name__ for group in groups}:
            at = _find(tree, tuple(parts))
            if at is not None and not isinstance(at, Branch) and _has_others(annotation, groups):
                return tuple(parts) if element is loc[-1] else None
            meant = pick(groups, at) if isinstance(at, Branch) else groups[0]
            if meant.__name__ != element:
                return None
            annotation = meant
            continue
        known = {name for group in groups for name in group.model_fields}
        if groups and element not in known and _has_others(annotation, groups):
            if isinstance(_find(tree, tuple(parts)), Branch):
                return None
            continue
        if groups:
            infos = [g.model_fields[str(element)] for g in groups if element in g.model_fields]
            annotation = infos[0].annotation if infos else Any
        elif isinstance(element, int):
            annotation = item_type(annotation, element)
        elif _is_branch_name(element, annotation):
            continue
        else:
            annotation = value_type(annotation)
        parts.append(str(element))
    return tuple(parts)


def _has_others(annotation: Any, groups: Sequence[type[BaseModel]]) -> bool:
    """Whether a union has alternatives that are no groups of settings."""
    return any(member not in groups and member is not type(None) for member in members(annotation))


def _is_branch_name(element: str, annotation: Any) -> bool:
    """Whether an element names an alternative of a union, such as ``int`` or ``literal['a']``."""
    if annotation is Any:
        return False
    has_map = any(
        isinstance(get_origin(m), type) and issubclass(get_origin(m), Mapping) for m in members(annotation)
    )
    return not has_map or "[" in element


def _rule(item: Any, model: type[BaseModel]) -> str:
    kind, text = item["type"], str(item["msg"])
    if kind == "missing":
        return "must be given"
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        near = did_you_mean(str(item["input"]), options)
        return f"must be {item['ctx']['expected']}" + (f"; {near}" if near.startswith("did") else "")
    if kind in ("bool_parsing", "bool_type"):
        return "must be true or false"
    if kind == "extra_forbidden":
        known = tuple(model.model_fields) if len(item["loc"]) == 1 else ()
        return f"unknown key; {did_you_mean(str(item['loc'][-1]), known) if known else 'remove it'}"
    if kind in ("value_error", "assertion_error"):
        return _unnamed(text.partition(", ")[2] or text, item["loc"])
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return "must be a group of 'key: value' settings"
    text = re.sub(r", (unable to parse|got a number).*", "", text)
    text = re.sub(r"\b(List|Tuple|Set|String|Dictionary|Value|Data) should ", "must ", text)
    text = re.sub(r" after validation, not (\d+)", r", it has \1", text)
    return (
        text.replace("Input should be", "must be")
        .replace("a valid tuple", "a list")
        .replace("a valid dictionary", "a mapping")
        .replace("a valid ", "a ")
        .replace("a integer", "an integer")
        .replace("Input ", "must be ")
    )


def _unnamed(text: str, loc: tuple[str | int, ...]) -> str:
    """A rule of ours without the name of its field at its beginning, which the path tells already."""
    name = re.escape(str(loc[-1])) if loc else ""
    return re.sub(rf"^{name}(: | (?=must\b))", "", text) if name else text


def _find(tree: Tree | None, path: tuple[str, ...]) -> Tree | None:
    at = tree
    for key in path:
        if isinstance(at, Branch):
            at = at.entries.get(key)
        elif isinstance(at, Items):
            at = at.values[int(key)] if key.isdigit() and int(key) < len(at.values) else None
        else:
            return at
    return at


def _place(tree: Tree, path: tuple[str, ...], name: str, rules: str) -> str:
    """Where to look: at the settings that a rule of a whole group speaks of (those of the command line
    first, then those of the recipe that was given, then those that it extends); else where the deepest
    part of the path that is given was written."""
    at = _find(tree, path)
    if isinstance(at, Branch):
        spoken = [value.source for key, value in leaves(at) if _speaks_of(rules, key)]
        if spoken:
            given = tree.source.rpartition(":")[0]
            ranks = {COMMAND_LINE: 0, given: 1}
            return min(spoken, key=lambda source: ranks.get(source, ranks.get(source.rpartition(":")[0], 2)))
    for length in range(len(path), 0, -1):
        at = _find(tree, path[:length])
        if at is not None:
            return at.source
    return name


def _speaks_of(rules: str, key: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.]\w)(?!\w)", rules) is not None


def _shown(leaf: Leaf) -> str:
    text = leaf.text if leaf.plain and leaf.text and leaf.text.isprintable() else repr(leaf.text)
    return text if len(text) <= 80 else text[:77] + "..."


def _doc(model: type[BaseModel], path: tuple[str, ...]) -> str:
    """The first sentence of a field's documentation."""
    annotation: Any = model
    info: FieldInfo | None = None
    for key in path:
        infos = [m.model_fields[key] for m in group_models(annotation) if key in m.model_fields]
        if not infos:
            annotation, info = (item_type(annotation, 0) if key.isdigit() else Any), info
            continue
        info = infos[0]
        annotation = info.annotation
    text = " ".join((info.description or "").split()) if info else ""
    return re.split(r"(?<=[.;])\s", text, maxsplit=1)[0].rstrip(".;")
