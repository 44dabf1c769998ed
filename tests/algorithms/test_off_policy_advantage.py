"""V-trace, returns and groups against numbers computed by hand, and torchrl as a second oracle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.algorithms.advantage import (
    discounted_returns,
    generalised_advantage,
    group_relative,
    group_statistics,
    leave_one_out,
    vtrace,
)

REWARD = torch.tensor([[1.0, 2.0, 3.0]])
VALUE = torch.tensor([[0.5, 1.0, 1.5]])


def traced(reward, value, bootstrap, length, terminated, weight, **options):
    options = {"gamma": 0.5, "trace_lambda": 1.0, "weight_limit": 2.0, **options}
    return vtrace(
        reward,
        value,
        torch.tensor(bootstrap),
        torch.tensor(length),
        torch.tensor(terminated),
        torch.tensor(weight).log(),
        **options,
    )


def test_vtrace_by_hand() -> None:
    # weights 4 (ρ 2, c 1), .5, 1; bootstrap 2:
    # δ_2 = 3 + 1 − 1.5 = 2.5, v_2 = 4; δ_1 = .5·(2 + .75 − 1) = .875, v_1 = 1 + .875 + .5·.5·2.5 = 2.5
    # δ_0 = 2·(1 + .5 − .5) = 2, v_0 = .5 + 2 + .5·1·1.5 = 3.25
    # advantages: 2·(1 + .5·2.5 − .5), .5·(2 + .5·4 − 1), 3 + .5·2 − 1.5
    advantage, target = traced(REWARD, VALUE, [2.0], [3], [False], [[4.0, 0.5, 1.0]])
    torch.testing.assert_close(target, torch.tensor([[3.25, 2.5, 4.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[3.5, 1.5, 2.5]]))


def test_vtrace_does_not_bootstrap_after_an_end_even_from_nan() -> None:
    # δ_1 = 2 − 1 = 1, v_1 = 2; δ_0 = 1 + .5 − .5 = 1, v_0 = .5 + 1 + .5·1 = 2
    advantage, target = traced(REWARD, VALUE, [float("nan")], [2], [True], [[1.0, 1.0, float("nan")]])
    torch.testing.assert_close(target, torch.tensor([[2.0, 2.0, 0.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[1.5, 1.0, 0.0]]))


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e9])
def test_padding_changes_no_bit(rubbish) -> None:
    results = []
    for fill in (0.0, rubbish):
        reward, value = (torch.tensor([[1.0, 2.0, fill]]) * s for s in (1.0, 0.5))
        results.append(traced(reward, value, [2.0], [2], [False], [[2.0, 0.5, abs(fill) or 1.0]]))
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty)


@given(length=st.integers(1, 6), gamma=st.floats(0.1, 1.0))
def test_without_lag_vtrace_is_gae_with_lambda_one(length, gamma) -> None:
    torch.manual_seed(length)
    reward, value = torch.randn(2, 1, 6, dtype=torch.float64)
    ends = (torch.tensor([0.7], dtype=torch.float64), torch.tensor([length]), torch.tensor([False]))
    advantage, target = vtrace(
        reward, value, *ends, torch.zeros(1, 6), gamma=gamma, trace_lambda=1.0, weight_limit=1.0
    )
    expected, returns = generalised_advantage(reward, value, *ends, gamma=gamma, gae_lambda=1.0)
    torch.testing.assert_close(advantage, expected)
    torch.testing.assert_close(target, returns)


@settings(deadline=None)
@given(length=st.integers(1, 7), terminated=st.booleans(), gae_lambda=st.floats(0.0, 1.0))
def test_torchrl_agrees(length, terminated, gae_lambda) -> None:
    """On one trajectory; its own time-out handling wants a next value, which is the bootstrap."""
    functional = pytest.importorskip(
        "torchrl.objectives.value.functional", reason="torchrl, the second oracle, is not installed"
    )
    torch.manual_seed(length)
    reward, value, log_pi, log_mu = torch.randn(4, 1, length, dtype=torch.float64)
    bootstrap = torch.tensor([0.3], dtype=torch.float64)
    ends = (bootstrap, torch.tensor([length]), torch.tensor([terminated]))
    following = torch.cat((value[:, 1:], bootstrap[:, None]), dim=1)
    done = torch.zeros(1, length, 1, dtype=torch.bool)
    done[:, -1] = True
    over = done & terminated
    theirs = (value[..., None], following[..., None], reward[..., None], done, over)
    expected, returns = functional.generalized_advantage_estimate(0.9, gae_lambda, *theirs)
    advantage, targets = generalised_advantage(reward, value, *ends, gamma=0.9, gae_lambda=gae_lambda)
    torch.testing.assert_close(advantage, expected[..., 0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(targets, returns[..., 0], atol=1e-6, rtol=1e-6)
    expected, returns = functional.vtrace_advantage_estimate(
        0.9, log_pi[..., None], log_mu[..., None], *theirs, rho_thresh=1.5, c_thresh=1.0
    )
    advantage, targets = vtrace(
        reward, value, *ends, log_pi - log_mu, gamma=0.9, trace_lambda=1.0, weight_limit=1.5
    )
    torch.testing.assert_close(advantage, expected[..., 0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(targets, returns[..., 0], atol=1e-6, rtol=1e-6)


def test_returns_by_hand() -> None:
    reward = torch.tensor([[1.0, 2.0, 3.0], [4.0, float("nan"), 9.0]])
    found = discounted_returns(reward, torch.tensor([3, 1]), gamma=0.5)
    torch.testing.assert_close(found, torch.tensor([[2.75, 3.5, 3.0], [4.0, 0.0, 0.0]]))


SCORE = torch.tensor([1.0, 0.0, 5.0, 0.0, 5.0, 1.0])
GROUP = torch.tensor([3, 3, 9, 3, 9, 3])
"""Group 3: 1, 0, 0, 1. Group 9: 5, 5."""


def test_group_relative_advantages_by_hand() -> None:
    found = group_relative(SCORE, GROUP)
    one = 0.5 / (0.5 + 1e-6)
    torch.testing.assert_close(found, torch.tensor([one, -one, 0.0, -one, 0.0, one]))
    assert group_statistics(SCORE, GROUP).size.tolist() == [4, 4, 2, 4, 2, 4]


@given(st.floats(-1e6, 1e6, allow_subnormal=False), st.integers(2, 9))
def test_equal_scores_have_no_advantage_whatever_the_rounding(score, members) -> None:
    scores = torch.full((members,), score, dtype=torch.float64)
    for advantage in (group_relative, leave_one_out):
        assert not advantage(scores, torch.zeros(members)).any()
    assert not group_statistics(scores, torch.zeros(members)).std.any()


def test_leave_one_out_by_hand() -> None:
    # the others of a 1 in group 3 have mean 1/3, of a 0 they have 2/3
    found = leave_one_out(SCORE, GROUP)
    torch.testing.assert_close(found, torch.tensor([2 / 3, -2 / 3, 0.0, -2 / 3, 0.0, 2 / 3]))
    with pytest.raises(ValueError, match="at least 2 members"):
        leave_one_out(torch.ones(1), torch.zeros(1))


def test_shapes_are_checked_first() -> None:
    with pytest.raises(ValueError, match="log_weight"):
        traced(REWARD, VALUE, [2.0], [3], [False], [1.0])
    with pytest.raises(ValueError, match="score and group"):
        group_relative(SCORE, GROUP[:2])
    with pytest.raises(ValueError, match="reward must be"):
        discounted_returns(torch.zeros(3), torch.zeros(3), gamma=1.0)
