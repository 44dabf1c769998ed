"""Recipes, overrides, faults in one line, and the way back to YAML."""

from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from rlvla3.config_loading import describe, dropped, dump, load, options, undocumented
from rlvla3.errors import UserError
from rlvla3.settings import Settings


class FastOptions(Settings):
    """Options of the kind ``fast``."""

    speed: float = 1.0
    """Steps per second."""
    label: str = ""
    """Free text."""


class SlowOptions(Settings):
    """Options of the kind ``slow``."""

    delay_ms: float = Field(5.0, gt=0)
    """Delay of each step."""


KINDS: dict[str, type[Settings]] = {"fast": FastOptions, "slow": SlowOptions}


class Simulator(Settings):
    """A group whose options depend on its kind."""

    kind: str = "fast"
    """Which simulator."""
    envs: int = Field(4, gt=0)
    """Number of envs."""
    options: dict[str, Any] = Field(default={})
    """Options of the kind."""

    @classmethod
    def option_types(cls, values: dict[str, Any]) -> dict[str, Any]:
        if values["kind"] == "absent":
            raise UserError("simulator.kind = 'absent' is unknown; use fast or slow")
        return {"options": KINDS[values["kind"]]}

    @model_validator(mode="after")
    def _check(self) -> "Simulator":
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {sorted(KINDS)}, got '{self.kind}'")
        options(KINDS[self.kind], self.options)
        return self


class Constant(Settings):
    """One alternative of a union."""

    shape: Literal["constant"] = "constant"
    """Tag."""
    rate: float = 1e-3
    """The rate."""


class Cosine(Settings):
    """Another alternative."""

    shape: Literal["cosine"] = "cosine"
    """Tag."""
    rate: float = 1e-3
    """The first rate."""
    floor: float = 0.0
    """The last rate."""


class Trainer(Settings):
    """A plain group."""

    lr: float = 1e-4
    """Learning rate."""
    clip: float | None = 0.2
    """Clip range; null for none."""
    mode: Literal["off", "on", "auto"] = "auto"
    """A word that YAML 1.1 would make a boolean."""
    amp: bool = False
    """Mixed precision."""
    steps: int | Literal["auto"] = "auto"
    """Steps."""
    schedule: Constant | Cosine = Constant()
    """The learning-rate schedule."""


class Tree(Settings):
    """The whole tree."""

    name: str = "run"
    """Name of the run."""
    tasks: tuple[str, ...] = ("push", "reach")
    """Task names."""
    sizes: list[int] = Field(default=[])
    """Slot sizes."""
    weights: dict[str, float] = Field(default={})
    """Weight of each task."""
    folder: Path | None = None
    """Where to write."""
    note: str | None = None
    """Free text."""
    extra: dict[str, Any] = Field(default={})
    """Values of any type."""
    simulator: Simulator = Simulator()
    """The simulator."""
    trainer: Trainer = Trainer()
    """The trainer."""


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    return folder


def write(recipes: Path, name: str, text: str) -> Path:
    file = recipes / f"{name}.yaml"
    file.write_text(text)
    return file


def fault(recipes: Path, *overrides: str, source: str = "a") -> str:
    with pytest.raises(UserError) as caught:
        load(Tree, source, overrides, recipes)
    return str(caught.value)


def test_scalars_follow_the_type_of_their_field(recipes: Path) -> None:
    write(
        recipes,
        "a",
        "name: off\ntasks: [on, 1.10, null]\nweights: {yes: 1e-3}\nfolder: 12\n"
        "trainer: {lr: 3e-5, clip: ~, mode: off, amp: on, steps: 12}\n"
        "simulator: {options: {label: no, speed: 2}}\n",
    )
    tree = load(Tree, "a", (), recipes)
    assert tree.name == "off"
    assert tree.tasks == ("on", "1.10", "null")
    assert tree.weights == {"yes": 1e-3}
    assert tree.folder == Path("12")
    assert tree.trainer == Trainer(lr=3e-5, clip=None, mode="off", amp=True, steps=12)
    assert tree.simulator.options == {"label": "no", "speed": 2}


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("trainer.lr=3e-5", "trainer.lr", 3e-5),
        ("trainer.clip=null", "trainer.clip", None),
        ("trainer.mode=off", "trainer.mode", "off"),
        ("trainer.amp=yes", "trainer.amp", True),
        ("trainer.steps=auto", "trainer.steps", "auto"),
        ("trainer.schedule.floor=0.1", "trainer.schedule", Cosine(floor=0.1)),
        ("name=3e-5", "name", "3e-5"),
        ("name=[a]", "name", "[a]"),
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("tasks=[no, 'yes', 7]", "tasks", ("no", "yes", "7")),
        ("tasks.1=off", "tasks", ("push", "off")),
        ("sizes=[1, 2]", "sizes", [1, 2]),
        ("weights={push: 2}", "weights", {"push": 2.0}),
        ("weights.reach=.5", "weights", {"reach": 0.5}),
        ("folder=/tmp/x", "folder", Path("/tmp/x")),
        ("simulator={envs: 9}", "simulator.envs", 9),
        ("simulator.options.label=off", "simulator.options", {"label": "off"}),
    ],
)
def test_overrides(recipes: Path, override: str, path: str, value: object) -> None:
    write(recipes, "a", "trainer:\n")
    result: object = load(Tree, "a", [override], recipes)
    for key in path.split("."):
        result = getattr(result, key)
    assert result == value


def test_overrides_of_a_given_list_and_of_an_overridden_list(recipes: Path) -> None:
    write(recipes, "a", "sizes: [1, 2, 3]\n")
    assert load(Tree, "a", ["sizes.0=7"], recipes).sizes == [7, 2, 3]
    assert load(Tree, "a", ["sizes=[4, 5]", "sizes.1=6"], recipes).sizes == [4, 6]


def test_extends_merges_deeply_and_replaces_lists(recipes: Path, tmp_path: Path) -> None:
    write(recipes, "base", "sizes: [1, 2]\ntrainer: {lr: 1e-3, clip: 0.1}\n")
    write(recipes, "middle", "extends: base\ntrainer: {clip: 0.3}\n")
    own = tmp_path / "own.yaml"
    own.write_text("extends: recipes/middle.yaml\nsizes: [9]\n")
    tree = load(Tree, own, (), recipes)
    assert (tree.sizes, tree.trainer.lr, tree.trainer.clip) == ([9], 1e-3, 0.3)


def test_another_kind_drops_inherited_options(recipes: Path) -> None:
    write(recipes, "base", "simulator: {kind: fast, envs: 7, options: {speed: 3}}\n")
    write(recipes, "a", "extends: base\nsimulator: {kind: slow}\n")
    tree = load(Tree, "a", (), recipes)
    assert (tree.simulator.envs, tree.simulator.options) == (7, {})
    overrides = ["simulator.options.delay_ms=2", "simulator.kind=slow"]
    assert load(Tree, "base", overrides, recipes).simulator.options == {"delay_ms": 2}


@pytest.mark.parametrize(
    ("overrides", "lost"),
    [
        (["simulator.kind=slow"], "simulator.options.speed=3, simulator.options.label=[a, b]"),
        (["simulator.kind=slow", "simulator.options.speed=4"], "simulator.options.label=[a, b]"),
        (["simulator.kind=slow", "simulator.options.speed=4", "simulator.options.label=x"], ""),
        (["simulator.kind=fast"], ""),
        (["simulator.envs=3", "trainer.lr=1"], ""),
        (["trainer.kind=slow", "nowhere.kind=slow"], ""),
    ],
)
def test_an_override_of_a_kind_tells_what_it_drops(recipes: Path, overrides: list[str], lost: str) -> None:
    write(recipes, "base", "simulator: {kind: fast, options: {speed: 3, label: [a, 'b']}}\n")
    write(recipes, "a", "extends: base\nsimulator: {envs: 3}\n")
    told = (
        f"simulator.kind=slow leaves out what a sets for the kind fast: {lost}; give again what should hold"
    )
    assert dropped("a", overrides, recipes) == ([told] if lost else [])


def test_missing_recipe_lists_near_and_all_names(recipes: Path) -> None:
    write(recipes, "metaworld", "")
    write(recipes, "synthetic", "")
    assert fault(recipes, source="metawrld") == (
        "recipe 'metawrld': no such recipe or file; did you mean metaworld? recipes: metaworld, synthetic"
    )
    assert "x/y.yaml: no such file" in fault(recipes, source="x/y.yaml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: a\nname: b\n", "a.yaml:2: the key 'name' is given twice; keep one of them"),
        ("trainer:\n  lr: [1\n", "a.yaml:3: not valid YAML"),
        ("- 1\n", "a.yaml:1: a recipe must be a mapping"),
        ("name: !!python/object:os.system x\n", "a.yaml:1: the tag tag:yaml.org,2002:python/object"),
        ("sizes: &x [*x]\n", "nested more than 40 deep"),
        ("trainer:\n  lrr: 1\n", "a.yaml:2: trainer.lrr: unknown key; did you mean 'lr'?"),
        ("lr: 1\n", "a.yaml:1: lr: unknown key; did you mean 'trainer.lr'?"),
        (
            "simulator:\n  envs: -3\n",
            "a.yaml:2: simulator.envs: must be greater than 0, got -3 (Number of envs)",
        ),
        (
            "simulator: {envs: true}\n",
            "a.yaml:1: simulator.envs: must be an integer, got true (Number of envs)",
        ),
        ("trainer: {lr: fast}\n", "a.yaml:1: trainer.lr: must be a number, got fast (Learning rate)"),
        ("trainer: 3\n", "a.yaml:1: trainer: must be a group of 'key: value' settings, got 3 (The trainer)"),
        ("trainer: {mode: of}\n", "must be 'off', 'on' or 'auto'; did you mean 'off'?, got of"),
        ("sizes: [1, x]\n", "a.yaml:1: sizes.1: must be an integer, got x"),
        ("simulator: {options: {sped: 1}}\n", "simulator.options.sped: unknown key; did you mean 'speed'?"),
        (
            "simulator: {kind: slow, options: {delay_ms: 0}}\n",
            "a.yaml:1: simulator.options.delay_ms: must be greater than 0, got 0",
        ),
        ("simulator: {kind: fas}\n", "simulator: kind must be one of ['fast', 'slow'], got 'fas'"),
        (
            "trainer: {steps: many}\n",
            "a.yaml:1: trainer.steps: must be an integer or must be 'auto', got many (Steps)",
        ),
        (
            "trainer: {schedule: {shape: cosine, rate: x}}\n",
            "a.yaml:1: trainer.schedule.rate: must be a number, got x",
        ),
        (
            "trainer: {schedule: {shape: constant, floor: 1}}\n",
            "a.yaml:1: trainer.schedule.floor: unknown key; known: rate, shape",
        ),
        ("extends: a\n", "recipes extend one another in a circle: a -> a"),
        ("extends: nothing\n", "a.yaml:1: extends: recipe 'nothing': no such recipe"),
        ("extends: [a]\n", "a.yaml:1: extends: must be one recipe name or path"),
    ],
)
def test_faults_are_one_line(recipes: Path, text: str, line: str) -> None:
    write(recipes, "a", text)
    message = fault(recipes)
    assert line in message
    assert "\n" not in message


def test_all_faults_are_listed(recipes: Path) -> None:
    write(recipes, "a", "nam: x\nsimulator: {envs: 0}\ntrainer: {lr: x}\n")
    assert [line.split(": ")[1] for line in fault(recipes).splitlines()] == [
        "nam",
        "simulator.envs",
        "trainer.lr",
    ]


def test_an_unknown_kind_hides_no_other_fault(recipes: Path) -> None:
    file = write(recipes, "a", "simulator:\n  kind: absent\n  envs: 0\ntrainer: {lr: x}\n")
    assert fault(recipes).splitlines() == [
        f"{file}:2: simulator.kind: 'absent' is unknown; use fast or slow",
        f"{file}:4: trainer.lr: must be a number, got x (Learning rate)",
    ]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("trainer", "command line: an override must be path=value like trainer.batch=64, got 'trainer'"),
        ("trainer.lr=x", "command line: trainer.lr: must be a number, got x (Learning rate)"),
        ("trainer.lrr=1", "command line: trainer.lrr: unknown key; did you mean 'lr'?"),
        ("sizes.5=1", "command line: sizes.5: '5' must be an index below 2 of the list"),
        ("tasks.5=a", "command line: tasks.5: the list has 2 items; give the whole list"),
        ("name.x=1", "command line: name.x: 'x' lies inside a single value, 'n'"),
        ("sizes=[1", "command line: sizes: not valid YAML"),
        ("sizes=5", "command line: sizes: must be a list, got 5 (Slot sizes)"),
    ],
)
def test_override_faults(recipes: Path, override: str, line: str) -> None:
    write(recipes, "a", "sizes: [1, 2]\nname: n\n")
    message = fault(recipes, override)
    assert message.startswith(line)
    assert "\n" not in message


def test_renamed_key_names_the_new_one(recipes: Path) -> None:
    file = write(recipes, "a", "trainer: {learning_rate: 1}\n")
    with pytest.raises(UserError) as caught:
        load(Tree, "a", (), recipes, {"trainer.learning_rate": "trainer.lr"})
    assert str(caught.value) == f"{file}:1: trainer.learning_rate: it is now 'trainer.lr'; rename it"


def test_keys_of_a_group_that_was_renamed_name_the_new_ones(recipes: Path) -> None:
    file = write(recipes, "a", "former:\n  rate: 1\n  rat: 2\n")
    with pytest.raises(UserError) as caught:
        load(Tree, "a", (), recipes, {"former.rate": "trainer.lr"})
    assert str(caught.value).splitlines() == [
        f"{file}:2: former.rate: it is now 'trainer.lr'; rename it",
        f"{file}:3: former.rat: unknown key; did you mean 'rate'?",
    ]


texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(
        [
            "off",
            "null",
            "3e-5",
            "1_000",
            "0x10",
            ".inf",
            "~",
            "true",
            "1:30",
            "- a",
            "a: b",
            "#",
            "2001-01-01",
        ]
    ),
)
integers = st.integers(-(2**63), 2**63 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
anything = st.recursive(
    st.none() | st.booleans() | integers | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


@given(
    name=texts,
    tasks=st.lists(texts, max_size=3).map(tuple),
    sizes=st.lists(integers, max_size=3),
    weights=st.dictionaries(texts, numbers, max_size=3),
    trainer=st.builds(
        Trainer,
        lr=numbers,
        clip=st.none() | numbers,
        mode=st.sampled_from(["off", "on", "auto"]),
        steps=integers | st.just("auto"),
        schedule=st.builds(Constant, rate=numbers) | st.builds(Cosine, floor=numbers),
    ),
    label=texts,
    note=st.none() | texts,
    extra=st.dictionaries(texts, anything, max_size=2),
)
def test_dump_loads_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    tasks: tuple[str, ...],
    sizes: list[int],
    weights: dict[str, float],
    trainer: Trainer,
    label: str,
    note: str | None,
    extra: dict[str, Any],
) -> None:
    tree = Tree(
        name=name,
        tasks=tasks,
        sizes=sizes,
        weights=weights,
        note=note,
        extra=extra,
        trainer=trainer,
        simulator=Simulator(options={"label": label}),
    )
    file = tmp_path_factory.getbasetemp() / "dump.yaml"
    file.write_text(dump(tree), encoding="utf-8", newline="")
    assert load(Tree, file, (), file.parent) == tree


def test_dumped_text_stays_the_same_text(recipes: Path) -> None:
    extra = {"a": "3e-5", "b": "0o7", "c": "off", "d": ["1.", "~", "true"], "e": "\x85"}
    write(recipes, "a", dump(Tree(extra=extra)))
    assert load(Tree, "a", (), recipes).extra == extra


def test_describe() -> None:
    rows = {row.path: row for row in describe(Tree)}
    assert (rows["trainer.lr"].type, rows["trainer.lr"].default) == ("float", "0.0001")
    assert rows["trainer.clip"].doc == "Clip range; null for none."
    assert rows["trainer.steps"].type == "int | 'auto'"
    assert rows["tasks"].default == "['push', 'reach']"
    assert "trainer" not in rows
    assert undocumented(Tree) == []


def test_undocumented_names_the_field() -> None:
    class Bare(Settings):
        known: int = 1
        """Documented."""
        bare: int = 2

    assert undocumented(Bare) == ["bare"]


keys = st.sampled_from(
    ["name", "tasks", "sizes", "weights", "simulator", "trainer", "options", "kind", "extends", "x"]
)
values = st.sampled_from(
    ["1", "off", "-3", "null", "[1, a]", "{a: 1}", "{kind: slow}", "[", "'q", "*x", "&x [*x]", "? b"]
)


@given(
    lines=st.lists(st.tuples(keys, values | st.text(max_size=5)), max_size=3),
    overrides=st.lists(
        st.builds(
            lambda path, value: f"{'.'.join(path)}={value}", st.lists(keys | st.just("0"), max_size=3), values
        ),
        max_size=3,
    ),
)
def test_any_input_loads_or_is_refused_in_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]], overrides: list[str]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in lines), encoding="utf-8", errors="replace")
    try:
        load(Tree, file, overrides, file.parent)
    except UserError as error:
        for line in str(error).splitlines():
            assert line.startswith((str(file), "command line: ")), line
