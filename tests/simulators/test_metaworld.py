import numpy as np
import pytest

from rlvla3.errors import UserError
from rlvla3.messages import Start
from rlvla3.simulators import metaworld_states
from rlvla3.simulators.metaworld import Metaworld, MetaworldSettings
from rlvla3.simulators.metaworld_tasks import INSTRUCTIONS

START = Start(task=0, split="train", state=0)


def distance_reward(info, success, dense):
    return dense - 10 * success - info["obj_to_target"]


@pytest.fixture
def make():
    envs = []

    def make_env(**settings):
        envs.append(Metaworld(MetaworldSettings.model_validate(settings)).make())
        return envs[-1]

    yield make_env
    for env in envs:
        env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["button-pres-v3"]}, "did you mean button-press-v3"),
        ({"tasks": []}, "at least one"),
        ({"tasks": ["reach-v3", "reach-v3"]}, "must differ"),
        ({"step_limits": [85, 75]}, "3 tasks; it has 2"),
        ({"step_limits": -1}, "0 or more"),
        ({"reward": "sparse"}, "success, dense, shaped or module:attribute"),
        ({"benchmark_seeds": {"train": 5, "held_out": 5}}, "must differ"),
        ({"cameras": ["corner9"]}, "corner"),
        ({"rendring": "stock"}, "rendring"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MetaworldSettings.model_validate(settings)


def test_a_reward_that_cannot_be_loaded_is_explained():
    with pytest.raises(UserError, match=r"reward = 'json:nothing': module 'json' has no attribute"):
        Metaworld(MetaworldSettings(reward="json:nothing"))


def test_splits_never_share_a_seed_past_the_fiftieth_state():
    seeds = {metaworld_states.block_seed(7, split, block) for split in range(3) for block in range(1, 200)}
    assert len(seeds) == 3 * 199
    assert metaworld_states.block_seed(7, 1, 0) == 7


@pytest.mark.metaworld
def test_instructions_cover_the_50_tasks():
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert set(INSTRUCTIONS) == set(ALL_V3_ENVIRONMENTS)
    assert len(set(INSTRUCTIONS.values())) == 50


@pytest.mark.metaworld
@pytest.mark.parametrize("task", ["handle-press-v3", "door-open-v3", "push-v3", "faucet-close-v3"])
def test_cheap_states_and_resets_equal_meta_worlds_own(task):
    import metaworld

    benchmark = metaworld.MT1(task, seed=11)
    own = benchmark.train_classes[task]()
    inner = metaworld_states.make_inner(task)
    metaworld_states.set_goal_vector(inner, metaworld_states.goal_vector(inner, task, 12, 3))
    random = np.random.default_rng(0)
    for state in (0, 49, 17):
        own.set_task(benchmark.train_tasks[state])
        reference, _ = own.reset()
        cheap = metaworld_states.set_goal_vector(inner, metaworld_states.goal_vector(inner, task, 11, state))
        np.testing.assert_array_equal(cheap, reference)
        for action in random.uniform(-1, 1, (15, 4)).astype(np.float32):
            expected, got = own.step(action), inner.step(action)
            np.testing.assert_array_equal(got[0], expected[0])
            assert (got[1], got[4]) == (expected[1], expected[4])


@pytest.mark.metaworld
def test_goals_leave_global_random_numbers_alone(make):
    np.random.seed(3)
    expected = np.random.random()
    np.random.seed(3)
    make().reset(Start(task=0, split="train", state=1234), 0)
    assert np.random.random() == expected


@pytest.mark.metaworld
def test_the_own_limit_is_500_and_does_not_raise(make):
    env = make()
    env.reset(START, 0)
    still = np.zeros(4, np.float32)
    steps = [env.step(still) for _ in range(500)]
    assert [step.truncated for step in steps] == [False] * 499 + [True]


@pytest.mark.metaworld
def test_shaped_reward_is_success_plus_weighted_potential_difference(make):
    settings = {"shaping_weight": 0.25, "shaping_discount": 0.9}
    dense, shaped, sparse = make(reward="dense"), make(**settings), make(reward="success")
    for env in (dense, shaped, sparse):
        env.reset(START, 0)
    potentials = []
    action = np.array([0, 0.5, -1, 1], np.float32)
    for _ in range(4):
        potentials.append(dense.step(action).reward / 10)
        last, before = shaped.step(action).reward, potentials[-2] if len(potentials) > 1 else None
        assert sparse.step(action).reward == 0
        if before is not None:
            assert last == pytest.approx(0.25 * (0.9 * potentials[-1] - before), abs=1e-12)


@pytest.mark.metaworld
def test_a_penalty_is_taken_off_every_step(make):
    plain, fined = make(reward="dense"), make(reward="dense", step_penalty=0.5)
    for env in (plain, fined):
        env.reset(START, 0)
    action = np.zeros(4, np.float32)
    assert plain.step(action).reward - fined.step(action).reward == pytest.approx(0.5)


@pytest.mark.metaworld
def test_a_reward_of_the_users_own(make):
    own, dense = make(reward=f"{__name__}:distance_reward"), make(reward="dense")
    for env in (own, dense):
        env.reset(START, 0)
    action = np.ones(4, np.float32)
    difference = dense.step(action).reward - own.step(action).reward
    assert 0.05 < difference < 0.5


@pytest.mark.metaworld
def test_success_without_termination_goes_on_to_the_limit(make):
    simulator = Metaworld(MetaworldSettings(terminate_on_success=False, tasks=("handle-press-v3",)))
    env = simulator.make()
    expert = simulator.expert(env)
    env.reset(START, 60)
    steps = [env.step(expert.act()) for _ in range(60)]
    assert any(step.success for step in steps[:50])
    assert [step.terminated or step.truncated for step in steps] == [False] * 59 + [True]
    env.close()


@pytest.mark.metaworld
def test_spec_describes_cameras_limits_and_versions():
    spec = Metaworld(MetaworldSettings(cameras=("corner2", "topview"), step_limits=(85, 75, 35))).spec
    assert [field.name for field in spec.observation] == ["image", "image_2", "proprioception"]
    assert spec.step_limits == (85, 75, 35)
    assert spec.fingerprint["cameras"] == "corner2;topview" and spec.fingerprint["mujoco"] != "missing"
