"""Gives the text of a tree its types."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlvla3.config_loading.trees import COMMAND_LINE, TAG, Branch, Items, Leaf, Tree, did_you_mean, parse
from rlvla3.config_loading.types import (
    group_models,
    is_container,
    is_list,
    item_type,
    members,
    scalar_for,
    value_type,
)
from rlvla3.errors import UserError


@dataclass(slots=True)
class Resolver:
    """Gives every scalar of a tree its type and collects unknown keys."""

    renamed: Mapping[str, str]
    paths: Sequence[str]
    """Dotted paths of all settings, to say where a misplaced key belongs."""
    problems: list[str] = field(default_factory=list)
    broken: set[tuple[str, ...]] = field(default_factory=set)
    """Groups left out of the data, because nothing can be said about them but what is wrong."""

    def value(self, tree: Tree, annotation: Any, path: tuple[str, ...], info: FieldInfo | None) -> Any:
        """Plain Python data for a tree whose field has the type ``annotation``."""
        if isinstance(tree, Leaf):
            return self._leaf(tree, annotation, path)
        if isinstance(tree, Items):
            pairs = enumerate(tree.values)
            return [self.value(v, item_type(annotation, i), (*path, str(i)), None) for i, v in pairs]
        models = group_models(annotation)
        if models:
            return self._group(tree, pick(models, tree), path)
        if is_list(annotation) and info is not None and all(key.isdigit() for key in tree.entries):
            return self._patched(tree, annotation, path, info)
        inner = value_type(annotation)
        return {key: self.value(v, inner, (*path, key), None) for key, v in tree.entries.items()}

    def _leaf(self, leaf: Leaf, annotation: Any, path: tuple[str, ...]) -> Any:
        kinds = members(annotation)
        containers = any(is_container(kind) for kind in kinds)
        if leaf.inline and containers and _looks_structured(leaf.text, str in kinds):
            try:
                return self.value(parse(leaf.text, COMMAND_LINE), annotation, path, None)
            except UserError as error:
                text = str(error).removeprefix(f"{COMMAND_LINE}: ")
                raise UserError(f"{COMMAND_LINE}: {'.'.join(path)}: {text}") from None
        if leaf.is_null and group_models(annotation) and type(None) not in kinds:
            return {}
        return scalar_for(leaf.text, annotation) if leaf.plain else leaf.text

    def _patched(self, tree: Branch, annotation: Any, path: tuple[str, ...], info: FieldInfo) -> Any:
        """Single items set over the field's default list."""
        default = info.get_default(call_default_factory=True) if not info.is_required() else ()
        if not isinstance(default, list | tuple):
            self._problem(tree, path, f"it is {default!r} and no list; give the whole list")
            self.broken.add(path)
            return []
        items = list(default)
        for key, value in tree.entries.items():
            if int(key) >= len(items):
                self._problem(value, (*path, key), f"the list has {len(items)} items; give the whole list")
                continue
            items[int(key)] = self.value(value, item_type(annotation, int(key)), (*path, key), None)
        return items

    def _group(self, tree: Branch, model: type[BaseModel], path: tuple[str, ...]) -> dict[str, Any]:
        fields = model.model_fields
        known = {key: value for key, value in tree.entries.items() if key in fields}
        if model.model_config.get("extra") == "forbid":
            for key in [key for key in tree.entries if key not in fields]:
                self._unknown(tree.entries[key], (*path, key), list(fields))
        chosen: Mapping[str, Any] = {}
        choose = getattr(model, "option_types", None)
        if choose is not None:
            chosen = self._chosen(choose, known, model, path, tree)
        result = {}
        for key, value in known.items():
            annotation = chosen.get(key, fields[key].annotation)
            inner = self.value(value, annotation, (*path, key), fields[key])
            if (*path, key) not in self.broken:
                result[key] = inner
        return result

    def _chosen(
        self,
        choose: Callable[[dict[str, Any]], Mapping[str, Any]],
        known: Mapping[str, Tree],
        model: type[BaseModel],
        path: tuple[str, ...],
        tree: Branch,
    ) -> Mapping[str, Any]:
        leaves = {key: value for key, value in known.items() if isinstance(value, Leaf)}
        values = {
            k: i.get_default(call_default_factory=True)
            for k, i in model.model_fields.items()
            if not i.is_required()
        }
        values |= {k: self._leaf(v, model.model_fields[k].annotation, (*path, k)) for k, v in leaves.items()}
        try:
            return choose(values)
        except UserError as error:
            at = (*path, TAG)
            text = str(error).removeprefix(f"{'.'.join(at)} = ")
            self._problem(known.get(TAG, tree), at, text)
            self.broken.add(path)
            return {}
        except (ValueError, KeyError):
            return {}  # the group's own validator reports it

    def _unknown(self, tree: Tree, path: tuple[str, ...], known: list[str]) -> None:
        dotted = ".".join(path)
        if dotted in self.renamed:
            self._problem(tree, path, f"it is now '{self.renamed[dotted]}'; rename it")
            return
        former = [old.removeprefix(f"{dotted}.") for old in self.renamed if old.startswith(f"{dotted}.")]
        if former and isinstance(tree, Branch):
            for key, value in tree.entries.items():
                self._unknown(value, (*path, key), former)
            return
        hint = did_you_mean(path[-1], known)
        elsewhere = [p for p in self.paths if p.rpartition(".")[2] == path[-1] and p != dotted]
        if elsewhere and not hint.startswith("did"):
            hint = "did you mean " + " or ".join(f"'{other}'" for other in elsewhere[:3]) + "?"
        self._problem(tree, path, f"unknown key; {hint}")

    def _problem(self, tree: Tree, path: tuple[str, ...], text: str) -> None:
        self.problems.append(f"{tree.source}: {'.'.join(path)}: {text}")


def _looks_structured(text: str, text_allowed: bool) -> bool:
    """Whether an override's text is a list, mapping or quoted text rather than one plain word."""
    stripped = text.lstrip()
    return stripped[:1] in ("[", "{") or (not text_allowed and stripped[:1] in ("'", '"'))


def pick(models: list[type[BaseModel]], tree: Branch) -> type[BaseModel]:
    """Of a union of models, the one whose literal fields and keys fit best."""

    def fit(model: type[BaseModel]) -> int:
        score = 0
        for key, value in tree.entries.items():
            info = model.model_fields.get(key)
            score += 1 if info else -1
            if info and isinstance(value, Leaf) and get_origin(info.annotation) is Literal:
                score += 100 if value.text in map(str, get_args(info.annotation)) else -100
        return score

    return max(models, key=fit)
