import multiprocessing

import numpy as np
import pytest

from rlvla3.demonstrations import Plan, collect, load, save
from rlvla3.errors import UserError

PLAN = {
    "kind": "synthetic",
    "settings": {"task": "reach"},
    "tasks": (0, 2),
    "per_task": 4,
    "speed": (0.5, 0.9),
    "noise": 0.1,
    "stride": 3,
    "chunk": 5,
    "seed": 1,
}


def made(workers=0, **changes):
    return collect(Plan(**{**PLAN, **changes}), workers)


@pytest.fixture(scope="module")
def dataset():
    return made()


def test_frames_belong_to_their_episodes(dataset):
    frames = [int(np.ceil(length / 3)) for length in dataset.lengths]
    assert dataset.episode_task.tolist() == [0] * 4 + [2] * 4
    assert dataset.episode.tolist() == np.repeat(np.arange(8), frames).tolist()
    assert dataset.task.tolist() == np.repeat(dataset.episode_task, frames).tolist()
    assert dataset.actions.shape == (sum(frames), 5, 2)
    assert dataset.observation["image"].shape == (sum(frames), 32, 32, 3)
    assert dataset.header["failures"] == {"red": 0, "blue": 0}


def test_chunks_overlap_and_repeat_the_last_label(dataset):
    for episode, length in enumerate(dataset.lengths):
        rows = np.flatnonzero(dataset.episode == episode)
        actions, valid = dataset.actions[rows], dataset.valid[rows]
        for i, row in enumerate(valid):
            assert row.tolist() == [3 * i + c < length for c in range(5)]
        np.testing.assert_array_equal(actions[:-1, 3:], actions[1:, :2])
        last = actions[-1][valid[-1]][-1]
        np.testing.assert_array_equal(actions[~valid], np.tile(last, (int((~valid).sum()), 1)))


def test_labels_are_slowed(dataset):
    fastest = np.abs(dataset.actions).max()
    assert 0.5 <= fastest <= 0.9


def test_step_budgets(dataset):
    red = dataset.lengths[:4]
    assert dataset.success_steps(1.0)["red"] == red.max()
    assert dataset.success_steps(0.0)["blue"] == dataset.lengths[4:].min()
    assert set(dataset.success_steps(0.5)) == {"red", "blue"}


@pytest.mark.live
def test_any_number_of_workers_gives_the_same(dataset):
    other = made(workers=2)
    for name, array in dataset.observation.items():
        np.testing.assert_array_equal(other.observation[name], array)
    np.testing.assert_array_equal(other.actions, dataset.actions)
    np.testing.assert_array_equal(other.lengths, dataset.lengths)


def test_a_saved_set_loads_equal_and_checks_its_simulator(dataset, tmp_path):
    path = tmp_path / "demonstrations.safetensors"
    save(dataset, path)
    loaded = load(path, dataset.header["fingerprint"])
    assert loaded.header == dataset.header | {"plan": loaded.header["plan"]}
    np.testing.assert_array_equal(loaded.observation["image"], dataset.observation["image"])
    np.testing.assert_array_equal(loaded.valid, dataset.valid)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(UserError, match="seed 0 there, 9 here"):
        load(path, {**dataset.header["fingerprint"], "seed": 9})
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(UserError, match="not a demonstration file"):
        load(path)
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "nothing")


def test_failed_episodes_are_retried_and_counted():
    # Within 18 sub-steps only near starts can be reached, within 2 none.
    slow = made(settings={"task": "reach", "episode_length": 18}, speed=(0.9, 0.9))
    assert (slow.lengths <= 18).all() and len(slow.lengths) == 8
    assert sum(slow.header["failures"].values()) > 0
    with pytest.raises(UserError, match="5 initial states in a row"):
        made(settings={"task": "reach", "episode_length": 2})


@pytest.mark.live
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_refuses_ends_the_others_at_once_and_quietly():
    with pytest.raises(UserError, match="5 initial states in a row"):
        made(workers=2, settings={"task": "reach", "episode_length": 2}, per_task=2000)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speed": (0.9, 0.5)}, r"imitation.demonstrations: speed must"),
        ({"per_task": 0}, "per_task"),
        ({"tasks": (3,)}, r"0…2"),
        ({"settings": {"task": "delay"}, "tasks": (0,)}, "no expert"),
    ],
)
def test_bad_arguments_are_explained(change, message):
    with pytest.raises(UserError, match=message):
        made(**change)
