"""Chunk-level GAE against numbers computed by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.algorithms.advantage import chunk_rewards, generalised_advantage

REWARD = torch.tensor([[1.0, 2.0, 3.0]])
VALUE = torch.tensor([[0.5, 1.0, 1.5]])


def gae(reward, value, bootstrap, length, terminated, gamma=0.5, gae_lambda=0.5):
    return generalised_advantage(
        reward,
        value,
        torch.tensor(bootstrap),
        torch.tensor(length),
        torch.tensor(terminated),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )


def test_truncation_bootstraps() -> None:
    # δ = (1 + .5·1 − .5, 2 + .5·1.5 − 1, 3 + .5·2 − 1.5) = (1, 1.75, 2.5); A_t = δ_t + .25·A_{t+1}
    advantage, returns = gae(REWARD, VALUE, [2.0], [3], [False])
    torch.testing.assert_close(advantage, torch.tensor([[1.59375, 2.375, 2.5]]))
    torch.testing.assert_close(returns, torch.tensor([[2.09375, 3.375, 4.0]]))


def test_termination_does_not_bootstrap_even_from_nan() -> None:
    # δ_2 = 3 − 1.5
    advantage, _ = gae(REWARD, VALUE, [float("nan")], [3], [True])
    torch.testing.assert_close(advantage, torch.tensor([[1.53125, 2.125, 1.5]]))


def test_lengths_end_trajectories_inside_the_padding() -> None:
    reward = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 7.0]])
    value = torch.tensor([[0.5, 1.0, 1.5], [0.5, 1.0, 7.0]])
    advantage, returns = gae(reward, value, [2.0, 2.0], [3, 2], [False, False])
    # second: δ_1 = 2 + .5·2 − 1 = 2; A_0 = 1 + .25·2
    torch.testing.assert_close(advantage, torch.tensor([[1.59375, 2.375, 2.5], [1.5, 2.0, 0.0]]))
    torch.testing.assert_close(returns[1], torch.tensor([2.0, 3.0, 0.0]))


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e9])
def test_padding_changes_no_bit(rubbish) -> None:
    clean = gae(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.5, 1.0, 0.0]]), [2.0], [2], [False])
    dirty = gae(torch.tensor([[1.0, 2.0, rubbish]]), torch.tensor([[0.5, 1.0, rubbish]]), [2.0], [2], [False])
    assert torch.equal(clean[0], dirty[0])
    assert torch.equal(clean[1], dirty[1])


@given(length=st.integers(1, 8), gamma=st.floats(0.1, 0.99), gae_lambda=st.floats(0, 1))
def test_constant_reward_with_true_values_has_no_advantage(length, gamma, gae_lambda) -> None:
    value = 1.0 / (1.0 - gamma)
    advantage, _ = gae(
        torch.ones(1, 8, dtype=torch.float64),
        torch.full((1, 8), value, dtype=torch.float64),
        [value],
        [length],
        [False],
        gamma,
        gae_lambda,
    )
    assert advantage.abs().max() < 1e-4


@given(cut=st.integers(1, 5))
def test_segments_with_lambda_zero_equal_the_whole_episode(cut) -> None:
    torch.manual_seed(cut)
    reward, value = torch.randn(1, 6), torch.randn(1, 6)
    whole, _ = gae(reward, value, [0.0], [6], [True], 0.9, 0.0)
    head, _ = gae(reward[:, :cut], value[:, :cut], [float(value[0, cut])], [cut], [False], 0.9, 0.0)
    tail, _ = gae(reward[:, cut:], value[:, cut:], [0.0], [6 - cut], [True], 0.9, 0.0)
    torch.testing.assert_close(torch.cat((head, tail), dim=1), whole)


def test_only_executed_sub_steps_count() -> None:
    reward = torch.tensor([[1.0, 2.0, float("nan")], [4.0, 5.0, 6.0]])
    assert chunk_rewards(reward, torch.tensor([2, 3])).tolist() == [3.0, 15.0]


def test_shapes_are_checked_first() -> None:
    with pytest.raises(ValueError, match=r"bootstrap_value must be \[N\]"):
        gae(REWARD, VALUE, [2.0, 3.0], [3], [False])
    with pytest.raises(ValueError, match="sub_steps"):
        chunk_rewards(torch.zeros(2, 3), torch.zeros(3))
