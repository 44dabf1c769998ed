"""``eval --protocol``: what a protocol fixes, what may be typed beside it, and what is shown."""

import pytest

from rlvla3.assembly import Assembly
from rlvla3.commands.protocols import follow
from rlvla3.config import load_config
from rlvla3.errors import UserError
from rlvla3.simulators.libero_protocols import PUBLISHED
from rlvla3.simulators.libero_tasks import SUITES


def libero(*overrides: str):
    return load_config("libero", list(overrides))


# Read in the named sources.
LIMITS = {
    "openpi": (220, 280, 300, 520, 400),
    "lerobot": (280, 280, 300, 520, 400),
    "rlinf": (240, 240, 320, 512, 512),
    "rlinf-oft": (512, 512, 512, 512, 512),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("suite", SUITES)
def test_limits_are_those_of_the_suite(name: str, suite: str) -> None:
    config, _ = follow(libero(f"simulator.options.suite={suite}", "simulator.options.tasks=[]"), name, [])
    assembly = Assembly(config, training=False)
    wanted = LIMITS[name][list(SUITES).index(suite)]
    starts = assembly.settings.evaluation.starts
    assert {start.step_limit for start in starts} == {wanted}
    assert len(starts) == 50 * len(SUITES[suite])
    assert {start.start.split for start in starts} == {"held_out"}
    assert sorted({start.start.state for start in starts}) == list(range(50))


def test_the_rest_of_a_protocol_and_how_it_is_shown() -> None:
    config, words = follow(libero(), "openpi", [])
    assert (config.simulator.options.settle_steps, config.simulator.options.seed) == (10, 7)
    assert config.evaluation.replan == 5
    assert words.startswith("protocol openpi (step_limits 220, settle_steps 10, seed 7, ")
    assert "re-planned every 5 sub-steps, 50 states of each task; Physical-Intelligence/openpi" in words
    config, words = follow(libero("simulator.options.hard_reset=false"), "rlinf", [])
    assert config.simulator.options.hard_reset
    assert config.simulator.options.settle_steps == 15


def test_what_is_not_as_published_is_named() -> None:
    config, words = follow(libero("simulator.chunk=4"), "openpi", [])
    assert config.evaluation.replan == 4
    assert "re-planned every 4 sub-steps and not 5: the policy gives no more" in words
    typed = ["evaluation.episodes=3"]
    config, words = follow(libero(*typed), "lerobot", typed)
    assert config.evaluation.episodes == 3
    assert "3 states of each task and not 50" in words


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("simulator.options.step_limits=9", "simulator.options.step_limits: is fixed by --protocol openpi"),
        ("evaluation.replan=2", "evaluation.replan: is fixed by --protocol openpi; leave one of them out"),
        ("evaluation.episodes=51", "evaluation.episodes = 51: --protocol openpi has 50 states of each task"),
    ],
)
def test_what_contradicts_a_protocol_is_refused(typed: str, says: str) -> None:
    with pytest.raises(UserError, match=says.replace(".", r"\.")):
        follow(libero(typed), "openpi", [typed])


def test_a_simulator_without_it_refuses_a_protocol_in_one_line() -> None:
    with pytest.raises(UserError) as refused:
        follow(load_config("reach", []), "openpi", [])
    assert str(refused.value) == (
        "--protocol openpi: simulator.kind = synthetic has no protocols; leave it out"
    )
    with pytest.raises(UserError, match="has the protocols openpi, lerobot, rlinf, rlinf-oft"):
        follow(libero(), "libero", [])


def test_resets_that_are_not_exact_are_refused_where_they_matter() -> None:
    loose = "simulator.options.hard_reset=false"
    _ = Assembly(libero(loose)).settings  # training alone
    for typed, field in (
        (("evaluation.every_versions=2",), "evaluation.episodes = 4"),
        (
            ("algorithm.kind=grpo", "algorithm.options.group_size=4", "trainer.micro_batch=4"),
            "algorithm.kind = grpo",
        ),
        (("schedule.mode=as", "schedule.deterministic=true"), "schedule.deterministic = true"),
    ):
        with pytest.raises(UserError) as refused:
            _ = Assembly(libero(loose, *typed)).settings
        assert str(refused.value) == (
            f"{field}: needs equal starts to give equal episodes, and these resets are not exact; "
            "use simulator.options.hard_reset=true"
        )
    with pytest.raises(UserError, match=r"evaluation\.episodes"):
        _ = Assembly(libero(loose), training=False).settings
