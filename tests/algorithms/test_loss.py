"""Losses of single chunks against numbers computed by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.algorithms.loss import (
    Clip,
    Elements,
    chunk_mean,
    clipped_loss,
    gaussian_loss,
    log_ratio,
    ratio_figures,
    reference_kl,
    truncated_loss,
    value_loss,
)

CLIP = Clip(low=0.2, high=0.2, dual=0.0)
RATIOS = torch.tensor([1.5, 0.5, 1.5, 0.5])
ADVANTAGE = torch.tensor([1.0, 1.0, -1.0, -1.0])


def elements(log_prob, behaviour=None, proximal=None, advantage=ADVANTAGE, mask=None) -> Elements:
    behaviour = torch.zeros_like(log_prob) if behaviour is None else behaviour
    return Elements(
        log_prob=log_prob,
        behaviour=behaviour,
        proximal=behaviour if proximal is None else proximal,
        mask=torch.ones(log_prob.shape, dtype=torch.bool) if mask is None else mask,
        advantage=advantage,
        limit=20.0,
    )


def test_clipping_by_hand() -> None:
    # −min(1.5, 1.2), −min(.5, .8), max(1.5, 1.2), max(.5, .8)
    loss, figures = clipped_loss(elements(RATIOS.log()), CLIP, 2.0)
    torch.testing.assert_close(loss, torch.tensor([-1.2, -0.5, 1.5, 0.8]))
    assert figures["clip_fraction"].tolist() == [1.0] * 4
    found = ratio_figures(elements(RATIOS.log()))
    # r − 1 − log r: .5 − .4055 = .0945 and −.5 + .6931 = .1931
    expected = torch.tensor([0.5 - math.log(1.5), -0.5 + math.log(2.0)] * 2)
    torch.testing.assert_close(found["kl"], expected)
    torch.testing.assert_close(found["ratio_mean"], RATIOS)
    torch.testing.assert_close(found["ratio_square"], RATIOS**2)


def test_an_asymmetric_clip_lets_the_good_side_grow_further() -> None:
    loss, _ = clipped_loss(elements(RATIOS.log()), Clip(low=0.2, high=0.4, dual=0.0), 2.0)
    torch.testing.assert_close(loss, torch.tensor([-1.4, -0.5, 1.5, 0.8]))


def test_only_the_unclipped_side_has_a_gradient() -> None:
    log_prob = RATIOS.log().requires_grad_(True)
    torch.autograd.backward(clipped_loss(elements(log_prob), CLIP, 2.0)[0].sum())
    torch.testing.assert_close(log_prob.grad, torch.tensor([0.0, -0.5, 1.5, 0.0]))


def test_the_trust_region_lies_around_the_proximal_policy() -> None:
    """π/π_prox = 1.5 and .5 as ever; π_prox/π_behaviour = .5, 1, 4 (held at 2), 1 weighs each."""
    proximal = torch.tensor([0.5, 1.0, 4.0, 1.0]).log()
    log_prob = (RATIOS.log() + proximal).requires_grad_(True)
    given = elements(log_prob, torch.zeros(4), proximal)
    loss, figures = clipped_loss(given, CLIP, 2.0)
    torch.testing.assert_close(loss.detach(), torch.tensor([0.5 * -1.2, -0.5, 2 * 1.5, 0.8]))
    torch.autograd.backward(loss.sum())
    torch.testing.assert_close(log_prob.grad, torch.tensor([0.0, -0.5, 3.0, 0.0]))
    assert figures["clip_fraction"].tolist() == [1.0] * 4
    torch.testing.assert_close(figures["weight_mean"], torch.tensor([0.5, 1.0, 2.0, 1.0]))
    assert float(figures["weight_max"].max()) == 2.0
    torch.testing.assert_close(ratio_figures(given)["ratio_mean"], torch.tensor([0.75, 0.5, 6.0, 0.5]))


def test_a_policy_that_has_moved_since_the_rollout_is_inside_its_own_trust_region() -> None:
    """What an update of stale data begins with: around the behaviour policy all gradient would be gone."""
    moved = torch.tensor([1.5, 0.5, 0.5, 1.5]).log()
    for proximal, left in ((torch.zeros(4), False), (moved, True)):
        log_prob = moved.clone().requires_grad_(True)
        loss, _ = clipped_loss(elements(log_prob, torch.zeros(4), proximal), CLIP, 2.0)
        torch.autograd.backward(loss.sum())
        assert bool(log_prob.grad[[0, 2]].any()) == left


def test_truncated_weights_by_hand() -> None:
    """ρ = 1.5, .5, 4 (held at 2), 1: the gradient is −min(ρ, 2)·A for each, never gone."""
    log_prob = torch.tensor([1.5, 0.5, 4.0, 1.0]).log().requires_grad_(True)
    loss, figures = truncated_loss(elements(log_prob), 2.0)
    torch.testing.assert_close(loss.detach(), torch.tensor([-1.5, -0.5, 2.0, 1.0]))
    torch.autograd.backward(loss.sum())
    torch.testing.assert_close(log_prob.grad, torch.tensor([-1.5, -0.5, 2.0, 1.0]))
    assert figures["clip_fraction"].tolist() == [0.0, 0.0, 1.0, 0.0]


def test_gaussian_trust_by_hand() -> None:
    """log ρ = .3, −.6, 0, 1 with width .3: ω = e^−½, e^−2, 1, e^−5.56; the gradient is −ω·ρ·A."""
    log = torch.tensor([0.3, -0.6, 0.0, 1.0])
    log_prob = log.clone().requires_grad_(True)
    loss, figures = gaussian_loss(elements(log_prob), 0.3)
    trust = torch.tensor([math.exp(-0.5), math.exp(-2.0), 1.0, math.exp(-0.5 / 0.09)])
    expected = -trust * log.exp() * ADVANTAGE
    torch.testing.assert_close(loss.detach(), expected)
    torch.autograd.backward(loss.sum())
    torch.testing.assert_close(log_prob.grad, expected)
    assert figures["clip_fraction"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert float((trust * log.exp()).max()) <= math.exp(0.045)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    # x = log 2 and −log 2: k1 = x; k2 = x²/2; k3 = e^−x − 1 + x
    [
        ("k1", [math.log(2), -math.log(2)]),
        ("k2", [math.log(2) ** 2 / 2] * 2),
        ("k3", [math.log(2) - 0.5, 1 - math.log(2)]),
    ],
)
def test_reference_kl_by_hand(estimator, expected) -> None:
    log_prob = torch.tensor([2.0, 0.5]).log()
    mask = torch.ones(2, dtype=torch.bool)
    found = reference_kl(log_prob, torch.zeros(2), mask, estimator, 20.0)
    torch.testing.assert_close(found, torch.tensor(expected))


def test_what_each_estimator_s_gradient_descends() -> None:
    """All outcomes of three, each weighed by its probability under π: as losses k2 descends KL(π ‖ π_ref),
    k3 KL(π_ref ‖ π), and k1 nothing; as values k1 and k3 are KL(π ‖ π_ref)."""
    logits = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    log_prob = logits.log_softmax(0)
    chance = log_prob.exp().detach()
    forward = (log_prob.exp() * (log_prob - reference)).sum()
    backward = (reference.exp() * (reference - log_prob)).sum()
    wanted = {"k1": torch.zeros(()) * logits.sum(), "k2": forward, "k3": backward}
    mask = torch.ones(3, dtype=torch.bool)
    for estimator, divergence in wanted.items():
        each = reference_kl(log_prob, reference, mask, estimator, 20.0)
        (found,) = torch.autograd.grad((chance * each).sum(), logits, retain_graph=True)
        (expected,) = torch.autograd.grad(divergence, logits, retain_graph=True)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
        if estimator != "k2":
            assert (chance * each).sum().item() == pytest.approx(forward.item())


def test_dual_clip_bounds_a_negative_advantage() -> None:
    given = elements(torch.tensor([5.0]).log(), advantage=torch.tensor([-1.0]))
    assert float(clipped_loss(given, CLIP, 2.0)[0][0]) == pytest.approx(5.0)
    assert float(clipped_loss(given, Clip(low=0.2, high=0.2, dual=3.0), 2.0)[0][0]) == pytest.approx(3.0)


LOSSES = {
    "clipped": lambda e: clipped_loss(e, CLIP, 2.0),
    "truncated": lambda e: truncated_loss(e, 2.0),
    "gaussian": lambda e: gaussian_loss(e, 0.3),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3)])
def test_equal_log_probs_have_ratio_one_at_every_level(shape, name) -> None:
    log_prob = torch.randn(shape)
    given = elements(log_prob, log_prob, log_prob)
    loss, figures = LOSSES[name](given)
    torch.testing.assert_close(loss, -ADVANTAGE)
    assert not ratio_figures(given)["kl"].any()
    assert not figures["clip_fraction"].any()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("log", [700.0, -700.0, float("inf")])
def test_a_huge_log_ratio_stays_finite(log, name) -> None:
    log_prob = torch.tensor([log, 0.0, 0.0, 0.0], requires_grad=True)
    given = elements(log_prob, advantage=-ADVANTAGE.abs())
    loss, figures = LOSSES[name](given)
    torch.autograd.backward(loss.sum())
    assert torch.isfinite(loss).all()
    assert torch.isfinite(log_prob.grad).all()
    assert all(torch.isfinite(value).all() for value in (figures | ratio_figures(given)).values())


def test_a_chunk_s_loss_is_the_mean_of_what_counts() -> None:
    """Two of three actions of the first chunk were executed; ratios 1.1 and .9 there."""
    log_prob = torch.tensor([[1.1, 0.9, 7.0], [1.0, 1.0, 1.0]]).log()
    mask = torch.tensor([[True, True, False], [True, True, True]])
    loss, _ = clipped_loss(elements(log_prob, advantage=torch.tensor([1.0, 2.0]), mask=mask), CLIP, 2.0)
    torch.testing.assert_close(loss, torch.tensor([-1.0, -2.0]))


def _masked(name: str, rubbish: float):
    mask = torch.tensor([[True, False], [True, True], [False, False], [True, False]])
    parts = [torch.randn(4, 2, generator=torch.Generator().manual_seed(n)) for n in range(4)]
    log_prob, behaviour, proximal, reference = (torch.where(mask, p, rubbish) for p in parts)
    log_prob.requires_grad_(True)
    given = elements(log_prob, behaviour, proximal, mask=mask)
    loss, figures = LOSSES[name](given)
    kl = reference_kl(log_prob, reference, mask, "k3", 20.0)
    torch.autograd.backward((loss + kl).sum())
    return [loss, kl, log_prob.grad, *(figures | ratio_figures(given)).values()]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e9])
def test_masked_elements_change_no_bit(rubbish, name) -> None:
    for clean, dirty in zip(_masked(name, 0.0), _masked(name, rubbish), strict=True):
        assert torch.equal(clean, dirty)


def test_the_log_ratio_is_zero_where_masked() -> None:
    rubbish = torch.tensor([float("nan"), 0.0, 1.0])
    mask = torch.tensor([False, False, True])
    assert log_ratio(rubbish, rubbish.flip(0), mask, 20.0).tolist()[:2] == [0.0, 0.0]


def test_value_loss_by_hand() -> None:
    value, returns = torch.tensor([0.5, 3.0]), torch.zeros(2)
    # Huber with delta 1: ½·.25 and 3 − ½
    found = value_loss(value, value, returns, clip=0.0, huber_delta=1.0)
    torch.testing.assert_close(found, torch.tensor([0.125, 2.5]))


def test_value_clip_by_hand() -> None:
    # the value reached the return, but may only move .5 from 0: error 1.5, Huber 1.5 − ½
    found = value_loss(
        torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([2.0]), clip=0.5, huber_delta=1.0
    )
    assert float(found[0]) == pytest.approx(1.0)


def test_mean_over_nothing_is_zero() -> None:
    assert chunk_mean(torch.tensor([[float("nan")]]), torch.tensor([[False]])).tolist() == [0.0]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_size_weighted_micro_batches_equal_the_full_batch(sizes) -> None:
    total = sum(sizes)
    torch.manual_seed(total)
    features = torch.randn(total, 3, dtype=torch.float64)
    behaviour, proximal, advantage, returns = torch.randn(4, total, dtype=torch.float64)
    weights = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def loss(rows: slice) -> torch.Tensor:
        score = features[rows] @ weights
        policy, _ = clipped_loss(elements(score, behaviour[rows], proximal[rows], advantage[rows]), CLIP, 2.0)
        return (policy + value_loss(score, behaviour[rows], returns[rows], clip=0.0, huber_delta=1.0)).sum()

    (whole,) = torch.autograd.grad(loss(slice(0, total)), weights)
    start = 0
    for size in sizes:
        torch.autograd.backward(loss(slice(start, start + size)))
        start += size
    assert (weights.grad - whole).abs().max() < 1e-6


def test_shapes_are_checked_first() -> None:
    with pytest.raises(ValueError, match="must be"):
        elements(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="advantage"):
        elements(torch.zeros(4), advantage=torch.zeros(3))
    with pytest.raises(ValueError, match=r"must be \[B\]"):
        value_loss(torch.zeros(4), torch.zeros(3), torch.zeros(4), clip=0.0, huber_delta=1.0)
