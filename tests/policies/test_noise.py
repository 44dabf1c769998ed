"""Exploration noise depends on its key alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.policies.api import NoiseKey
from rlvla3.policies.noise import draw_flow_noise, draw_gumbel

KEYS = st.builds(
    NoiseKey, seed=st.integers(0, 2**63), episode=st.integers(0, 2**63), chunk=st.integers(0, 2**20)
)


@given(st.lists(KEYS, min_size=1, max_size=6, unique=True), st.randoms())
def test_noise_does_not_depend_on_the_batch(keys, random) -> None:
    order = list(range(len(keys)))
    random.shuffle(order)
    whole = draw_flow_noise(tuple(keys), (3, 2), 4, 2)
    mixed = tuple(keys[i] for i in order)
    shuffled = draw_flow_noise(mixed, (3, 2), 4, 2)
    assert np.array_equal(draw_gumbel(tuple(keys), (2, 5))[order], draw_gumbel(mixed, (2, 5)))
    assert np.array_equal(whole.initial[order], shuffled.initial)
    assert np.array_equal(whole.step[order], shuffled.step)
    assert np.array_equal(whole.index[order], shuffled.index)


def test_every_part_of_the_key_counts() -> None:
    keys = [NoiseKey(seed=s, episode=e, chunk=c) for s in (0, 1) for e in (0, 1) for c in (0, 1)]
    initial = draw_flow_noise(tuple(keys), (2, 2), 4).initial.reshape(8, 4)
    assert len(np.unique(initial, axis=0)) == 8


def test_law_of_the_noise() -> None:
    keys = tuple(NoiseKey(seed=3, episode=e, chunk=0) for e in range(2000))
    noise = draw_flow_noise(keys, (4, 2), 4)
    for values in (noise.initial, noise.step):
        assert abs(float(values.mean())) < 0.03
        assert abs(float(values.std()) - 1.0) < 0.03
    assert abs(float((noise.initial * noise.step[:, 0]).mean())) < 0.03
    counts = np.bincount(noise.index, minlength=4)
    assert len(counts) == 4
    assert counts.min() > 400


def test_longer_windows_start_with_the_same_initial_noise() -> None:
    keys = tuple(NoiseKey(seed=3, episode=e, chunk=0) for e in range(3))
    one, all_ = draw_flow_noise(keys, (3, 2), 4), draw_flow_noise(keys, (3, 2), 1, 4)
    assert np.array_equal(one.initial, all_.initial)
    assert np.array_equal(one.step[:, 0], all_.step[:, 0])
    assert all_.step.shape == (3, 4, 3, 2)
    assert not all_.index.any()


def test_law_of_gumbel_noise() -> None:
    """Mean 0.5772 (Euler's constant), variance π²/6."""
    keys = tuple(NoiseKey(seed=3, episode=e, chunk=0) for e in range(2000))
    noise = draw_gumbel(keys, (8,))
    assert abs(float(noise.mean()) - 0.5772) < 0.03
    assert abs(float(noise.var()) - np.pi**2 / 6) < 0.06
