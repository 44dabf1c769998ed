"""What the engine is told of tasks, groups and Trainer members."""

from pathlib import Path

import pytest

from rlvla3.assembly import Assembly
from rlvla3.config import load_config
from rlvla3.core.settings import TrainingSettings
from rlvla3.devices import card_of
from rlvla3.errors import UserError

WHOLE = ("trainer.trajectory=episode", "trainer.chunks=10", "algorithm.kind=echo:Grouped")


def assembly(*overrides: str) -> Assembly:
    return Assembly(load_config("schedule-benchmark", list(overrides)))


def training(*overrides: str) -> TrainingSettings:
    return assembly(*overrides).settings.training


def test_groups_are_what_the_algorithm_asks_for() -> None:
    found = training(*WHOLE, "algorithm.options.size=4", "algorithm.options.replacements=2")
    assert (found.group_size, found.group_score, found.group_replacements) == (4, "success", 2)
    assert (found.batch, found.units) == (160, 40)
    assert training().units == 160


def test_a_list_names_tasks_in_any_order() -> None:
    found = Assembly(load_config("reach", ["tasks.sampling=list", "tasks.list=[blue, red, red]", "seed=7"]))
    tasks = found.settings.training.tasks
    assert (tasks.sampling, tasks.order, tasks.weights, tasks.seed) == ("list", (2, 0, 0), (1.0,) * 3, 7)


@pytest.mark.parametrize(
    ("overrides", "ordered"),
    [
        (("schedule.mode=aa_barrier",), True),
        (("schedule.mode=as",), False),
        (("schedule.mode=as", "trainer.members=2"), True),
        (("schedule.mode=as", "trainer.members=2", "schedule.deterministic=false"), False),
    ],
)
def test_gradients_of_a_deterministic_run_do_not_depend_on_arrival(
    overrides: tuple[str, ...], ordered: bool
) -> None:
    assert training("schedule.deterministic=true", *overrides).ordered is ordered


def test_trainer_members_are_numbered_and_there_are_none_in_an_evaluation() -> None:
    assert assembly("trainer.members=3").topology.trainers == ("trainer-0", "trainer-1", "trainer-2")
    config = load_config("reach", [])
    assert Assembly(config, training=False).topology.trainers == ()


def test_a_simulator_knows_its_slab_without_the_algorithm() -> None:
    """Algorithms may need torch, which Simulators never load."""
    made = assembly(*WHOLE)
    assert made.layout.size > 0
    assert "algorithm" not in vars(made)
    assert "settings" not in vars(made)


def test_a_member_without_a_card_stays_where_it_is() -> None:
    assert card_of("cpu", 3) == "cpu"


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        ((), "trainer.micro_batch = 8: .* use trainer.micro_batch=48"),
        (("trainer.micro_batch=48", "trainer.members=2"), "trainer.members = 2: .* use trainer.members=1"),
        (("trainer.micro_batch=48", "schedule.streaming=true"), "estimates from the whole of it"),
        (("trainer.micro_batch=48",), ""),
    ],
)
def test_an_algorithm_that_wants_the_whole_batch_gets_it(
    overrides: tuple[str, ...], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wants_it_whole.py").write_text(
        "from rlvla3.algorithms.api import Needs\n"
        "from rlvla3.algorithms.ppo import PPO\n\n\n"
        "class Whole(PPO):\n"
        "    def __init__(self, settings):\n"
        "        super().__init__(settings)\n"
        "        self.needs = Needs(whole_batch=True)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Assembly(load_config("reach", ["algorithm.kind=wants_it_whole:Whole", *overrides]))
    if not fault:
        assert made.settings.training.micro_batch == 48
        return
    with pytest.raises(UserError, match=fault):
        _ = made.settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("trainer.trajectory=segment", "trainer.chunks=2"),
            r"trainer\.trajectory = segment: .* between two segments; use trainer\.trajectory=episode",
        ),
        (
            ("trainer.trajectory=episode", "trainer.chunks=9", "simulator.options.step_limits=0"),
            r"simulator\.options\.step_limits = 0: .* give a step limit",
        ),
    ],
)
def test_envs_that_step_together_cannot_wait_in_mid_episode(overrides: tuple[str, ...], message: str) -> None:
    whole = assembly("simulator.options.together=true", *overrides)
    with pytest.raises(UserError, match=message):
        assert whole.settings


def test_whole_batches_are_what_is_stepped_at_once() -> None:
    shape = ("simulator.batches=2", "simulator.slots=4", "simulator.lanes=3")
    apart, together = (
        Assembly(load_config("reach", [*shape, f"simulator.options.together={whole}"]))
        for whole in ("false", "true")
    )
    assert (apart.lanes, apart.slots_at_once, apart.topology.together) == (3, 3, False)
    assert (together.lanes, together.slots_at_once, together.topology.together) == (2, 2, True)


def test_all_that_contradicts_comes_at_once() -> None:
    """Three refusals of training, one of the tasks, one of the evaluation; segments are refused once."""
    overrides = (
        *("algorithm.kind=grpo", "trainer.trajectory=segment", "trainer.chunks=4", "trainer.batch=47"),
        *("trainer.micro_batch=6", "tasks.weights=[1]", "evaluation.step_limit=[1]"),
    )
    with pytest.raises(UserError) as refusal:
        assert Assembly(load_config("reach", list(overrides))).settings
    fields = [line.split()[0] for line in str(refusal.value).splitlines()]
    assert fields == [
        *("trainer.trajectory", "trainer.batch", "trainer.micro_batch"),
        *("tasks.weights", "evaluation.step_limit"),
    ]


def test_all_that_whole_configurations_are_refused_for_comes_at_once() -> None:
    overrides = (
        "trainer.micro_batch=1000",
        "trainer.chunks=0",
        "evaluation.replan=9",
        "generator.pins={99: 0}",
    )
    with pytest.raises(UserError) as refusal:
        load_config("schedule-benchmark", list(overrides))
    lines = str(refusal.value).splitlines()
    assert [line.split()[2].rstrip(":") for line in lines] == [
        *("trainer.chunks", "trainer.micro_batch", "evaluation.replan", "generator.pins")
    ]
    assert all(line.startswith("command line: ") for line in lines)


def test_segments_are_refused_once_for_all_reasons() -> None:
    overrides = ("algorithm.kind=echo:Grouped", "simulator.options.together=true")
    with pytest.raises(UserError) as refusal:
        assert assembly(*overrides, "simulator.options.step_limits=10").settings
    (line,) = str(refusal.value).splitlines()
    assert "compares whole episodes in groups, and simulator.kind = synthetic steps" in line
