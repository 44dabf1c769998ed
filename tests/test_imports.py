"""Imports point one way, and heavy packages are imported only where they are needed."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
HEAVY = {
    *("torch", "mujoco", "metaworld", "gymnasium", "av", "ray", "wandb", "tensorboard", "OpenGL"),
    *("libero", "mani_skill", "robosuite", "robocasa", "sapien", "transformers", "rerun"),
}
LAYERS = ("messages", "core", "roles", "runtime", "cli")
"""A part may import the parts left of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """``importer`` imports ``imported``; ``lazy``: not when the module is loaded."""

    importer: str
    imported: str
    lazy: bool
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def within(module: str, *parents: str) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def imports_of(name: str, text: str, is_package: bool = False) -> Iterator[Import]:
    """Every import of a module's text; those only for type checkers are left out."""
    tree = ast.parse(text)
    skipped: set[ast.AST] = set()
    lazy: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {child for statement in node.body for child in ast.walk(statement)}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            lazy |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        for imported in _names(node, name, is_package):
            yield Import(importer=name, imported=imported, lazy=node in lazy, line=getattr(node, "lineno", 0))


def _names(node: ast.AST, name: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = name.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
            base = ".".join([*parts, base]).rstrip(".")
        # ``from package import module`` names the module too.
        return [f"{base}.{alias.name}" for alias in node.names] if base.startswith("rlvla3") else [base]
    called = isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "importlib.import_module",
        "__import__",
    )
    if called and node.args and isinstance(node.args[0], ast.Constant):  # type: ignore[attr-defined]
        return [str(node.args[0].value)]  # type: ignore[attr-defined]
    return []


def modules() -> dict[str, Path]:
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()
IMPORTS = [
    item
    for name, file in MODULES.items()
    for item in imports_of(name, file.read_text(), file.name == "__init__.py")
]


def reachable(start: str, imports: list[Import]) -> set[str]:
    """Everything loaded when ``start`` is imported, with what its functions import later."""
    edges: dict[str, set[str]] = {}
    for item in imports:
        edges.setdefault(item.importer, set()).add(item.imported)
    seen: set[str] = set()
    open_ends = [start]
    while open_ends:
        name = open_ends.pop()
        if name in seen:
            continue
        seen.add(name)
        open_ends += edges.get(name, set())
        open_ends += [name.rpartition(".")[0]] if name.startswith("rlvla3.") else []
    return seen


def outward(package: str) -> list[Import]:
    """What a package imports from other parts of the project."""
    inside = [item for item in IMPORTS if within(item.importer, package)]
    return [i for i in inside if within(i.imported, "rlvla3") and not within(i.imported, package)]


def listed(items: list[Import]) -> str:
    return "\n".join(map(str, items))


def wrong_directions(imports: list[Import]) -> list[Import]:
    """Imports from a part of a later layer."""
    wrong = []
    for item in imports:
        for place, layer in enumerate(LAYERS):
            later = [f"rlvla3.{other}" for other in LAYERS[place + 1 :]]
            if within(item.importer, f"rlvla3.{layer}") and within(item.imported, *later):
                wrong.append(item)
    return wrong


def test_layers_import_only_earlier_layers() -> None:
    wrong = wrong_directions(IMPORTS)
    assert not wrong, listed(wrong)


def test_core_and_messages_are_pure() -> None:
    """The standard library, the messages and what these are made with, so that any runtime can drive
    the engine."""
    allowed = sys.stdlib_module_names | {"msgspec"}
    wrong = [
        item
        for item in IMPORTS
        if within(item.importer, "rlvla3.core", "rlvla3.messages")
        and item.imported.partition(".")[0] not in allowed
        and not within(item.imported, "rlvla3.core", "rlvla3.messages")
    ]
    assert not wrong, listed(wrong)


def test_core_never_reads_a_clock() -> None:
    banned = ("time", "datetime", "random", "threading", "socket", "asyncio", "selectors")
    wrong = [i for i in IMPORTS if within(i.importer, "rlvla3.core") and within(i.imported, *banned)]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize("package", ["policies", "simulators"])
def test_adapters_import_only_the_interface(package: str) -> None:
    own = f"rlvla3.{package}"
    shared = ("rlvla3.messages", "rlvla3.settings", "rlvla3.errors", "rlvla3.plugins", "rlvla3.transforms")
    wrong = [item for item in outward(own) if not within(item.imported, own, *shared)]
    assert not wrong, listed(wrong)


def test_transforms_know_neither_simulators_nor_policies() -> None:
    """N + M files: each side states itself in terms that know neither."""
    allowed = ("rlvla3.messages", "rlvla3.settings", "rlvla3.errors")
    wrong = [item for item in outward("rlvla3.transforms") if not within(item.imported, *allowed)]
    assert not wrong, listed(wrong)
    loaded = {i.imported.partition(".")[0] for i in IMPORTS if within(i.importer, "rlvla3.transforms")}
    assert loaded <= sys.stdlib_module_names | {"rlvla3", "numpy", "pydantic", "msgspec"}


def test_algorithms_are_pure_functions() -> None:
    wrong = [
        item
        for item in outward("rlvla3.algorithms")
        if not within(item.imported, "rlvla3.settings", "rlvla3.errors", "rlvla3.plugins")
    ]
    assert not wrong, listed(wrong)


def test_nobody_imports_the_command_line() -> None:
    wrong = [
        item
        for item in IMPORTS
        if within(item.imported, "rlvla3.cli") and not within(item.importer, "rlvla3.cli", "rlvla3.__main__")
    ]
    assert not wrong, listed(wrong)


MADE_OF_TORCH = ("rlvla3.simulators.maniskill", "rlvla3.simulators.maniskill_scene")
"""Adapters of simulators whose own arrays are tensors."""


def test_simulators_never_import_torch() -> None:
    for name in MODULES:
        if within(name, "rlvla3.simulators", "rlvla3.roles.simulator") and name not in MADE_OF_TORCH:
            assert not [m for m in reachable(name, IMPORTS) if within(m, "torch")], name


TORCH_MODULES = {
    "rlvla3.policies.adapted",
    "rlvla3.policies.blocks.attention",
    "rlvla3.policies.blocks.gemma",
    "rlvla3.policies.blocks.heads",
    "rlvla3.policies.blocks.norms",
    "rlvla3.policies.blocks.siglip",
    "rlvla3.policies.flow",
    "rlvla3.policies.flow_model",
    "rlvla3.policies.lora",
    "rlvla3.policies.pi.modules",
    "rlvla3.policies.pi.network",
    "rlvla3.policies.precision",
    "rlvla3.policies.pretrained.loading",
    "rlvla3.policies.publishing",
    "rlvla3.policies.recomputing",
    "rlvla3.policies.tiny_blocks",
    "rlvla3.policies.tiny_flow",
    "rlvla3.policies.tiny_network",
    "rlvla3.policies.tiny_tokens",
    "rlvla3.policies.tokens",
    "rlvla3.policies.transforms",
}
"""Modules whose whole content is tensors: they may import torch when loaded."""


def test_heavy_packages_are_imported_lazily() -> None:
    wrong = [
        item
        for item in IMPORTS
        if not item.lazy
        and item.imported.partition(".")[0] in HEAVY
        and not (within(item.imported, "torch") and _may_load_torch(item.importer))
    ]
    assert not wrong, listed(wrong)


def _may_load_torch(module: str) -> bool:
    """The learner and the algorithms compute; their interfaces and registries are read by all."""
    if module.rpartition(".")[2] in ("api", "registry"):
        return False
    return within(module, "rlvla3.algorithms", "rlvla3.learner", *TORCH_MODULES)


@pytest.mark.parametrize(
    "start", ["config", "cli", "doctor", "metrics", "runtime.virtual", "roles.controller"]
)
def test_cheap_commands_do_not_load_torch(start: str) -> None:
    """Reading, checking and planning a configuration must not cost torch's second of import."""
    eager = [item for item in IMPORTS if not item.lazy]
    assert not [module for module in reachable(f"rlvla3.{start}", eager) if within(module, "torch")]


def test_the_list_of_torch_modules_is_current() -> None:
    loading = {item.importer for item in IMPORTS if within(item.imported, "torch") and not item.lazy}
    assert loading >= TORCH_MODULES


@pytest.mark.parametrize(
    ("importer", "text", "imported", "lazy"),
    [
        ("rlvla3.core.a", "from rlvla3.roles import simulator", "rlvla3.roles.simulator", False),
        (
            "rlvla3.core.a",
            "from ..roles.simulator import Simulator",
            "rlvla3.roles.simulator.Simulator",
            False,
        ),
        ("rlvla3.core.a", "from . import b", "rlvla3.core.b", False),
        ("rlvla3.core.a", "def f():\n    import torch.nn", "torch.nn", True),
        ("rlvla3.core.a", "try:\n    import torch\nexcept ImportError: ...", "torch", False),
        ("rlvla3.core.a", "import importlib\nx = importlib.import_module('torch')", "torch", False),
        ("rlvla3.core.a", "class A:\n    import torch", "torch", False),
    ],
)
def test_the_reader_sees_every_kind_of_import(importer: str, text: str, imported: str, lazy: bool) -> None:
    assert (imported, lazy) in [(item.imported, item.lazy) for item in imports_of(importer, text)]


def test_the_reader_leaves_type_checking_out() -> None:
    text = "if TYPE_CHECKING:\n    import torch\nelse:\n    import numpy"
    assert [item.imported for item in imports_of("rlvla3.core.a", text)] == ["numpy"]


def test_a_wrong_direction_is_found() -> None:
    text = "from rlvla3.runtime.local import run"
    assert wrong_directions(list(imports_of("rlvla3.core.a", text)))
    assert not wrong_directions(list(imports_of("rlvla3.cli", text)))
