"""Flow-matching reinforcement-learning mathematics against numbers computed by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.policies import flow


def one(value: float) -> torch.Tensor:
    return torch.tensor([[[value]]])


@pytest.mark.parametrize(
    ("method", "level", "index", "mean", "std"),
    [
        # t = 1, s = 3/4: σ² = .64·1/(1 − 3/4) = 2.56; mean = .25·.5 + (.75 − .32)·1; std = √.64
        ("sde", 0.8, 0, 0.555, 0.8),
        # t = 1/2, s = 1/4: σ² = .64; â = .75, ê = 1.25; mean = .75·.75 + (.25 − .16)·1.25
        ("sde", 0.8, 2, 0.675, 0.4),
        # t = 1/4, s = 0: σ² = .64/3, σ²d = .16/3; â = .875, ê = 1.375; mean = .875 − (.32/3)·1.375
        ("sde", 0.8, 3, 0.875 - 0.32 / 3 * 1.375, math.sqrt(0.16 / 3)),
        ("cps", 0.5, 2, 0.5625 + 0.25 * math.sqrt(0.5) * 1.25, 0.25 * math.sqrt(0.5)),
        ("cps", 0.5, 3, 0.875, 0.0),
    ],
)
def test_transition_by_hand(method: flow.Method, level: float, index: int, mean: float, std: float) -> None:
    found = flow.transition(method, one(1.0), one(0.5), torch.tensor([index]), 4, level)
    torch.testing.assert_close(found[0], one(mean))
    torch.testing.assert_close(found[1], one(std))


@given(
    x=st.floats(-3, 3),
    v=st.floats(-3, 3),
    index=st.integers(1, 3),
    level=st.floats(0.05, 1.5),
)
def test_sde_equals_its_drift_form(x: float, v: float, index: int, level: float) -> None:
    t, d = 1 - index / 4, 0.25
    variance = level**2 * t / (1 - t)
    drift = (1 + variance * (1 - t) / (2 * t)) * v + variance / (2 * t) * x
    mean, _ = flow.transition("sde", one(x), one(v), torch.tensor([index]), 4, level)
    assert float(mean) == pytest.approx(x - d * drift, abs=1e-4)


def test_ode_step() -> None:
    torch.testing.assert_close(flow.ode_mean(one(1.0), one(0.5), 4), one(0.875))


def test_index_is_each_samples_own() -> None:
    x, v = torch.ones(2, 1, 1), torch.full((2, 1, 1), 0.5)
    mean, std = flow.transition("sde", x, v, torch.tensor([0, 2]), 4, 0.8)
    torch.testing.assert_close(mean.flatten(), torch.tensor([0.555, 0.675]))
    torch.testing.assert_close(std.flatten(), torch.tensor([0.8, 0.4]))


def test_log_prob_by_hand_and_deterministic_elements_are_zero() -> None:
    std = torch.tensor([[[0.4]], [[0.0]]])
    found = flow.gaussian_log_prob(torch.tensor([[[1.4]], [[7.0]]]), torch.ones(2, 1, 1), std)
    torch.testing.assert_close(found.flatten(), torch.tensor([-math.log(0.4) - 0.91893853 - 0.5, 0.0]))


@pytest.mark.parametrize(
    ("level", "chunk_reduce", "dim_reduce", "expected"),
    [
        ("chunk_level", "sum", "sum", [10.0]),
        ("chunk_level", "mean", "sum", [5.0]),
        ("chunk_level", "mean", "mean", [2.5]),
        ("action_level", "sum", "sum", [[3.0, 7.0]]),
        ("action_level", "sum", "mean", [[1.5, 3.5]]),
        ("token_level", "sum", "sum", [[[1.0, 2.0], [3.0, 4.0]]]),
    ],
)
def test_reduction_cuts_horizon_and_padding(level, chunk_reduce, dim_reduce, expected) -> None:
    elements = torch.tensor([[[1.0, 2.0, 90.0], [3.0, 4.0, 90.0], [90.0, 90.0, 90.0]]])
    reduction = flow.Reduction(
        chunk=2, action_dim=2, level=level, chunk_reduce=chunk_reduce, dim_reduce=dim_reduce
    )
    found = reduction(elements)
    torch.testing.assert_close(found, torch.tensor(expected))
    assert found.shape[1:] == reduction.shape


@pytest.mark.parametrize("method", ["sde", "cps"])
def test_sampling_keeps_the_stochastic_step(method: flow.Method) -> None:
    torch.manual_seed(0)
    initial, noise = torch.randn(3, 2, 2), torch.randn(3, 2, 2)
    index = torch.tensor([0, 1, 2])
    chain = flow.sample(
        lambda x, t: x * t[:, None, None],
        initial,
        noise,
        index,
        method=method,
        steps=4,
        noise_level=0.5,
        explore=True,
    )
    torch.testing.assert_close(chain.chain_from[0], initial[0])
    mean, std = flow.transition(method, chain.chain_from, chain.velocity, index, 4, 0.5)
    torch.testing.assert_close(chain.chain_to, mean + std * noise)
    torch.testing.assert_close(chain.velocity, chain.chain_from * flow.times(index, 4)[:, None, None])


def test_without_exploration_noise_changes_nothing() -> None:
    arguments = {"method": "sde", "steps": 4, "noise_level": 0.5, "explore": False}
    initial, index = torch.ones(1, 1, 1), torch.tensor([1])
    ends = [flow.sample(lambda x, t: x, initial, one(n), index, **arguments).final for n in (0.0, 9.0)]
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], one(0.75**4))


def test_imitation_pair_by_hand() -> None:
    x, goal = flow.imitation_pair(one(2.0), one(1.0), torch.tensor([0.25]))
    assert float(x) == 0.25 * 1.0 + 0.75 * 2.0
    assert float(goal) == -1.0


def test_the_last_cps_step_is_never_drawn() -> None:
    assert flow.stochastic_choices("cps", 4) == 3
    assert flow.stochastic_choices("sde", 4) == 4


def test_shapes_are_checked_first() -> None:
    with pytest.raises(ValueError, match=r"index \[B\]"):
        flow.transition("sde", torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), torch.tensor([0]), 4, 0.5)
