"""The slab: disjoint aligned fields of the right shape, in memory that is really there."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.runtime import payloads
from rlvla3.runtime.payloads import SlabLayout, create_memory, map_slab

SPECS = st.lists(
    st.builds(
        FieldSpec,
        name=st.integers(0, 10**6).map(str),
        shape=st.lists(st.integers(1, 5), max_size=3).map(tuple),
        dtype=st.sampled_from(["uint8", "float32", "int64", "bool", "float64", "int16"]),
    ),
    max_size=4,
    unique_by=lambda spec: spec.name,
)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 5),
    chunks=st.integers(1, 4),
    chunk=st.integers(1, 4),
    observation=SPECS,
    record=SPECS,
)
def test_fields_are_disjoint_aligned_and_inside(rows, chunks, chunk, observation, record) -> None:
    layout = SlabLayout.make(rows=rows, chunks=chunks, chunk=chunk, observation=observation, record=record)
    assert len({f.name for f in layout.fields}) == len(layout.fields)
    end = 0
    for field in layout.fields:
        assert field.offset >= end, f"{field.name} overlaps its predecessor"
        assert field.offset % 64 == 0
        end = field.offset + int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize
    assert end <= layout.size
    shapes = {f.name: (f.shape, f.dtype) for f in layout.fields}
    for spec in observation:
        assert shapes[f"observation.{spec.name}"] == ((rows, chunks + 1, *spec.shape), spec.dtype)
    for spec in record:
        assert shapes[f"record.{spec.name}"] == ((rows, chunks, *spec.shape), spec.dtype)
    assert shapes["reward"] == ((rows, chunks, chunk), "float32")


def test_two_mappings_share_and_no_field_writes_into_another() -> None:
    layout = SlabLayout.make(
        rows=3,
        chunks=2,
        chunk=5,
        observation=[FieldSpec(name="image", shape=(7, 3), dtype="uint8")],
        record=[FieldSpec(name="action", shape=(5, 2), dtype="float32")],
    )
    fd = create_memory("test-slab", layout.size)
    try:
        one, other = map_slab(fd, layout), map_slab(fd, layout)
    finally:
        os.close(fd)
    for number, name in enumerate(one):
        one[name][...] = number
    for number, name in enumerate(one):
        assert (other[name] == number).all(), name


def test_memory_is_reserved_at_once() -> None:
    fd = create_memory("test-reserved", 3 << 20)
    try:
        assert os.fstat(fd).st_blocks * 512 >= 3 << 20
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_too_much_memory_is_one_clear_line(monkeypatch) -> None:
    opened = []
    create = os.memfd_create
    monkeypatch.setattr(payloads.os, "memfd_create", lambda *a: opened.append(create(*a)) or opened[-1])
    with pytest.raises(UserError, match=r"slab: \d+ MiB .* cannot be reserved .* lower .* trainer.batch"):
        create_memory("slab", 1 << 62)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
