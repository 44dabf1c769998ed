"""What all adapters have in common, without the simulators: limits, repeated entries, what must be there."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from rlvla3.assembly import Assembly
from rlvla3.checking.simulating import simulating
from rlvla3.config import load_config
from rlvla3.elsewhere.answering import answer
from rlvla3.elsewhere.asking import Question, Refusal
from rlvla3.errors import UserError
from rlvla3.simulators import robocasa_package
from rlvla3.simulators.gymnasium_settings import GymnasiumSettings
from rlvla3.simulators.maniskill_scene import check_assets
from rlvla3.simulators.maniskill_tasks import TASKS
from rlvla3.simulators.registry import simulator_class

WIDOWX = "PutCarrotOnPlateInScene-v1"
CARROT = (f"simulator.options.tasks=[{WIDOWX}]", "simulator.options.reward=success")


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch):
    """Make a module look as if it were not installed."""
    found = importlib.util.find_spec

    def hide_module(name: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda asked, *rest: None if asked == name else found(asked, *rest)
        )

    return hide_module


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("metaworld", {"tasks": ["reach-v3", "reach-v3"]}),
        ("metaworld", {"cameras": ["corner", "corner"]}),
        ("metaworld", {"cameras": [{"azimuth": 90}, {"azimuth": 90.0}]}),
        ("libero", {"tasks": [0, 0]}),
        ("libero", {"cameras": ["agentview", "agentview"]}),
        ("maniskill", {"tasks": ["PickCube-v1", "PickCube-v1"]}),
        ("maniskill", {"cameras": ["scene", "scene"]}),
        ("robocasa", {"tasks": ["OpenDrawer", "OpenDrawer"]}),
        ("robocasa", {"cameras": ["left", "wrist", "left"]}),
        ("synthetic", {"colours": ["red", "red"]}),
        ("gymnasium", {"env_id": "A-v0", "observation": {"state": ["a", "a"]}}),
    ],
)
def test_what_is_there_twice_is_refused_with_the_remedy(kind: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must differ; .* is there twice, leave one out"):
        simulator_class(kind).Settings.model_validate(options)


@pytest.mark.parametrize(
    ("kind", "options", "limits"),
    [
        ("metaworld", {"tasks": ["reach-v3", "push-v3"]}, (500, 500)),
        ("metaworld", {"tasks": ["reach-v3", "push-v3"], "step_limits": [0, 70]}, (500, 70)),
        ("libero", {"suite": "libero_10", "tasks": [0]}, (520,)),
        ("maniskill", {"tasks": ["PickCube-v1", "PegInsertionSide-v1"]}, (50, 100)),
        ("synthetic", {"colours": ["red"]}, (50,)),
        ("synthetic", {"colours": ["red"], "episode_length": 7}, (7,)),
        ("synthetic", {"task": "delay"}, (0,)),
    ],
)
def test_a_limit_of_0_is_the_simulators_own(
    kind: str, options: dict[str, Any], limits: tuple[int, ...]
) -> None:
    adapter = simulator_class(kind)
    assert adapter(adapter.Settings.model_validate(options)).spec.step_limits == limits


@pytest.mark.parametrize(("recipe", "chunks"), [("demo", 100), ("reach", 10), ("libero", 22)])
def test_whole_episodes_need_no_step_limit_where_the_simulator_has_one(recipe: str, chunks: int) -> None:
    assert Assembly(load_config(recipe, ["simulator.options.step_limits=0"])).chunks == chunks


def test_limits_of_robocasa_are_read_from_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "dataset_registry.py").write_text(
        "import nothing_of_this\n"
        "A = OrderedDict(Open=dict(pretrain=dict(path='x'), horizon=450), Close=dict(path='y'))\n"
        "B = OrderedDict(Stack=dict(horizon=1200))\n"
    )
    monkeypatch.setattr(robocasa_package, "folder_of", lambda package: tmp_path)
    robocasa_package._own_step_limits.cache_clear()
    limits = [robocasa_package.own_step_limit(task) for task in ("Open", "Stack", "Close")]
    robocasa_package._own_step_limits.cache_clear()
    assert limits == [450, 1200, 1000]


@pytest.mark.parametrize("kind", ["libero", "robocasa"])
def test_a_dense_reward_is_refused_where_there_is_none(kind: str) -> None:
    for reward in ("dense", "shaped"):
        with pytest.raises(ValueError, match=r"reward must be success or module:attribute: \w+ has no dense"):
            simulator_class(kind).Settings.model_validate({"reward": reward})


@pytest.mark.parametrize(
    ("recipe", "module", "command"),
    [
        ("demo", "metaworld", "pip install 'rlvla3[metaworld]'"),
        ("libero", "libero", "pip install 'rlvla3[libero]'"),
        ("maniskill", "mani_skill", "pip install 'rlvla3[maniskill]'"),
    ],
)
@pytest.mark.parametrize("name", ["check", "train", "sft"])
def test_a_package_that_is_missing_is_one_line_with_the_command(
    name: str, recipe: str, module: str, command: str, hide, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hide(module)
    line = refused(capsys, name, recipe)
    assert f"simulator.kind = {recipe if recipe != 'demo' else 'metaworld'}: " in line
    assert "is not installed" in line and line.endswith(command)
    assert not list(Path("runs").glob("*/config.yaml"))


def test_another_environment_is_asked_for_its_own_packages(hide) -> None:
    hide("metaworld")
    question = Question(kind="metaworld", options={}, distrusted="", trusted=())
    reply = answer(question)
    assert isinstance(reply, Refusal) and "metaworld is not installed here" in reply.text
    assert not isinstance(answer(Question(kind="synthetic", options={}, distrusted="", trusted=())), Refusal)


def test_a_checkout_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "check", "libero", "simulator.options.source=/nowhere")
    assert line.startswith("rlvla3: simulator.options.source = '/nowhere': has no libero/libero/bddl_files")


def test_assets_of_a_task_are_looked_for_without_maniskill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    check_assets("PickCube-v1")
    with pytest.raises(
        UserError, match=r"needs assets that are not on this machine; .* -y bridge_v2_real2sim"
    ):
        check_assets(WIDOWX)
    for place in TASKS[WIDOWX].assets.values():
        (tmp_path / "data" / place).mkdir(parents=True)
    check_assets(WIDOWX)


def test_an_expert_without_a_module_is_one_of_those_there_are() -> None:
    with pytest.raises(ValueError, match="must be pusht or module:attribute; it is 'pushy'"):
        GymnasiumSettings.model_validate({"env_id": "A-v0", "expert": "pushy"})
    adapter = simulator_class("gymnasium")
    own = adapter(GymnasiumSettings.model_validate({"env_id": "A-v0", "expert": "no_such_module:Expert"}))
    with pytest.raises(UserError, match=r"simulator\.options\.expert .* no module 'no_such_module'"):
        own.require()


def useless(recipe: str, *overrides: str) -> dict[str, str]:
    """What is warned of, by the last part of its name."""
    found = simulating(Assembly(load_config(recipe, list(overrides))))
    return {finding.field.rpartition(".")[2]: finding.text for finding in found}


@pytest.mark.parametrize("recipe", ["demo", "libero", "maniskill", "pickcube", "reach", "schedule-benchmark"])
def test_recipes_set_nothing_without_effect(recipe: str) -> None:
    assert not useless(recipe)


@pytest.mark.parametrize(
    ("recipe", "overrides", "names"),
    [
        (
            "demo",
            ("reward=success", "shaping_weight=1", "shaping_discount=0.9"),
            "shaping_weight shaping_discount",
        ),
        ("demo", ("shaping_weight=0", "shaping_discount=0.9"), "shaping_discount"),
        ("libero", ("shaping_weight=1",), "shaping_weight"),
        ("maniskill", ("observation=state", "image_size=32"), "image_size view"),
        (
            "maniskill",
            ("tasks=[PegInsertionSide-v1]", "cameras=[hand]"),
            "view",
        ),
        ("maniskill", (f"tasks=[{WIDOWX}]", "reward=success"), "view control"),
        ("reach", ("mean_ms=3", "success_at=4", "cv=1"), "mean_ms success_at cv"),
        ("schedule-benchmark", ("colours=[red]", "step_penalty=1"), "colours step_penalty"),
    ],
)
def test_options_without_effect_are_named(recipe: str, overrides: tuple[str, ...], names: str) -> None:
    found = useless(recipe, *(f"simulator.options.{override}" for override in overrides))
    assert set(found) == set(names.split())
    assert all("it has no effect; leave it out" in text for text in found.values())


def test_options_of_gymnasium_without_effect() -> None:
    task = {"env_id": "A-v0", "instruction": "go"}
    options = GymnasiumSettings.model_validate(
        {"env_id": "B-v0", "tasks": {"a": task}, "instruction": "come"}
    )
    names = {name for name, _ in options.without_effect()}
    assert names >= {"potential", "potential_range", "image_size", "env_id", "instruction", "shaping_weight"}
    drawn = {"env_id": "A-v0", "image": "render", "reward": "shaped", "potential": "reward()"}
    assert not list(GymnasiumSettings.model_validate(drawn).without_effect())


@pytest.mark.parametrize(("chunk", "warned"), [(50, False), (51, True)])
def test_a_chunk_that_no_episode_is_long_enough_for_is_named(chunk: int, warned: bool) -> None:
    found = useless("reach", f"simulator.chunk={chunk}")
    assert ("chunk" in found) == warned
    assert not warned or "at most 50 sub-steps" in found["chunk"]
