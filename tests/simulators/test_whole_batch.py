"""A batch that steps as a whole gives its envs what they would have got by themselves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.messages import Start
from rlvla3.simulators.chunking import SerialBatch, chunk_step
from rlvla3.simulators.synthetic import Synthetic, SyntheticSettings
from rlvla3.simulators.whole_batch import EnvsTogether

STATES = st.integers(0, 40)


def start(state: int) -> Start:
    return Start(task=0, split="train", state=state)


def simulator(task: str = "reach", **settings) -> Synthetic:
    return Synthetic(SyntheticSettings(task=task, together=True, **settings))


def episode(batch, indices, starts, limits, actions):
    """Play to all ends; returns rewards, ends and last observations of each env."""
    for index, first, limit in zip(indices, starts, limits, strict=True):
        batch.reset(index, first, limit)
    found = {index: [] for index in indices}
    running, chunk = list(indices), 0
    while running:
        results = chunk_step(batch, running, actions[chunk, running])
        for index, result in zip(running, results, strict=True):
            found[index] += [result.reward, result.sub_steps, result.terminated, result.truncated]
        ended = [i for i, r in zip(running, results, strict=True) if r.terminated or r.truncated]
        for index, seen in zip(running, batch.observe(running), strict=True):
            last = {name: array.tolist() for name, array in seen.items()}
            found[index].append(None if found[index][-2] else last)
        running = [index for index in running if index not in ended]
        chunk += 1
    return found


@given(
    limits=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    first=STATES,
    chunk=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_rewards_ends_and_last_observations_are_those_of_single_envs(limits, first, chunk, seed) -> None:
    made, size = simulator(), 5
    actions = np.random.default_rng(seed).uniform(-1, 1, (14, size, chunk, 2)).astype(np.float32)
    starts = [start(first + i) for i in range(len(limits))]
    indices = list(range(len(limits)))
    alone = SerialBatch([made.make() for _ in range(size)])
    assert episode(made.make_batch(size), indices, starts, limits, actions) == episode(
        alone, indices, starts, limits, actions
    )


def test_envs_without_an_episode_move_on_unseen() -> None:
    """The synthetic batch is as inconvenient as a real one: what it does to idle envs shows."""
    batch = simulator("delay").make_batch(2)
    batch.reset(0, start(0), 2)
    batch.reset(1, start(1), 0)
    [first, _] = chunk_step(batch, [0, 1], np.zeros((2, 5, 4), np.float32))
    assert (first.sub_steps, first.truncated) == (2, True)
    assert [o["tag"][3] for o in batch.observe([0, 1])] == [2, 5]
    assert [env.observe()["tag"][3] for env in batch._envs] == [5, 5]
    batch.reset(0, start(3), 0)
    assert batch.observe([0])[0]["tag"].tolist() == [0, 0, 3, 0]


def test_actions_reach_their_own_env_and_others_get_none() -> None:
    batch = simulator("delay", action_dim=2).make_batch(3)
    for index in (0, 2):
        batch.reset(index, start(index), 0)
    actions = np.arange(2 * 5 * 2, dtype=np.float32).reshape(2, 5, 2) / 20
    chunk_step(batch, [2, 0], actions)
    last = [observation["last_action"] for observation in batch.observe([0, 2])]
    np.testing.assert_array_equal(last, [actions[1, -1], actions[0, -1]])


@pytest.mark.parametrize("indices", [[0], [0, 1, 2]])
def test_an_env_in_mid_episode_is_never_moved_on_without_its_action(indices) -> None:
    batch = simulator("delay").make_batch(3)
    for index in (0, 1):
        batch.reset(index, start(index), 0)
    with pytest.raises(RuntimeError, match="step at once; wrong: "):
        chunk_step(batch, indices, np.zeros((len(indices), 2, 4), np.float32))


def test_the_slowest_env_is_waited_for() -> None:
    batch = simulator("delay", mean_ms=(0.0, 1000.0)).make_batch(2)
    batch.reset(0, start(0), 0)
    assert batch.begin([0], np.zeros((1, 4), np.float32)) == 0.0
    batch.finish([0])
    batch.reset(1, Start(task=1, split="train", state=0), 0)
    assert batch.begin([0, 1], np.zeros((2, 4), np.float32)) > 0.0


def test_it_is_one_batch_of_its_simulator() -> None:
    assert isinstance(simulator().make_batch(2), EnvsTogether)
    assert simulator().spec.steps_together
    assert not Synthetic(SyntheticSettings()).spec.steps_together
