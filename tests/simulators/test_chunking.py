import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.messages import Start
from rlvla3.simulators.api import Step
from rlvla3.simulators.chunking import SerialBatch, chunk_step, chunk_steps
from rlvla3.simulators.synthetic import Synthetic, SyntheticSettings

START = Start(task=0, split="train", state=0)


def batch_of(count, **settings):
    simulator = Synthetic(SyntheticSettings.model_validate({"task": "delay", "action_dim": 2, **settings}))
    batch = SerialBatch([simulator.make() for _ in range(count)])
    for index in range(count):
        batch.reset(index, Start(task=0, split="train", state=index), 0)
    return batch


def zeros(count, chunk=5):
    return np.zeros((count, chunk, 2), np.float32)


@pytest.mark.parametrize("success_at", [1, 2, 3, 4, 5])
def test_success_at_each_sub_step_counts_once_and_nothing_after(success_at):
    [result] = chunk_step(batch_of(1, success_at=success_at, constant_reward=2.0), [0], zeros(1))
    assert result.sub_steps == success_at
    assert (result.success, result.terminated, result.truncated) == (True, True, False)
    assert result.reward == [2.0] * success_at + [0.0] * (5 - success_at)


@pytest.mark.parametrize("success_at", [1, 3, 5])
def test_success_without_an_end_is_kept_to_the_end_of_the_chunk(success_at):
    batch = batch_of(1, success_at=success_at, terminate_on_success=False)
    [result] = chunk_step(batch, [0], zeros(1))
    assert (result.success, result.terminated, result.sub_steps) == (True, False, 5)
    [later] = chunk_step(batch, [0], zeros(1))
    assert not later.success


def test_terminated_wins_over_truncated():
    batch = batch_of(1, success_at=4)
    batch.reset(0, START, 4)
    [result] = chunk_step(batch, [0], zeros(1))
    assert (result.terminated, result.truncated) == (True, False)


@given(
    limits=st.lists(st.integers(1, 23), min_size=1, max_size=4),
    chunk=st.integers(1, 6),
)
def test_constant_reward_sums_to_the_limit_for_any_mixture(limits, chunk):
    batch = batch_of(len(limits))
    for index, limit in enumerate(limits):
        batch.reset(index, Start(task=0, split="train", state=index), limit)
    running, total = list(range(len(limits))), np.zeros(len(limits))
    while running:
        results = chunk_step(batch, running, zeros(len(running), chunk))
        total[running] += [sum(result.reward) for result in results]
        assert all(result.sub_steps >= 1 and not result.terminated for result in results)
        running = [env for env, result in zip(running, results, strict=True) if not result.truncated]
    assert total.tolist() == limits


def test_actions_reach_their_own_env():
    batch = batch_of(3)
    actions = np.arange(2 * 5 * 2, dtype=np.float32).reshape(2, 5, 2) / 20
    seen = []
    chunk_step(batch, [2, 0], actions, on_sub_step=seen.append)
    last = [observation["last_action"] for observation in batch.observe([0, 1, 2])]
    np.testing.assert_array_equal(last, [actions[1, -1], [0, 0], actions[0, -1]])
    assert [observation["tag"].tolist() for observation in batch.observe([0, 2])] == [
        [0, 0, 0, 5],
        [0, 0, 2, 5],
    ]
    assert seen == [2, 0] * 5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_named(bad):
    actions = zeros(2)
    actions[1, 3, 0] = bad
    batch = batch_of(8)
    with pytest.raises(ValueError, match=r"env 7: action of sub-step 3, dimension 0"):
        chunk_step(batch, [4, 7], actions)


def test_a_reward_that_is_not_finite_is_named():
    batch = batch_of(3, faults=[{"kind": "nan_reward", "start_state": 2, "step": 4}])
    with pytest.raises(ValueError, match=r"env 2: reward of sub-step 3 is nan"):
        chunk_step(batch, [0, 1, 2], zeros(3))


def test_an_exception_names_its_env():
    batch = batch_of(3, faults=[{"kind": "exception", "start_state": 1, "step": 2}])
    with pytest.raises(RuntimeError) as caught:
        chunk_step(batch, [0, 1, 2], zeros(3))
    assert caught.value.__notes__ == ["in env 1 of its batch, while it stepped"]


@pytest.mark.parametrize(("indices", "shape"), [([0], (2, 5, 2)), ([0, 1], (2, 2)), ([1, 1], (2, 5, 2))])
def test_wrong_shapes_are_refused(indices, shape):
    with pytest.raises(ValueError, match="must"):
        chunk_step(batch_of(2), indices, np.zeros(shape, np.float32))


class Outside:
    """An env that waits for something outside, until a moment that the test chose."""

    def __init__(self, until_s: list[float]) -> None:
        self.until_s = until_s
        self.begun: list[float] = []
        self.finished = 0

    def begin(self, action) -> float:
        self.begun.append(float(action[0]))
        return self.until_s[len(self.begun) - 1]

    def finish(self) -> Step:
        self.finished += 1
        return Step(reward=self.begun[-1], terminated=False, truncated=False, success=False)


def test_a_waiting_chunk_says_until_when_and_finishes_nothing_before() -> None:
    envs = [Outside([10.0, 0.0]), Outside([12.0, 30.0])]
    actions = np.array([[[1.0], [2.0]], [[3.0], [4.0]]], np.float32)
    steps = chunk_steps(SerialBatch(envs), [0, 1], actions)
    assert next(steps) == 12.0  # the later of both envs
    assert [env.begun for env in envs] == [[1.0], [3.0]]
    assert [env.finished for env in envs] == [0, 0]
    assert next(steps) == 30.0
    assert [env.finished for env in envs] == [1, 1]
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert [result.reward for result in end.value.value] == [[1.0, 2.0], [3.0, 4.0]]


def test_an_env_that_only_computes_never_yields() -> None:
    env = Synthetic(SyntheticSettings(task="delay", mean_ms=0)).make()
    env.reset(Start(task=0, split="train", state=0), 0)
    with pytest.raises(StopIteration) as end:
        next(chunk_steps(SerialBatch([env]), [0], np.zeros((1, 3, 4), np.float32)))
    assert [result.sub_steps for result in end.value.value] == [3]
