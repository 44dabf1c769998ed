"""Initial states are read from what LIBERO ships, and from nothing that could run."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from rlvla3.errors import UserError
from rlvla3.simulators.libero_states import load_states

STATES = np.arange(12, dtype=np.float64).reshape(3, 4) / 7


def write(path: Path, content: object, how: str) -> Path:
    """What ``torch.save`` writes, now or before, or a plain pickle."""
    if how == "plain":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    return path


class Hostile:
    """A pickle that makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["zip", "older", "plain"])
def test_official_files_are_read(tmp_path: Path, how: str) -> None:
    found = load_states(write(tmp_path / "task.pruned_init", STATES, how))
    np.testing.assert_array_equal(found, STATES)
    assert found.dtype == np.float64 and found.flags.writeable


def test_an_array_file_beside_it_is_preferred(tmp_path: Path) -> None:
    path = write(tmp_path / "task.pruned_init", STATES, "zip")
    np.savez_compressed(f"{path}.npz", states=STATES + 1)
    np.testing.assert_array_equal(load_states(path), STATES + 1)


@pytest.mark.parametrize("how", ["zip", "older", "plain"])
def test_a_hostile_file_is_refused_in_one_line_and_runs_nothing(tmp_path: Path, how: str) -> None:
    made = tmp_path / "made"
    path = write(tmp_path / "task.pruned_init", [STATES, Hostile(made)], how)
    with pytest.raises(UserError) as refused:
        load_states(path)
    assert str(refused.value) == (
        f"{path}: names posix.mkdir, which initial states do not need: not run; use the original file"
    )
    assert not made.exists()
    torch.load(path, weights_only=False) if how != "plain" else pickle.loads(path.read_bytes())
    assert made.exists(), "the file is not hostile"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (torch.zeros(3, 4), "torch"),
        (np.array([[1.0, None]], object), "array of finite numbers"),
        (np.array([[1.0, np.nan]]), "array of finite numbers"),
        (np.zeros(3), "array of finite numbers"),
        ({"a": 1}, "array of finite numbers"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(tmp_path: Path, content: object, says: str) -> None:
    path = write(tmp_path / "task.pruned_init", content, "zip")
    with pytest.raises(UserError, match=says) as refused:
        load_states(path)
    assert "\n" not in str(refused.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "task.pruned_init"
    for content in (b"", b"nonsense", pickle.dumps(STATES, protocol=2)[:40]):
        path.write_bytes(content)
        with pytest.raises(UserError, match="cannot be read as initial states"):
            load_states(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/version", "3")
    with pytest.raises(UserError, match="cannot be read as initial states"):
        load_states(path)


def test_arrays_are_not_allocated_by_what_a_file_says(tmp_path: Path) -> None:
    """An array class that a pickle calls with a shape of its own would take all memory."""
    call = b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85\x85R."
    path = tmp_path / "task.pruned_init"
    path.write_bytes(call)
    with pytest.raises(UserError, match="cannot be read as initial states"):
        load_states(path)


def test_a_missing_file_says_where_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.pruned_init: there are no initial states here"):
        load_states(tmp_path / "nothing.pruned_init")
