"""From finished trajectories to updates."""

import worlds as w

from rlvla3.core.intake import Intake
from rlvla3.core.staleness import Staleness
from rlvla3.messages import Episode, Row, Start, Trajectory, Version


def filled(rows, batch, on_stale="drop", **changes):
    """An intake with finished trajectories of version 0, and the number of each row's episode."""
    staleness = Staleness(batch, 1)
    intake = Intake(w.training(batch=batch, max_lag=1, on_stale=on_stale, **changes), staleness)
    for row, episode in enumerate(rows):
        staleness.start(Row(row), Version(0))
        intake.add(
            Trajectory(
                row=Row(row),
                group=0,
                episode=Episode(episode),
                start=Start(task=0, split="train", state=0),
                first_chunk=0,
                chunks=1,
                sub_steps=1,
                end="terminated",
                success=False,
                total_reward=0.0,
                oldest_version=Version(0),
            )
        )
    return intake


def update(intake):
    sizes = []
    while micro_batch := intake.micro_batch():
        sizes.append(len(micro_batch))
    assert intake.complete
    intake.finish()
    assert intake.micro_batch() == ()
    intake.done(skipped=False)
    return sizes


def test_the_last_micro_batch_may_be_smaller():
    assert update(filled(range(5), batch=5, micro_batch=2)) == [2, 2, 1]


def test_a_micro_batch_waits_until_it_is_full():
    assert filled(range(3), batch=8, micro_batch=4).micro_batch() == ()


def test_what_is_too_old_is_taken_out_of_the_queue():
    intake = filled(range(7), batch=3, micro_batch=3)
    update(intake)
    assert intake.stale() == []
    update(intake)
    assert [t.row for t in intake.stale()] == [6]
    assert intake.queue == []


def test_with_a_quota_an_update_is_sent_in_the_order_of_its_episodes():
    intake = filled([3, 1, 2, 0], batch=4, micro_batch=2, quota=1)
    assert [t.episode for t in intake.micro_batch() + intake.micro_batch()] == [0, 1, 2, 3]
