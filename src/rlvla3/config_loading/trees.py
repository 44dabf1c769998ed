"""Recipe files as trees: every value keeps its text and the place where it was written.

YAML 1.1 turns ``off`` into a boolean and leaves ``3e-5`` a text. So nothing is interpreted
here: scalars stay text until the type of the field that they set is known (`config_loading`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rlvla3.errors import UserError, near_names

COMMAND_LINE = "command line"
"""The source of an override."""
TAG, TAGGED = "kind", "options"
"""A group's ``options`` belong to its ``kind``: another kind drops the options merged so far."""
_MAX_DEPTH = 40
_STANDARD_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "seq", "map"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One scalar as it was written."""

    text: str
    plain: bool
    """Written without quotes, so that its type follows from the field."""
    source: str
    """``file:line`` or the command line."""

    @property
    def inline(self) -> bool:
        """The whole value of an override, which may still be a list or a mapping."""
        return self.plain and self.source == COMMAND_LINE

    @property
    def is_null(self) -> bool:
        """Whether it stands for "nothing"."""
        return self.plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list."""

    values: "tuple[Tree, ...]"
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A mapping."""

    entries: "dict[str, Tree]"
    source: str


Tree = Leaf | Items | Branch


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A hint such as ``did you mean 'envs'?``, or all known names where none is near."""
    near = near_names(name, known)
    if near:
        return "did you mean " + " or ".join(f"'{n}'" for n in near) + "?"
    return "known: " + (", ".join(sorted(set(known))) if known else "none")


def parse(text: str, file: str) -> Tree:
    """Read one YAML document.

    Raises:
        UserError: not YAML, a duplicate key, a tag; with file and line.
    """
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark and file != COMMAND_LINE else ""
        what = " ".join(part for part in (error.problem, error.context) if part)
        raise UserError(f"{file}{line}: not valid YAML: {what}") from error
    except RecursionError:
        raise UserError(f"{file}: nested more than {_MAX_DEPTH} deep") from None
    except yaml.YAMLError as error:
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    if node is None:
        return Leaf(text="", plain=True, source=file)
    return _tree(node, file, _source(node, file), 0)


def _source(node: yaml.Node, file: str) -> str:
    return file if file == COMMAND_LINE else f"{file}:{node.start_mark.line + 1}"


def _tree(node: yaml.Node, file: str, source: str, depth: int) -> Tree:
    if depth > _MAX_DEPTH:
        raise UserError(f"{source}: nested more than {_MAX_DEPTH} deep; an alias may contain itself")
    if node.tag not in _STANDARD_TAGS:
        raise UserError(f"{_source(node, file)}: the tag {node.tag} is not supported; remove it")
    if isinstance(node, yaml.ScalarNode):
        return Leaf(text=node.value, plain=node.style is None, source=source)
    if isinstance(node, yaml.SequenceNode):
        values = tuple(_tree(item, file, _source(item, file), depth + 1) for item in node.value)
        return Items(values=values, source=source)
    entries: dict[str, Tree] = {}
    for key, value in node.value:
        where = _source(key, file)
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{where}: a key must be a single word, got a list or a mapping")
        if key.value in entries:
            raise UserError(f"{where}: the key '{key.value}' is given twice; keep one of them")
        entries[key.value] = _tree(value, file, where, depth + 1)
    return Branch(entries=entries, source=source)


def merge(base: Tree, over: Tree) -> Tree:
    """Deep merge: mappings merge, everything else (lists too) is replaced by ``over``."""
    if not (isinstance(base, Branch) and isinstance(over, Branch)):
        return over
    entries = dict(base.entries)
    if _changes_kind(base, over):
        entries.pop(TAGGED, None)
    for key, value in over.entries.items():
        entries[key] = merge(entries[key], value) if key in entries else value
    return Branch(entries=entries, source=over.source)


def _changes_kind(base: Branch, over: Branch) -> bool:
    old, new = base.entries.get(TAG), over.entries.get(TAG)
    return isinstance(old, Leaf) and isinstance(new, Leaf) and old.text != new.text


def leaves(branch: Branch, prefix: str = "") -> Iterator[tuple[str, Tree]]:
    """All settings below a group by ``prefix`` and their dotted path within it, in the order of writing."""
    for key, value in branch.entries.items():
        if isinstance(value, Branch):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def recipe_names(recipes: Path) -> list[str]:
    """Names of the shipped recipes."""
    return sorted(file.stem for file in recipes.glob("*.yaml"))


def find(source: str | Path, recipes: Path, folder: Path | None = None) -> Path:
    """The file of a recipe name, or of a path (relative to ``folder`` where given).

    Raises:
        UserError: there is no such recipe or file, with near names and all names.
    """
    text = str(source)
    named = recipes / f"{text}.yaml"
    is_name = "/" not in text and not text.endswith((".yaml", ".yml"))
    if is_name and named.is_file():
        return named
    path = (folder or Path()) / text
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: is no regular file; give a YAML file or a recipe")
    names = recipe_names(recipes)
    if is_name:
        near = near_names(text, names, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError(
            f"recipe '{text}': no such recipe or file; {hint}recipes: {', '.join(names) or 'none'}"
        )
    raise UserError(f"{path}: no such file; give a path to a YAML file or a recipe: {', '.join(names)}")


def read(source: str | Path, recipes: Path) -> Branch:
    """Read a recipe with all that it ``extends``, merged.

    Raises:
        UserError: a file is missing or unreadable, or recipes extend one another in a circle.
    """
    return _read(find(source, recipes), recipes, ())


def _read(file: Path, recipes: Path, chain: tuple[Path, ...]) -> Branch:
    resolved = file.resolve()
    if resolved in chain:
        names = " -> ".join(path.stem for path in (*chain, resolved))
        raise UserError(f"{file}: recipes extend one another in a circle: {names}; remove one 'extends'")
    tree = _read_one(file)
    base = tree.entries.pop("extends", None)
    if base is None:
        return tree
    if not isinstance(base, Leaf):
        raise UserError(f"{base.source}: extends: must be one recipe name or path, got a list or mapping")
    try:
        parent = find(base.text, recipes, None if (recipes / f"{base.text}.yaml").is_file() else file.parent)
    except UserError as error:
        raise UserError(f"{base.source}: extends: {error}") from None
    merged = merge(_read(parent, recipes, (*chain, resolved)), tree)
    assert isinstance(merged, Branch)
    return merged


def _read_one(file: Path) -> Branch:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text at byte {error.start}; save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    tree = parse(text, str(file))
    if isinstance(tree, Leaf) and tree.is_null:
        raise UserError(f"{file}: is empty; a recipe has 'key: value' lines, such as 'extends: reach'")
    if not isinstance(tree, Branch):
        raise UserError(f"{tree.source}: a recipe must be a mapping of 'key: value' lines")
    return tree


def override(tree: Branch, overrides: Sequence[str]) -> Branch:
    """Apply ``a.b.c=value`` texts; the kinds of groups first, so that the order does not matter.

    Raises:
        UserError: not ``path=value``, or a path through a single value or past a list's end.
    """
    pairs = [split(text) for text in overrides]
    pairs.sort(key=lambda pair: pair[0][-1] != TAG)
    result: Tree = tree
    for path, text in pairs:
        leaf = Leaf(text=text, plain=True, source=COMMAND_LINE)
        result = _put(result, path, leaf, ".".join(path))
    assert isinstance(result, Branch)
    return result


def split(text: str) -> tuple[tuple[str, ...], str]:
    """The path and the value of an override.

    Raises:
        UserError: it is not ``path=value``.
    """
    path, equals, value = text.partition("=")
    parts = tuple(part.strip() for part in path.split("."))
    if not equals or not all(parts):
        raise UserError(f"{COMMAND_LINE}: an override must be path=value like trainer.batch=64, got '{text}'")
    return parts, value


def _put(tree: Tree, path: tuple[str, ...], leaf: Leaf, full: str) -> Tree:
    if not path:
        return leaf
    key, rest = path[0], path[1:]
    if isinstance(tree, Leaf) and not tree.is_null and tree.inline:
        tree = parse(tree.text, COMMAND_LINE)
    if isinstance(tree, Items):
        if not (key.isdigit() and int(key) < len(tree.values)):
            raise UserError(
                f"{COMMAND_LINE}: {full}: '{key}' must be an index below {len(tree.values)} of the list;"
                " give the whole list to change its length"
            )
        values = list(tree.values)
        values[int(key)] = _put(values[int(key)], rest, leaf, full)
        return replace(tree, values=tuple(values))
    if isinstance(tree, Leaf):
        if not tree.is_null:
            raise UserError(
                f"{COMMAND_LINE}: {full}: '{key}' lies inside a single value, '{tree.text}'; leave it out"
            )
        tree = Branch(entries={}, source=COMMAND_LINE)
    empty = Leaf(text="", plain=True, source=COMMAND_LINE)
    new = Branch(entries={key: _put(tree.entries.get(key, empty), rest, leaf, full)}, source=tree.source)
    dropped = {TAGGED} if key == TAG and not rest and _changes_kind(tree, new) else set()
    kept = {name: value for name, value in tree.entries.items() if name not in dropped}
    return replace(tree, entries=kept | new.entries)
