"""From finished trajectories to updates."""

import pytest
import worlds as w

from rlvla3.core.intake import Intake
from rlvla3.core.staleness import Staleness
from rlvla3.messages import Episode, Row, Start, Trajectory, Version


def filled(rows, batch, on_stale="drop", trainers=1, group_size=1, **changes):
    """An intake with finished units of version 0, and the number of each unit's first episode.

    ``rows``: a unit for each; its members have the rows and episodes from G times its number on.
    """
    settings = w.training(batch=batch, max_lag=1, on_stale=on_stale, group_size=group_size, **changes)
    staleness = Staleness(settings.units, 1)
    intake = Intake(settings, staleness, trainers)
    for unit, number in enumerate(rows):
        staleness.start(unit, Version(0))
        intake.add(
            tuple(
                trajectory(group_size * unit + member, group_size * number + member, unit)
                for member in range(group_size)
            )
        )
    return intake


def trajectory(row, episode, group):
    return Trajectory(
        row=Row(row),
        episode=Episode(episode),
        group=group,
        start=Start(task=0, split="train", state=0),
        first_chunk=0,
        chunks=1,
        sub_steps=1,
        end="terminated",
        success=False,
        solved_at_reset=False,
        total_reward=0.0,
        oldest_version=Version(0),
    )


def update(intake):
    """Sizes of the micro-batches of each round."""
    sizes = []
    while dealt := intake.round():
        sizes.append([len(micro_batch) for micro_batch in dealt])
    assert intake.complete
    intake.finish()
    assert intake.round() == ()
    intake.done(skipped=False)
    return sizes


def test_the_last_micro_batch_may_be_smaller():
    assert update(filled(range(5), batch=5, micro_batch=2)) == [[2], [2], [1]]


def test_a_micro_batch_waits_until_it_is_full():
    assert filled(range(3), batch=8, micro_batch=4).round() == ()


def test_a_round_waits_until_every_member_has_a_full_micro_batch():
    assert filled(range(5), batch=8, micro_batch=2, trainers=3).round() == ()
    (dealt,) = [filled(range(6), batch=8, micro_batch=2, trainers=3).round()]
    assert [[t.row for t in micro_batch] for micro_batch in dealt] == [[0, 1], [2, 3], [4, 5]]


def test_the_last_round_is_dealt_evenly_and_some_may_get_nothing():
    assert update(filled(range(11), batch=11, micro_batch=2, trainers=3)) == [[2, 2, 2], [2, 2, 1]]
    assert update(filled(range(7), batch=7, micro_batch=2, trainers=3)) == [[2, 2, 2], [1, 0, 0]]


def test_groups_are_dealt_whole():
    sizes = update(filled(range(4), batch=8, micro_batch=4, trainers=3, group_size=2))
    assert sizes == [[4, 2, 2]]
    one = filled(range(4), batch=8, micro_batch=4, group_size=2).round()
    assert [t.group for t in one[0]] == [0, 0, 1, 1]


def test_what_is_too_old_is_taken_out_of_the_queue():
    intake = filled(range(7), batch=3, micro_batch=3)
    update(intake)
    assert intake.stale() == []
    update(intake)
    assert [t.row for (t,) in intake.stale()] == [6]
    assert intake.queue == []


@pytest.mark.parametrize("order", [{"quota": 1}, {"ordered": True}])
def test_an_update_may_be_sent_in_the_order_of_its_episodes(order):
    assert filled([3, 1, 2], batch=4, micro_batch=2, **order).round() == ()
    intake = filled([3, 1, 2, 0], batch=4, micro_batch=2, **order)
    assert [t.episode for t in intake.round()[0] + intake.round()[0]] == [0, 1, 2, 3]


def test_what_finishes_during_an_update_is_for_the_next_one():
    intake = filled(range(2), batch=2, micro_batch=2)
    assert intake.filling == 0
    intake.round()
    intake.finish()
    assert intake.filling == 1
