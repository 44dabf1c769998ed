"""PPO's losses against numbers computed by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.algorithms.loss import clipped_policy_loss, importance_ratio, masked_mean, value_loss

CLIP = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 0.0, "log_ratio_limit": 20.0, "weight_limit": 2.0}
RATIOS = torch.tensor([1.5, 0.5, 1.5, 0.5])
ADVANTAGE = torch.tensor([1.0, 1.0, -1.0, -1.0])
ALL = torch.ones(4, dtype=torch.bool)
BOTH = (torch.zeros(4), torch.zeros(4))
"""Behaviour and proximal policy, the same."""


def test_clipping_by_hand() -> None:
    # −min(1.5, 1.2), −min(.5, .8), max(1.5, 1.2), max(.5, .8): mean (−1.2 − .5 + 1.5 + .8)/4
    loss, metrics = clipped_policy_loss(RATIOS.log(), *BOTH, ADVANTAGE, ALL, **CLIP)
    assert float(loss) == pytest.approx(0.15)
    # r − 1 − log r: .5 − .4055 = .0945 and −.5 + .6931 = .1931
    assert float(metrics["kl"]) == pytest.approx((0.5 - math.log(1.5) - 0.5 + math.log(2.0)) / 2, abs=1e-6)
    assert float(metrics["clip_fraction"]) == 1.0
    assert float(metrics["ratio_mean"]) == pytest.approx(1.0)


def test_only_the_unclipped_side_has_a_gradient() -> None:
    log_prob = RATIOS.log().requires_grad_(True)
    loss, _ = clipped_policy_loss(log_prob, *BOTH, ADVANTAGE, ALL, **CLIP)
    torch.autograd.backward(loss)
    torch.testing.assert_close(log_prob.grad, torch.tensor([0.0, -0.5, 1.5, 0.0]) / 4)


def test_the_trust_region_lies_around_the_proximal_policy() -> None:
    """π/π_prox = 1.5 and .5 as ever; π_prox/π_behaviour = .5, 1, 4 (held at 2), 1 weighs each."""
    proximal = torch.tensor([0.5, 1.0, 4.0, 1.0]).log()
    log_prob = (RATIOS.log() + proximal).requires_grad_(True)
    loss, metrics = clipped_policy_loss(log_prob, torch.zeros(4), proximal, ADVANTAGE, ALL, **CLIP)
    # .5·−1.2, 1·−.5, 2·1.5, 1·.8
    assert float(loss.detach()) == pytest.approx((-0.6 - 0.5 + 3.0 + 0.8) / 4)
    torch.autograd.backward(loss)
    torch.testing.assert_close(log_prob.grad, torch.tensor([0.0, -0.5, 3.0, 0.0]) / 4)
    assert float(metrics["clip_fraction"]) == 1.0
    assert float(metrics["weight_mean"]) == pytest.approx(4.5 / 4)
    assert float(metrics["weight_max"]) == 2.0
    # against the behaviour policy: .75, .5, 6, .5
    assert float(metrics["ratio_mean"]) == pytest.approx(7.75 / 4)


def test_a_policy_that_has_moved_since_the_rollout_is_inside_its_own_trust_region() -> None:
    """What an update of stale data begins with: around the behaviour policy all gradient would be gone."""
    moved = torch.tensor([1.5, 0.5, 0.5, 1.5]).log()
    for proximal, left in ((torch.zeros(4), 0.0), (moved, 1.0)):
        log_prob = moved.clone().requires_grad_(True)
        loss, _ = clipped_policy_loss(log_prob, torch.zeros(4), proximal, ADVANTAGE, ALL, **CLIP)
        torch.autograd.backward(loss)
        gone = (log_prob.grad[[0, 2]] == 0).all()
        assert bool(gone) == (left == 0.0)


def test_dual_clip_bounds_a_negative_advantage() -> None:
    arguments = (torch.tensor([5.0]).log(), torch.zeros(1), torch.zeros(1), torch.tensor([-1.0]), ALL[:1])
    assert float(clipped_policy_loss(*arguments, **CLIP)[0]) == pytest.approx(5.0)
    assert float(clipped_policy_loss(*arguments, **{**CLIP, "dual_clip": 3.0})[0]) == pytest.approx(3.0)


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
def test_equal_log_probs_have_ratio_one_at_every_level(shape) -> None:
    log_prob = torch.randn(shape)
    loss, metrics = clipped_policy_loss(log_prob, log_prob, log_prob, ADVANTAGE, ALL, **CLIP)
    assert float(loss) == pytest.approx(0.0, abs=1e-6)
    assert float(metrics["kl"]) == float(metrics["clip_fraction"]) == 0.0


@pytest.mark.parametrize("log_ratio", [700.0, -700.0, float("inf")])
def test_a_huge_log_ratio_stays_finite(log_ratio) -> None:
    log_prob = torch.tensor([log_ratio, 0.0, 0.0, 0.0], requires_grad=True)
    loss, metrics = clipped_policy_loss(log_prob, *BOTH, -ADVANTAGE.abs(), ALL, **CLIP)
    torch.autograd.backward(loss)
    assert torch.isfinite(loss)
    assert torch.isfinite(log_prob.grad).all()
    assert all(torch.isfinite(value) for value in metrics.values())


def _both_losses(rubbish: float):
    mask = torch.tensor([True, False, True, False])
    parts = [torch.tensor([0.1, 0.2, -0.3, 0.4]) * scale for scale in (1.0, 0.7, 2.0, 0.5, 1.5)]
    log_prob, behaviour, value, old_value, returns = (torch.where(mask, p, rubbish) for p in parts)
    advantage = torch.where(mask, ADVANTAGE, rubbish)
    log_prob.requires_grad_(True)
    value.requires_grad_(True)
    policy, metrics = clipped_policy_loss(log_prob, behaviour, behaviour / 2, advantage, mask, **CLIP)
    critic = value_loss(value, old_value, returns, mask, clip=0.2, huber_delta=1.0)
    torch.autograd.backward(policy + critic)
    return [policy, critic, log_prob.grad, value.grad, *metrics.values()]


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e9])
def test_masked_positions_change_no_bit(rubbish) -> None:
    for clean, dirty in zip(_both_losses(0.0), _both_losses(rubbish), strict=True):
        assert torch.equal(clean, dirty)


def test_the_ratio_is_one_where_masked() -> None:
    rubbish = torch.tensor([float("nan"), 0.0, 1.0])
    mask = torch.tensor([False, False, True])
    assert importance_ratio(rubbish, rubbish.flip(0), mask, 20.0).tolist()[:2] == [1.0, 1.0]


def test_value_loss_by_hand() -> None:
    value, returns = torch.tensor([0.5, 3.0]), torch.zeros(2)
    mask = ALL[:2]
    # Huber with delta 1: ½·.25 and 3 − ½
    found = value_loss(value, value, returns, mask, clip=0.0, huber_delta=1.0)
    assert float(found) == pytest.approx(1.3125)


def test_value_clip_by_hand() -> None:
    # the value reached the return, but may only move .5 from 0: error 1.5, Huber 1.5 − ½
    found = value_loss(
        torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([2.0]), ALL[:1], clip=0.5, huber_delta=1.0
    )
    assert float(found) == pytest.approx(1.0)


def test_mean_over_nothing_is_zero() -> None:
    assert float(masked_mean(torch.tensor([float("nan")]), torch.tensor([False]))) == 0.0


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_size_weighted_micro_batches_equal_the_full_batch(sizes) -> None:
    total = sum(sizes)
    torch.manual_seed(total)
    features = torch.randn(total, 3, dtype=torch.float64)
    behaviour, proximal, advantage, returns = torch.randn(4, total, dtype=torch.float64)
    weights = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def loss(rows: slice) -> torch.Tensor:
        score = features[rows] @ weights
        mask = torch.ones(len(score), dtype=torch.bool)
        policy, _ = clipped_policy_loss(score, behaviour[rows], proximal[rows], advantage[rows], mask, **CLIP)
        return policy + value_loss(score, behaviour[rows], returns[rows], mask, clip=0.0, huber_delta=1.0)

    (whole,) = torch.autograd.grad(loss(slice(0, total)), weights)
    start = 0
    for size in sizes:
        torch.autograd.backward(loss(slice(start, start + size)) * size)
        start += size
    assert (weights.grad / total - whole).abs().max() < 1e-6


def test_shapes_are_checked_first() -> None:
    with pytest.raises(ValueError, match="must be"):
        clipped_policy_loss(torch.zeros(3), *BOTH, ADVANTAGE, ALL, **CLIP)
    with pytest.raises(ValueError, match="mask"):
        clipped_policy_loss(torch.zeros(4), *BOTH, ADVANTAGE, ALL[:2], **CLIP)
    with pytest.raises(ValueError, match=r"must be \[B\]"):
        value_loss(torch.zeros(4), torch.zeros(3), torch.zeros(4), ALL, clip=0.0, huber_delta=1.0)
