"""Published weights: equal at both ends, and anything torn, old or of another shape is refused."""

import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlvla3.errors import UserError
from rlvla3.messages import Version
from rlvla3.runtime.payloads import create_memory
from rlvla3.runtime.weights import WeightBuffers

ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    hnp.arrays(
        st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "float16"]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture
def fd():
    made = create_memory("test-weights", 0)
    yield made
    os.close(made)


def some(value: float) -> dict:
    return {"a": np.full((3, 5), value, np.float32), "b": np.array(int(value)), "c": np.zeros((0, 4))}


@settings(max_examples=40, deadline=None)
@given(weights=ARRAYS, buffers=st.integers(1, 3))
def test_reader_gets_what_was_written(weights, buffers) -> None:
    fd = create_memory("test-weights", 0)
    try:
        writer = WeightBuffers.lay_out(fd, buffers, weights)
        reader = WeightBuffers.open(fd)
        for buffer in range(buffers):
            writer.write(buffer, Version(buffer + 7), weights)
        for buffer in range(buffers):
            found = reader.read(buffer, Version(buffer + 7))
            assert list(found) == list(weights)
            for name, array in weights.items():
                assert found[name].dtype == array.dtype
                assert found[name].shape == array.shape
                assert found[name].tobytes() == array.tobytes()
    finally:
        os.close(fd)


def test_buffers_are_apart(fd) -> None:
    writer = WeightBuffers.lay_out(fd, 3, some(0))
    for buffer in (0, 2, 1):
        writer.write(buffer, Version(buffer), some(buffer))
    reader = WeightBuffers.open(fd)
    assert [int(reader.read(b, Version(b))["b"]) for b in range(3)] == [0, 1, 2]


def test_a_copy_is_read(fd) -> None:
    writer = WeightBuffers.lay_out(fd, 1, some(1))
    writer.write(0, Version(1), some(1))
    found = WeightBuffers.open(fd).read(0, Version(1))
    writer.write(0, Version(2), some(2))
    assert (found["a"] == 1).all()


def test_another_version_is_refused(fd) -> None:
    writer = WeightBuffers.lay_out(fd, 2, some(1))
    writer.write(0, Version(4), some(1))
    with pytest.raises(RuntimeError, match=r"version 4, .* expected version 5"):
        WeightBuffers.open(fd).read(0, Version(5))
    with pytest.raises(RuntimeError, match="torn publish"):
        WeightBuffers.open(fd).read(1, Version(4))


def test_any_flipped_byte_of_the_data_is_found(fd) -> None:
    weights = {"a": np.arange(6, dtype=np.float32)}
    writer = WeightBuffers.lay_out(fd, 1, weights)
    writer.write(0, Version(1), weights)
    data = writer._start + 64
    for byte in range(data, data + 24):
        (old,) = os.pread(fd, 1, byte)
        os.pwrite(fd, bytes([old ^ 1]), byte)
        with pytest.raises(RuntimeError, match="torn publish"):
            WeightBuffers.open(fd).read(0, Version(1))
        os.pwrite(fd, bytes([old]), byte)
    assert WeightBuffers.open(fd).read(0, Version(1))["a"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_writer_that_died_in_the_middle_leaves_no_valid_version(fd) -> None:
    writer = WeightBuffers.lay_out(fd, 1, some(1))
    writer.write(0, Version(1), some(1))
    with pytest.raises(ValueError, match="laid out"):
        writer.write(0, Version(2), {"a": some(2)["a"]})
    for version in (1, 2):
        with pytest.raises(RuntimeError, match="torn publish"):
            WeightBuffers.open(fd).read(0, Version(version))


@pytest.mark.parametrize(
    "wrong",
    [
        {"a": np.ones((3, 1), np.float32)},
        {"a": np.ones((3, 5), np.float64)},
        {"a": np.float32(1)},
        {"d": np.ones(3)},
    ],
    ids=["shape", "dtype", "scalar", "unknown"],
)
def test_weights_of_another_layout_are_refused(fd, wrong) -> None:
    writer = WeightBuffers.lay_out(fd, 1, some(1))
    with pytest.raises(ValueError, match="laid out"):
        writer.write(0, Version(1), some(1) | wrong)


def test_empty_memory_is_not_laid_out_yet(fd) -> None:
    with pytest.raises(RuntimeError, match="not laid out yet"):
        WeightBuffers.open(fd)


def test_the_layout_may_be_long(fd) -> None:
    weights = {f"layer.{i}.weight": np.full(3, i, np.float32) for i in range(500)}
    writer = WeightBuffers.lay_out(fd, 2, weights)
    assert struct.unpack("<q", os.pread(fd, 8, 0))[0] > 4096
    writer.write(1, Version(3), weights)
    found = WeightBuffers.open(fd).read(1, Version(3))
    assert found["layer.499.weight"].tolist() == [499, 499, 499]


def test_too_much_memory_is_one_clear_line(fd) -> None:
    """A view of one number with the shape of four pebibytes."""
    huge = {"a": np.broadcast_to(np.float32(0), (1 << 50,))}
    with pytest.raises(UserError, match=r"weights: 3 x \d+ MiB .* cannot be reserved .* smaller policy"):
        WeightBuffers.lay_out(fd, 3, huge)
