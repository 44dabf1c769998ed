"""What a recipe sets and an override leaves out without naming it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlvla3.config_loading.trees import TAG, TAGGED, Branch, Items, Leaf, Tree, leaves, read, split


def dropped(source: str | Path, overrides: Sequence[str], recipes: Path) -> list[str]:
    """A line for each override of a kind that drops options of the recipe, which were of another kind.

    Options that overrides set again are not dropped. ``source``, ``recipes``: as for ``load``.

    Raises:
        UserError: as for ``load``, of the recipe and of what is no override.
    """
    tree = read(source, recipes)
    pairs = [split(text) for text in overrides]
    given = {".".join(path) for path, _ in pairs}
    found = []
    for path, kind in pairs:
        group, name = _at(tree, path[:-1]), ".".join(path[:-1])
        if path[-1] != TAG or not isinstance(group, Branch):
            continue
        former, lost = group.entries.get(TAG), list(_lost(group, f"{name}.{TAGGED}.", given))
        if isinstance(former, Leaf) and former.text != kind and lost:
            found.append(
                f"{name}.{TAG}={kind} leaves out what {source} sets for the kind {former.text}: "
                f"{', '.join(lost)}; give again what should hold"
            )
    return found


def _lost(group: Branch, prefix: str, given: set[str]) -> Iterator[str]:
    options = group.entries.get(TAGGED)
    if isinstance(options, Branch):
        for key, value in leaves(options, prefix):
            if key not in given:
                yield f"{key}={_text(value)}"


def _at(tree: Tree, path: Sequence[str]) -> Tree | None:
    at: Tree | None = tree
    for key in path:
        at = at.entries.get(key) if isinstance(at, Branch) else None
    return at


def _text(value: Tree) -> str:
    if isinstance(value, Leaf):
        return value.text
    return f"[{', '.join(map(_text, value.values))}]" if isinstance(value, Items) else "{}"
