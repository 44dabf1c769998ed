"""Which start comes next."""

import json

import pytest
import worlds as w

from rlvla3.core.sampling import LAWS
from rlvla3.core.starts import Starts
from rlvla3.messages import Env, Episode, Row, Start, Trajectory, Version

ANY = Env(0)


def take(starts, envs):
    return [(s.task, s.state) for s, _ in (starts.next(Env(e)) for e in envs)]


def test_tasks_take_turns_by_weight_and_states_count_up():
    starts = Starts(w.tasks(1.0, 3.0, states=2))
    assert take(starts, [0] * 8) == [(1, 0), (0, 0), (1, 1), (1, 0), (1, 1), (0, 1), (1, 0), (1, 1)]


def test_a_failed_start_comes_before_a_new_one_and_knows_its_attempts():
    starts = Starts(w.tasks(1.0))
    start, attempts = starts.next(ANY)
    starts.again(ANY, start, attempts + 1)
    assert starts.next(ANY) == (start, 1)
    assert starts.next(ANY) == (Start(task=0, split="train", state=1), 0)


def test_with_fixed_envs_the_order_of_asking_does_not_matter():
    envs = (Env(3), Env(5))
    straight, crossed = (Starts(w.tasks(1.0, 1.0), envs) for _ in range(2))
    expected = take(straight, [3, 5, 3, 5])
    assert expected == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert sorted(take(crossed, [5, 5, 3, 3])) == sorted(expected)
    assert crossed.next(Env(3))[0].task == 0


def test_only_what_an_env_has_not_come_to_yet_is_kept():
    envs = (Env(0), Env(1), Env(2))
    starts = Starts(w.tasks(1.0, 1.0), envs)
    take(starts, [0, 1, 2] * 500)
    assert len(starts._drawn) == 0
    take(starts, [0] * 4)
    assert len(starts._drawn) == 6, "two envs are three starts behind"
    resumed = Starts(w.tasks(1.0, 1.0), envs)
    resumed.restore(starts.snapshot([]))
    assert take(resumed, [0, 1, 2, 2]) == take(starts, [0, 1, 2, 2])
    assert len(resumed._drawn) == len(starts._drawn)


@pytest.mark.parametrize("fixed", [(), (Env(0), Env(1))])
@pytest.mark.parametrize("sampling", sorted(LAWS))
def test_a_restored_sequence_goes_on(fixed, sampling):
    tasks = w.tasks(1.0, 2.0, sampling=sampling, order=(1, 0, 0))
    starts = Starts(tasks, fixed)
    taken = take(starts, [0, 1, 0])
    starts.trained([ended(0, True), ended(0, True), ended(1, False)])
    state = json.loads(json.dumps(starts.snapshot([(Env(1), Start(task=1, split="train", state=0))])))
    resumed = Starts(tasks, fixed)
    resumed.restore(state)
    assert take(resumed, [1]) == [(1, 0)]
    assert resumed.shares == starts.shares
    assert take(resumed, [0, 1, 0] * 5) == take(starts, [0, 1, 0] * 5)
    assert taken != []


def ended(task, success, end="terminated"):
    return Trajectory(
        row=Row(0),
        episode=Episode(0),
        group=0,
        start=Start(task=task, split="train", state=0),
        first_chunk=0,
        chunks=1,
        sub_steps=1,
        end=end,
        success=success,
        solved_at_reset=False,
        total_reward=0.0,
        oldest_version=Version(0),
    )


def test_the_end_of_an_episode_teaches_and_a_piece_of_it_does_not():
    starts = Starts(w.tasks(1.0, 1.0, sampling="success_weighted"))
    starts.trained([ended(0, False, "segment")] * 10)
    assert starts.shares == (0.5, 0.5)
    starts.trained([ended(0, False)] * 10)
    assert starts.shares[0] < 0.5


def test_another_law_than_the_checkpoints_begins_anew_and_states_go_on():
    starts = Starts(w.tasks(1.0, 1.0))
    take(starts, [0, 0, 0])
    resumed = Starts(w.tasks(1.0, 1.0, sampling="list", order=(1, 0)))
    resumed.restore(starts.snapshot([]))
    assert take(resumed, [0, 0]) == [(1, 1), (0, 2)]


def test_other_tasks_or_envs_than_in_the_checkpoint_are_refused():
    with pytest.raises(ValueError, match="1 tasks in the checkpoint, 2 configured"):
        Starts(w.tasks(1.0, 1.0)).restore(Starts(w.tasks(1.0)).snapshot([]))
    with pytest.raises(ValueError, match="1 envs with a quota in the checkpoint, 2 configured"):
        Starts(w.tasks(1.0), (Env(0), Env(1))).restore(Starts(w.tasks(1.0), (Env(0),)).snapshot([]))
