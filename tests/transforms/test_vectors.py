"""States and actions as vectors: parts, padding, horizons, grippers, statistics."""

import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlvla3.errors import UserError
from rlvla3.transforms.api import Chain, Inverse
from rlvla3.transforms.grippers import Binarise, Fingers, Shares, regrip
from rlvla3.transforms.statistics import Normalise, Statistics, choose, read_statistics
from rlvla3.transforms.vectors import Block, Blocks, Clip, Executed, Pad, PlusState, Rescale

steady = settings(max_examples=60, deadline=None)
number = st.floats(-1e3, 1e3, allow_subnormal=False)


def vectors(size):
    return hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.just(size)), elements=number)


@steady
@given(vectors(5), st.integers(5, 9))
def test_padding(values, width):
    step = Pad(5, width)
    padded = step.apply(values)
    assert padded.shape == (len(values), width) and padded.dtype == values.dtype
    np.testing.assert_array_equal(padded[:, step.mask], values)
    assert not padded[:, ~step.mask].any()
    np.testing.assert_array_equal(step.invert(padded), values)
    padded[:, 5:] = np.nan
    np.testing.assert_array_equal(step.invert(padded), values)
    with pytest.raises(ValueError, match="5 numbers do not fit into a width of 4"):
        Pad(5, 4)


@steady
@given(vectors(6), st.floats(0.01, 100))
def test_blocks_move_and_rescale(values, factor):
    step = Blocks(
        blocks=(
            Block(source=slice(0, 2), target=slice(3, 5), step=Rescale(factor)),
            Block(source=slice(4, 6), target=slice(0, 2), step=Chain()),
        ),
        source_rest=(0, 0, 7, 8, 0, 0),
        target_rest=(0, 0, 9, 0, 0),
    )
    made = step.apply(values)
    np.testing.assert_array_equal(made[:, :2], values[:, 4:])
    np.testing.assert_allclose(made[:, 3:], values[:, :2] * factor)
    assert (made[:, 2] == 9).all()
    back = step.invert(made)
    np.testing.assert_allclose(back[:, [0, 1, 4, 5]], values[:, [0, 1, 4, 5]], atol=1e-12)
    np.testing.assert_array_equal(back[:, 2:4], np.broadcast_to([7, 8], (len(values), 2)))


@steady
@given(st.integers(1, 8), st.data())
def test_a_horizon_is_cut_and_continued(horizon, data):
    chunk = data.draw(st.integers(1, horizon))
    step, said = Executed(horizon, chunk), np.random.default_rng(0).normal(size=(2, horizon, 3))
    done = step.apply(said)
    np.testing.assert_array_equal(done, said[:, :chunk])
    back = step.invert(done)
    assert back.shape == said.shape
    np.testing.assert_array_equal(back[:, :chunk], done)
    np.testing.assert_array_equal(back[:, chunk:], np.repeat(done[:, -1:], horizon - chunk, 1))
    with pytest.raises(ValueError, match=re.escape(f"actions must be [..., {horizon}, A]")):
        step.apply(np.zeros((2, horizon + 1, 3)))
    with pytest.raises(ValueError, match="must be 1 to"):
        Executed(horizon, horizon + 1)


def test_differences_to_a_state():
    step = PlusState(((0, 2), (1, 0)))
    said, state = (
        np.random.default_rng(0).normal(size=(4, 5, 3)),
        np.random.default_rng(1).normal(size=(4, 3)),
    )
    done = step.apply(said, state)
    np.testing.assert_allclose(done[:, :, 0], said[:, :, 0] + state[:, None, 2])
    np.testing.assert_allclose(done[:, :, 1], said[:, :, 1] + state[:, None, 0])
    np.testing.assert_array_equal(done[:, :, 2], said[:, :, 2])
    np.testing.assert_allclose(step.invert(done, state), said, atol=1e-12)
    with pytest.raises(ValueError, match=r"state must be \[..., S\] for actions \[4, 5, 3\], is \[3, 3\]"):
        step.apply(said, state[:3])


def test_clipping_loses_what_is_outside():
    step = Clip(-1.0, 1.0)
    np.testing.assert_array_equal(step.apply(np.array([-2.0, 0.5])), [-1, 0.5])
    np.testing.assert_array_equal(step.invert(np.array([-1.0, 0.5])), [-1, 0.5])


def test_a_chain_is_inverted_from_its_end():
    chain = Chain((Rescale(2.0), Pad(1, 2), Inverse(Pad(1, 2)), Inverse(Rescale(8.0))))
    np.testing.assert_array_equal(chain.apply(np.array([4.0])), [1.0])
    np.testing.assert_array_equal(chain.invert(np.array([1.0])), [4.0])


# --- grippers --------------------------------------------------------------------------------

ROBOSUITE, BRIDGE, UNIT = (
    Shares(open=(-1.0,), closed=(1.0,)),
    Shares(open=(1.0,), closed=(-1.0,)),
    Shares(open=(1.0,), closed=(0.0,)),
)
PANDA = Shares(open=(0.04, -0.04), closed=(0.0, 0.0))


@pytest.mark.parametrize(
    ("source", "target", "said", "wanted"),
    [
        (ROBOSUITE, BRIDGE, 0.3, -0.3),  # a sign flip
        (UNIT, ROBOSUITE, 0.75, -0.5),  # -(2g - 1)
        (BRIDGE, UNIT, -1.0, 0.0),
        (UNIT, UNIT, 5.0, 5.0),
    ],
)
def test_conventions_by_hand(source, target, said, wanted):
    step = regrip(source, target, None)
    np.testing.assert_allclose(step.apply(np.array([said])), [wanted])
    np.testing.assert_allclose(step.invert(np.array([wanted])), [said])


@steady
@given(st.sampled_from([ROBOSUITE, BRIDGE, UNIT]), st.sampled_from([ROBOSUITE, BRIDGE, UNIT]), vectors(1))
def test_conventions_round_trip(source, target, values):
    step = regrip(source, target, None)
    np.testing.assert_allclose(step.invert(step.apply(values)), values, atol=1e-9)


def test_fingers():
    mirrored = regrip(Shares(open=(0.04, 0.04), closed=(0.0, 0.0)), PANDA, None)
    np.testing.assert_allclose(mirrored.apply(np.array([0.01, 0.02])), [0.01, -0.02])
    one = regrip(PANDA, UNIT, None)
    np.testing.assert_allclose(one.apply(np.array([0.04, -0.02])), [0.75])
    np.testing.assert_allclose(one.invert(np.array([0.75])), [0.03, -0.03])
    with pytest.raises(ValueError, match=r"a gripper must be \[..., 2\]"):
        Fingers(2, 1).apply(np.zeros(3))


def test_binary_grippers():
    step = regrip(UNIT, ROBOSUITE, 0.5)
    np.testing.assert_array_equal(
        step.apply(np.array([[0.49], [0.5], [7.0], [-3.0]])), [[1], [-1], [-1], [1]]
    )
    np.testing.assert_array_equal(step.invert(np.array([[1.0], [-1.0]])), [[0], [1]])
    assert regrip(UNIT, UNIT, 0.5).apply(np.array([0.7])) == 1
    assert Binarise(0.5).apply(np.float32([0.6])).dtype == np.float32


# --- statistics ------------------------------------------------------------------------------


@st.composite
def some_statistics(draw):
    size, mode = draw(st.integers(1, 4)), draw(st.sampled_from(["mean_std", "quantile", "min_max"]))
    first = [draw(st.floats(-5, 5)) for _ in range(size)]
    gaps = [draw(st.floats(0.01, 5)) for _ in range(size)]
    second = gaps if mode == "mean_std" else [a + gap for a, gap in zip(first, gaps, strict=True)]
    mask = draw(st.one_of(st.just(()), st.tuples(*[st.booleans()] * size)))
    epsilon = draw(st.sampled_from([0.0, 1e-6]))
    return Statistics(mode=mode, first=tuple(first), second=tuple(second), mask=mask, epsilon=epsilon)


@steady
@given(some_statistics(), st.data())
def test_normalisation_round_trips_and_leaves_masked_dimensions_alone(statistics, data):
    values = data.draw(vectors(statistics.size))
    step = Normalise(statistics)
    normal = step.apply(values)
    np.testing.assert_allclose(step.invert(normal), values, atol=1e-9)
    if statistics.mask:
        alone = ~np.array(statistics.mask)
        np.testing.assert_array_equal(normal[:, alone], values[:, alone])


@pytest.mark.parametrize(
    ("mode", "raw", "normal"),
    [
        ("mean_std", [2.0, 7.0], [0.0, 1.0]),
        ("quantile", [2.0, 5.0], [-1.0, 1.0]),
        ("min_max", [2.0, 3.5], [-1.0, 0.0]),
    ],
)
def test_modes_by_hand(mode, raw, normal):
    step = Normalise(Statistics(mode=mode, first=(2.0,), second=(5.0,)))
    np.testing.assert_allclose(step.apply(np.array([[x] for x in raw]))[:, 0], normal)


def test_the_formulas_of_published_checkpoints():
    first, second, x = np.array([-0.2, 1.0]), np.array([0.7, 1.4]), np.array([0.3, 1.1])
    step = Normalise(Statistics(mode="quantile", first=tuple(first), second=tuple(second), epsilon=1e-6))
    np.testing.assert_allclose(step.apply(x), (x - first) / (second - first + 1e-6) * 2 - 1, rtol=1e-12)
    step = Normalise(Statistics(mode="mean_std", first=tuple(first), second=tuple(second), epsilon=1e-6))
    np.testing.assert_allclose(step.apply(x), (x - first) / (second + 1e-6), rtol=1e-12)
    step = Normalise(Statistics(mode="quantile", first=tuple(first), second=tuple(second), epsilon=1e-8))
    np.testing.assert_allclose(step.invert(x), 0.5 * (x + 1) * (second - first + 1e-8) + first, rtol=1e-12)


@pytest.mark.parametrize("mode", ["mean_std", "quantile", "min_max"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_a_dimension_that_never_varies_is_finite_and_warns(mode, epsilon):
    second = (0.0, 1.0) if mode == "mean_std" else (3.0, 4.0)
    statistics = Statistics(mode=mode, first=(3.0, 3.0), second=second, epsilon=epsilon)
    with pytest.warns(UserWarning, match=r"dimensions \[0\] never vary"):
        step = Normalise(statistics)
    normal = step.apply(np.array([3.0, 3.0]))
    assert np.isfinite(normal).all() and np.isfinite(step.apply(np.array([9.0, 9.0]))).all()
    np.testing.assert_allclose(step.invert(normal), [3, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Normalise(Statistics(mode=mode, first=(3.0, 3.0), second=second, mask=(False, True)))


def test_the_digest_tells_apart_what_normalises_differently():
    base = {"mode": "quantile", "first": (0.0, 1.0), "second": (1.0, 2.0)}
    changes = (
        {},
        {"mode": "min_max"},
        {"first": (0.0, 1.0 + 1e-9)},
        {"second": (1.5, 2.0)},
        {"mask": (True, False)},
        {"epsilon": 1e-6},
    )
    digests = [Statistics(**base | change).digest() for change in changes]
    assert len(set(digests)) == len(digests) and {len(digest) for digest in digests} == {16}
    assert Statistics(**base).digest() == digests[0]
    assert digests[0] == "7107f663763cf9f4", "a digest in a checkpoint must mean the same tomorrow"


def test_statistics_are_read_from_a_file_or_refused_in_one_line():
    found = {"mean": [1, 2], "std": [3, 4], "q01": [0, 0], "q99": [5, 6], "mask": [True, False]}
    read = read_statistics(found, "quantile", "f.json: action", epsilon=1e-8)
    assert (read.first, read.second, read.mask, read.epsilon) == ((0, 0), (5, 6), (True, False), 1e-8)
    assert read_statistics(found, "mean_std", "f.json").first == (1, 2)
    said = {
        "f.json: mode min_max needs min and max; there are mean, std, q01, q99, mask; choose the mode": (
            lambda: read_statistics(found, "min_max", "f.json")
        ),
        "f.json: there is no mode 'z'; modes are mean_std, quantile, min_max": (
            lambda: read_statistics(found, "z", "f.json")
        ),
        "f.json: there are no statistics 'a'; there are b, c": lambda: choose(
            {"b": 1, "c": 2}, "a", "f.json"
        ),
        "need equally many numbers everywhere, they have 1 and 2": (
            lambda: Statistics(mode="quantile", first=(1.0,), second=(1.0, 2.0))
        ),
        "must be finite": lambda: Statistics(mode="quantile", first=(1.0,), second=(float("nan"),)),
    }
    for line, wrong in said.items():
        with pytest.raises(UserError, match=re.escape(line)):
            wrong()
    assert choose({"b": {"mean": [1]}}, "b", "f.json") == {"mean": [1]}
