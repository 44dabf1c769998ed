"""Simulators that are replaced as planned: after so many episodes, with nothing lost."""

from collections import Counter

import engine_rules
import pytest
import worlds as w

from rlvla3.core.recycling import Recycling
from rlvla3.messages import Member, MemberReady, MemberReaped, RecycleMember, StartTrajectories
from rlvla3.runtime.virtual import Fault, VirtualRuntime

FIRST, SECOND = Member("simulator-0"), Member("simulator-1")


def watched(settings, workload, **options):
    """Run under all rules; returns the report, the runtime and [(time, message)]."""
    rules, log = engine_rules.Rules(settings), []

    def watch(now_s, event, commands):
        rules(now_s, event, commands)
        log.append((now_s, event))
        log.extend((now_s, command) for command in commands)

    runtime = VirtualRuntime(settings, w.costs(), workload, watch=watch, **options)
    rules.engine = runtime.engine
    return runtime.run(until_s=10_000.0), runtime, log


def episodes(chunks=4):
    return w.workload(max_chunks=10, episode_chunks=lambda task, episode: chunks)


def lives(log, member):
    """Episodes that each process of a member began."""
    counts = [0]
    for _, message in log:
        if isinstance(message, StartTrajectories) and message.member == member:
            counts[-1] += sum(credit.first_chunk == 0 for credit in message.starts)
        elif isinstance(message, MemberReaped) and message.member == member:
            counts.append(0)
    return counts


@pytest.mark.parametrize("simulators", [1, 2, 3])
@pytest.mark.parametrize("max_lag", [0, 1])
def test_each_process_runs_about_so_many_episodes_and_none_is_lost(simulators, max_lag):
    settings = w.settings(
        w.topology(simulators=simulators, envs=4, slots=2),
        train=w.training(batch=8, updates=20, max_lag=max_lag),
        watch=w.health(recycle_after=10, restarts=0),
    )
    report, runtime, log = watched(settings, episodes())
    statistics = runtime.engine.statistics
    assert not report.stop.failed and not report.replaced
    assert statistics.dropped == {} and statistics.replaced == {} and statistics.given_up == 0
    assert statistics.recycled == Counter(report.recycled)
    assert set(report.recycled) == set(settings.topology.simulators)
    states = sorted(t.start.state for t in report.trained)
    assert states == list(range(160)), "every start is trained, once"
    for member in settings.topology.simulators:
        *ended, _ = lives(log, member)
        # While another one retires, a member may go on beyond its number, for as long as that takes.
        assert ended and min(ended) >= 10
        assert simulators > 1 or max(ended) == 10


def test_one_after_the_other_retires_and_the_others_go_on():
    settings = w.settings(
        w.topology(simulators=2, envs=4, slots=2),
        train=w.training(batch=8, updates=20),
        watch=w.health(recycle_after=10),
    )
    _, _, log = watched(settings, episodes())
    away, started = set(), 0
    for _, message in log:
        if isinstance(message, RecycleMember):
            assert not away, "one at a time"
            away.add(message.member)
        elif isinstance(message, MemberReady):
            away.discard(message.member)
        elif isinstance(message, StartTrajectories):
            assert message.member not in away
            started += bool(away)
    assert started, "the other one is given episodes meanwhile"


def test_an_episode_of_several_segments_is_finished_first():
    settings = w.settings(
        w.topology(simulators=1, envs=3, slots=1),
        train=w.training(batch=4, updates=15, max_lag=0),
        watch=w.health(recycle_after=5),
    )
    lengths = w.workload(max_chunks=2, episode_chunks=lambda task, episode: 1 + episode % 7)
    report, runtime, log = watched(settings, lengths)
    assert set(lives(log, FIRST)[:-1]) == {5}, "segments do not count"
    assert report.recycled and runtime.engine.statistics.dropped == {}
    chunks = Counter()
    for trajectory in report.trained:
        chunks[trajectory.episode] += trajectory.chunks
    whole = [e for e in chunks if e < max(chunks) - 3]
    assert [chunks[e] for e in whole] == [1 + e % 7 for e in whole]


def test_groups_that_wait_for_their_members_are_completed_after_the_change():
    settings = w.settings(
        w.topology(simulators=1, envs=2, slots=1),
        train=w.training(batch=8, group_size=4, updates=10, max_lag=0),
        watch=w.health(recycle_after=2, restarts=0),
    )
    report, runtime, _ = watched(settings, w.workload(max_chunks=10**6, episode_chunks=lambda *_: 3))
    assert len(report.recycled) >= 39
    assert len(report.trained) == 80 and runtime.engine.statistics.dropped == {}


@pytest.mark.parametrize("trains", [True, False])
def test_evaluation_episodes_count_and_are_run_once(trains):
    topology = w.topology(simulators=1, envs=3, slots=1, trainers=int(trains))
    settings = w.settings(
        topology,
        train=w.training(batch=4, updates=2),
        evaluate=w.evaluation(20, every_versions=1, max_envs=3),
        watch=w.health(recycle_after=6, restarts=0),
    )
    report, _, _ = watched(settings, episodes())
    assert [t.start.state for t in report.evaluations[-1].trajectories] == list(range(20))
    assert all(t.chunks == 4 for t in report.evaluations[-1].trajectories)
    assert len(report.recycled) >= 3


def test_an_evaluation_after_the_last_version_does_not_wait_for_episodes_without_end():
    settings = w.settings(
        w.topology(simulators=1, envs=4, slots=1),
        train=w.training(batch=4, updates=2, max_lag=0),
        evaluate=w.evaluation(9, every_versions=2, max_envs=4),
        watch=w.health(recycle_after=4),
    )
    lengths = w.workload(max_chunks=5, episode_chunks=lambda task, episode: 10**9 if episode < 4 else 3)
    report, _, _ = watched(settings, lengths)
    assert len(report.evaluations[-1].trajectories) == 9


@pytest.mark.parametrize("kind", ["crash", "hang", "stuck"])
@pytest.mark.parametrize("at_s", [0.5, 1.0, 1.5, 2.0, 2.5])
def test_a_fault_of_a_retiring_member_is_a_fault(kind, at_s):
    settings = w.settings(
        w.topology(simulators=2, envs=4, slots=2),
        train=w.training(batch=8, updates=20),
        watch=w.health(recycle_after=6, heartbeat_timeout_s=2.5, step_timeout_s=3.0, startup_timeout_s=4.0),
    )
    faults = (Fault(at_s=at_s, kind=kind, member=FIRST),)
    report, runtime, _ = watched(settings, episodes(8), faults=faults, reap_s=0.1)
    assert not report.stop.failed
    assert runtime.engine.statistics.replaced.get(FIRST, 0) == len(report.replaced)
    assert len(report.trained) == 160


def test_who_retires():
    recycling = Recycling(2, [FIRST, SECOND])
    recycling.begun(FIRST)
    assert recycling.retiring is None
    recycling.begun(FIRST)
    for _ in range(5):
        recycling.begun(SECOND)
    assert recycling.retiring == FIRST, "one at a time"
    recycling.renewed(FIRST)
    assert recycling.retiring == SECOND
    recycling.renewed(SECOND)
    assert recycling.retiring is None


def test_a_fresh_process_begins_from_nought():
    recycling = Recycling(2, [FIRST, SECOND])
    recycling.begun(FIRST)
    recycling.renewed(FIRST)
    recycling.begun(FIRST)
    assert recycling.retiring is None
    recycling.renewed(Member("generator-0"))


def test_nothing_is_recycled_unless_asked_for():
    settings = w.settings(w.topology(), train=w.training(updates=20))
    report, runtime, _ = watched(settings, episodes())
    assert not report.recycled and not runtime.engine.statistics.recycled
