"""Several Trainer members: equally many calls for all, one answer where one writes, and an end together."""

import engine_rules
import pytest
import worlds as w

from rlvla3.core.engine import Engine
from rlvla3.core.health import Up
from rlvla3.messages import (
    CheckpointSaved,
    FinishUpdate,
    Member,
    MemberReady,
    PublishWeights,
    StopRequested,
    TrainMicroBatch,
    UpdateDone,
)
from rlvla3.runtime.virtual import Fault, VirtualRuntime

A, B = Member("trainer-0"), Member("trainer-1")


def world(trainers=2, **changes):
    return w.settings(w.topology(trainers=trainers), train=w.training(**changes))


def run(settings, **options):
    """Run; returns the report and everything that each Trainer member was told."""
    rules, told = engine_rules.Rules(settings), {t: [] for t in settings.topology.trainers}

    def watch(now_s, event, commands):
        rules(now_s, event, commands)
        for command in commands:
            if getattr(command, "member", "") in told:
                told[command.member].append((now_s, command))

    costs = options.pop("costs", w.costs())
    workload = options.pop("workload", w.workload())
    runtime = VirtualRuntime(settings, costs, workload, watch=watch, **options)
    rules.engine = runtime.engine
    return runtime.run(until_s=10_000.0), told, runtime


def sizes(told):
    return [len(c.trajectories) for _, c in told if isinstance(c, TrainMicroBatch)]


def test_members_get_equally_many_micro_batches_and_some_are_empty():
    report, told, _ = run(world(trainers=3, batch=7, micro_batch=2, updates=2))
    assert not report.stop.failed
    assert [sizes(commands) for commands in told.values()] == [[2, 1] * 2, [2, 0] * 2, [2, 0] * 2]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_update_takes_as_long_as_its_busiest_member(streaming):
    def seconds(trainers):
        settings = world(trainers, batch=8, micro_batch=4, updates=6, max_lag=0)
        costs = w.costs(train_per_chunk_s=0.05)
        report, _, _ = run(settings, costs=costs, workload=w.workload(streaming=streaming))
        return report.seconds

    one, two = seconds(1), seconds(2)
    # 8 trajectories of 10 chunks: 4 s of training of a version for one member, 2 s for each of two.
    assert one > 6 * (2.0 if streaming else 4.0)
    assert two < one - 6 * (0.8 if streaming else 1.9)


def test_an_update_is_done_when_all_say_so():
    settings = world(updates=3)
    seen = []

    def watch(now_s, event, commands):
        if isinstance(event, UpdateDone):
            seen.append((event.member, [type(c) for c in commands if isinstance(c, PublishWeights)]))

    VirtualRuntime(settings, w.costs(), w.workload(), watch=watch).run()
    assert [published for _, published in seen] == [[], [PublishWeights] * 2] * 3
    assert {member for member, _ in seen} == {A, B}


def test_members_that_disagree_on_an_update_end_the_run():
    runtime = VirtualRuntime(world(), w.costs(), w.workload())
    told = runtime.engine.on

    def on(event, now_s):
        if isinstance(event, UpdateDone) and event.member == B:
            event = UpdateDone(member=B, update=event.update, skipped="too far")
        return told(event, now_s)

    runtime.engine.on = on
    with pytest.raises(RuntimeError, match="update 0 was skipped by trainer-1 only"):
        runtime.run()


def test_nothing_is_published_trained_or_saved_before_all_members_are_up():
    engine = Engine(world(), 0.0)
    assert engine.on(MemberReady(member=A), 1.0) == []
    assert not engine.ending.saves
    commands = engine.on(MemberReady(member=B), 2.0)
    assert [(type(c), c.member) for c in commands] == [(PublishWeights, A), (PublishWeights, B)]
    assert engine.ending.saves


def test_a_stop_before_all_members_are_up_ends_without_a_checkpoint():
    engine = Engine(world(), 0.0)
    engine.on(MemberReady(member=A), 1.0)
    (stop,) = engine.on(StopRequested(reason="asked to"), 1.5)
    assert (stop.reason, stop.failed) == ("asked to", False)


def test_only_the_first_member_answers_for_what_is_written():
    engine = Engine(world(), 0.0)
    for member in (A, B):
        engine.on(MemberReady(member=member), 1.0)
    with pytest.raises(RuntimeError, match="trainer-1 ended a checkpoint that it was not given"):
        engine.on(CheckpointSaved(member=B, version=0), 2.0)


@pytest.mark.parametrize("member", [A, B])
@pytest.mark.parametrize("kind", ["crash", "hang", "stuck"])
def test_any_lost_member_ends_the_run_with_its_name(member, kind):
    settings = w.settings(
        w.topology(trainers=2),
        train=w.training(updates=50),
        watch=w.health(heartbeat_timeout_s=2.5, update_timeout_s=5.0),
    )
    report, _, runtime = run(settings, faults=(Fault(at_s=1.0, kind=kind, member=member),))
    assert report.stop.failed
    assert report.stop.reason.startswith(f"{member} was lost: ")
    assert runtime.engine.health.state[member] is Up.LOST


def test_a_skipped_update_is_skipped_by_all():
    report, told, runtime = run(world(updates=3), faults=(Fault(at_s=0.0, kind="skip_update", member=""),))
    assert not report.stop.failed
    assert runtime.engine.statistics.skipped_updates == 1
    finished = [[c.update for _, c in commands if isinstance(c, FinishUpdate)] for commands in told.values()]
    assert finished == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("seed", [1, 2])
def test_an_ordered_update_is_dealt_the_same_whatever_arrives_first(seed):
    def dealt(seed):
        settings = world(trainers=2, batch=12, micro_batch=2, max_lag=0, ordered=True, updates=4)
        workload = w.workload(max_chunks=100, episode_chunks=lambda task, episode: 1 + episode * 7 % 10)
        _, told, _ = run(settings, costs=w.costs(sub_step_cv=3.0), workload=workload, seed=seed)
        return [
            [[t.episode for t in c.trajectories] for _, c in commands if isinstance(c, TrainMicroBatch)]
            for commands in told.values()
        ]

    assert dealt(seed) == dealt(0)
    assert dealt(0)[0][:3] == [[0, 1], [4, 5], [8, 9]]
