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
        # t = 1, s = 3/4: â = .5, ê = 1, cos(π/6) = √3/2, sin(π/6) = 1/2
        ("cps", 1 / 3, 0, 0.25 * 0.5 + 0.75 * math.sqrt(0.75), 0.375),
        # η = 1 forgets ê wholly
        ("cps", 1.0, 1, 0.5 * 0.625, 0.5),
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


def law(method: flow.Method = "sde", **changes) -> flow.Law:
    window = 4 if method == "noise" else 1
    given = {"steps": 4, "window": window, "noise_level": 0.5, "noise_std": (0.08, 0.16)}
    return flow.Law(**{"method": method, "include_prior": True, "denoise_reduce": "sum", **given, **changes})


def network(method: flow.Method):
    """Velocity x·t, and for ``noise`` the raw deviation x."""
    return lambda x, t: (x * t[..., None, None], x if method == "noise" else None)


@pytest.mark.parametrize(
    ("raw", "std"),
    # log-variance is linear in tanh: its ends, the geometric mean, and a quarter of the way up
    [(-40.0, 0.1), (0.0, 0.2), (40.0, 0.4), (math.atanh(-0.5), 0.1 * 4**0.25)],
)
def test_learned_deviation_by_hand(raw: float, std: float) -> None:
    torch.testing.assert_close(flow.learned_std(one(raw), 0.1, 0.4), one(std))


def test_noise_log_prob_and_entropy_by_hand() -> None:
    """Two steps of x = 1, v = .5 (d = 1/2): means .75 and 1.0, deviations .2, from x_0 = 1."""
    chain = torch.tensor([1.0, 1.25, 0.95]).reshape(1, 3, 1, 1)
    prediction = (torch.full((1, 2, 1, 1), 0.5), torch.zeros(1, 2, 1, 1))
    half_log_2pi, log_std = 0.9189385332, math.log(0.2)
    steps = [-log_std - half_log_2pi - 0.5 * (0.5 / 0.2) ** 2, -log_std - half_log_2pi - 0.5 * 0.25**2]
    prior = -half_log_2pi - 0.5
    for reduce, priors, expected in (
        ("sum", True, prior + sum(steps)),
        ("sum", False, sum(steps)),
        ("mean", True, (prior + sum(steps)) / 3),
        ("mean", False, sum(steps) / 2),
    ):
        of = law(
            "noise", steps=2, window=2, noise_std=(0.1, 0.4), include_prior=priors, denoise_reduce=reduce
        )
        log_prob, entropy = of.log_prob(chain, prediction, torch.tensor([0]))
        assert float(log_prob) == pytest.approx(expected, abs=1e-5)
        each = half_log_2pi + 0.5
        total = 2 * (each + log_std) + (each if priors else 0.0)
        count = 1 if reduce == "sum" else 2 + priors
        assert float(entropy) == pytest.approx(total / count, abs=1e-5)


def test_entropy_is_the_expected_negative_log_prob() -> None:
    torch.manual_seed(1)
    of, count = law("noise"), 20_000
    constant = lambda x, t: (torch.zeros_like(x), torch.full_like(x, 0.3))  # noqa: E731
    initial, noise, start = torch.randn(count, 1, 1), torch.randn(count, 4, 1, 1), torch.zeros(count).long()
    chain = flow.sample(constant, initial, noise, start, of, explore=True)
    log_prob, entropy = of.log_prob(chain.points, chain.prediction, start)
    assert float(-log_prob.mean()) == pytest.approx(float(entropy[0]), abs=0.05)


def test_cps_counts_its_last_step_as_nothing() -> None:
    """A window over all steps ends with a deterministic one."""
    torch.manual_seed(0)
    initial, noise, start = torch.randn(2, 1, 1), torch.randn(2, 4, 1, 1), torch.zeros(2).long()
    of = law("cps", window=4, include_prior=False)
    chain = flow.sample(network("cps"), initial, noise, start, of, explore=True)
    velocity, _ = chain.prediction
    shorter = law("cps", window=3).log_prob(chain.points[:, :4], (velocity[:, :3], None), start)
    torch.testing.assert_close(of.log_prob(chain.points, chain.prediction, start)[0], shorter[0])


@pytest.mark.parametrize(("method", "window"), [("sde", 1), ("sde", 2), ("cps", 1), ("cps", 2), ("noise", 4)])
def test_sampling_keeps_the_stochastic_steps(method: flow.Method, window: int) -> None:
    torch.manual_seed(0)
    of = law(method, window=window)
    start = torch.tensor([0, min(1, of.starts - 1), of.starts - 1])
    initial, noise = torch.randn(3, 2, 2), torch.randn(3, window, 2, 2)
    chain = flow.sample(network(method), initial, noise, start, of, explore=True)
    torch.testing.assert_close(chain.points[0, 0], initial[0])
    times = flow.times(of.indices(start), 4)
    predicted = network(method)(chain.points[:, :-1], times)
    torch.testing.assert_close(chain.prediction[0], predicted[0])
    mean, std = of.transition(chain.points[:, :-1], predicted, of.indices(start))
    torch.testing.assert_close(chain.points[:, 1:], mean + std * noise)
    x = chain.points[:, -1]
    for row, first in enumerate((start + window).tolist()):
        for i in range(first, 4):
            x[row] = flow.ode_mean(x[row], x[row] * (1 - i / 4), 4)
    torch.testing.assert_close(chain.final, x)


@pytest.mark.parametrize("method", ["sde", "cps", "noise"])
def test_without_exploration_noise_changes_nothing(method: flow.Method) -> None:
    of = law(method)
    initial, start = torch.ones(1, 1, 1), torch.tensor([0])
    still = lambda x, t: (x, x if method == "noise" else None)  # noqa: E731
    ends = [
        flow.sample(still, initial, torch.full((1, of.window, 1, 1), n), start, of, explore=False).final
        for n in (0.0, 9.0)
    ]
    assert torch.equal(ends[0], ends[1])
    torch.testing.assert_close(ends[0], one(0.75**4))


def test_imitation_pair_by_hand() -> None:
    x, goal = flow.imitation_pair(one(2.0), one(1.0), torch.tensor([0.25]))
    assert float(x) == 0.25 * 1.0 + 0.75 * 2.0
    assert float(goal) == -1.0


@pytest.mark.parametrize(
    ("method", "window", "starts"),
    [("sde", 1, 4), ("sde", 3, 2), ("cps", 1, 3), ("cps", 3, 1), ("cps", 4, 1), ("noise", 4, 1)],
)
def test_windows_begin_where_they_fit_and_leave_the_last_cps_step_out(method, window, starts) -> None:
    assert law(method, window=window).starts == starts


def test_shapes_are_checked_first() -> None:
    with pytest.raises(ValueError, match=r"index \[\.\.\.\]"):
        flow.transition("sde", torch.zeros(2, 1, 1), torch.zeros(2, 1, 1), torch.tensor([0]), 4, 0.5)
