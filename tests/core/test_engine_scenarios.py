"""Single scenarios in virtual time: modes, members lost at bad moments, evaluation, the end."""

import dataclasses
import json
from itertools import pairwise

import engine_rules
import pytest
import worlds as w

from rlvla3.core.engine import Engine
from rlvla3.core.health import Up
from rlvla3.core.sampling import LAWS
from rlvla3.messages import (
    ApplyActions,
    FinishUpdate,
    Member,
    MemberLost,
    MemberReady,
    MemberReaped,
    ReplaceMember,
    ReportEvaluation,
    StartTrajectories,
    TrajectoryReady,
    UpdateDone,
    WeightsLoaded,
)
from rlvla3.runtime.virtual import Fault, VirtualRuntime

SIMULATOR, GENERATOR, TRAINER = Member("simulator-0"), Member("generator-0"), Member("trainer-0")
SHORT = {
    "heartbeat_timeout_s": 2.5,
    "startup_timeout_s": 4.0,
    "step_timeout_s": 3.0,
    "inference_timeout_s": 3.0,
    "update_timeout_s": 20.0,
}


def world(topology=None, batch=None, train=None, evaluate=None, **watch):
    return w.settings(topology, batch, train, evaluate, w.health(**SHORT | watch))


def fault(kind, at_s, member=""):
    return Fault(at_s=at_s, kind=kind, member=Member(member))


def trace(settings, costs=None, workload=None, **options):
    """Run; returns report, rules, runtime and [(time, message)] of all events and commands."""
    log = []
    rules = engine_rules.Rules(settings)

    def watch(now_s, event, commands):
        rules(now_s, event, commands)
        log.append((now_s, event))
        log.extend((now_s, command) for command in commands)

    runtime = VirtualRuntime(settings, costs or w.costs(), workload or w.workload(), watch=watch, **options)
    rules.engine = runtime.engine
    report = runtime.run(until_s=10_000.0)
    assert report.stop is not None
    assert not rules.unanswered
    return report, rules, runtime, log


def times(log, kind, **fields):
    return [t for t, m in log if isinstance(m, kind) and all(getattr(m, k) == v for k, v in fields.items())]


# --- modes -------------------------------------------------------------------------------------


def seconds(max_lag, streaming, lockstep=False):
    settings = w.settings(
        w.topology(simulators=2, envs=4, slots=4),
        w.batching(lockstep=lockstep),
        w.training(batch=16, max_lag=max_lag, updates=8, micro_batch=4, bootstrap="trainer"),
    )
    costs = w.costs(train_per_chunk_s=0.004, sub_step_s=0.02, sub_step_cv=2.0)
    report, rules, _ = engine_rules.run(settings, costs, w.workload(streaming=streaming))
    return report.seconds, rules


def test_each_level_of_asynchrony_gains_time():
    ss, _ = seconds(0, streaming=False, lockstep=True)
    rollout, _ = seconds(0, streaming=False)
    barrier, _ = seconds(0, streaming=True)
    full, _ = seconds(1, streaming=False)
    assert ss > 1.02 * rollout > 1.02 * barrier > 1.02 * full


def test_without_lag_no_trajectory_starts_before_the_update_is_done_and_loaded():
    settings = w.settings(train=w.training(max_lag=0, updates=4), batch=w.batching())
    costs = w.costs(publish_s=0.1, load_s=0.1)
    _, _, _, log = trace(settings, costs)
    for finish_s, loaded_s in zip(times(log, FinishUpdate), times(log, WeightsLoaded)[1:], strict=False):
        assert not [t for t in times(log, StartTrajectories) if finish_s < t < loaded_s]


def test_with_lag_rollouts_go_on_during_the_update():
    settings = w.settings(train=w.training(max_lag=1, updates=4))
    _, _, _, log = trace(settings, w.costs(train_per_chunk_s=0.02))
    for finish_s, done_s in zip(times(log, FinishUpdate), times(log, UpdateDone), strict=True):
        if done_s < times(log, UpdateDone)[-1]:
            assert [t for t in times(log, TrajectoryReady) if finish_s < t < done_s]


def test_a_slow_trainer_throttles_the_simulators():
    settings = w.settings(train=w.training(batch=4, max_lag=2, updates=6))
    _, rules, runtime = engine_rules.run(settings, w.costs(train_per_chunk_s=0.5), w.workload())
    assert runtime.engine.statistics.trained == 24
    second_update_s = 2 * 4 * 10 * 0.5
    assert len([t for t, _ in rules.started_at if t < second_update_s]) <= 4 * (2 + 2)


def test_lockstep_serves_the_stages_in_turn():
    topology = w.topology(simulators=2, envs=2, batches=2, slots=1)
    settings = w.settings(topology, w.batching(lockstep=True), w.training(max_lag=0, bootstrap="trainer"))
    stage = {slot.slot: slot.stage for slot in topology.slots}
    served = []

    def watch(now_s, event, commands):
        for command in commands:
            if type(command).__name__ == "RunInference":
                served.append(sorted({stage[r.slot] for r in command.requests}))

    runtime = VirtualRuntime(settings, w.costs(), w.workload(), watch=watch)
    runtime.run()
    assert len(served) > 50
    assert all(len(stages) == 1 for stages in served)
    assert all(a != b for a, b in pairwise(served))


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_fast_and_slow_tasks_are_trained_in_their_configured_shares(max_lag):
    train = w.training(batch=8, max_lag=max_lag, updates=20, tasks=w.tasks(1.0, 3.0), step_limits=(0, 0))
    settings = w.settings(w.topology(simulators=2, envs=8, slots=4), train=train)
    workload = w.workload(max_chunks=100, episode_chunks=lambda task, episode: (2, 40)[task])
    report, _, _ = engine_rules.run(settings, w.costs(), workload)
    tasks = [t.start.task for t in report.trained]
    assert (tasks.count(0), tasks.count(1)) == (40, 120)


# --- a fixed quota for each env ----------------------------------------------------------------


def quota_world(simulators, envs, generators, sampling="round_robin", **changes):
    total = simulators * envs
    train = w.training(
        batch=2 * total,
        max_lag=0,
        quota=2,
        updates=4,
        micro_batch=3,
        tasks=w.tasks(1.0, 1.0, sampling=sampling, order=(0, 1, 1)),
        step_limits=(0, 0),
        **changes,
    )
    topology = w.topology(simulators=simulators, envs=envs, slots=2, generators=generators)
    return world(topology, w.batching(), train, w.evaluation(3, every_versions=2))


def quota_run(settings, seed, **options):
    workload = w.workload(
        max_chunks=3,
        episode_chunks=lambda task, episode: (2, 5)[task],
        success=lambda task, episode: task == 1 and episode % 3 == 0,
    )
    report, rules, _ = engine_rules.run(settings, w.costs(sub_step_cv=2.0), workload, seed=seed, **options)
    started = sorted(s for s in rules.starts if s[3] == "rollout")
    fields = [(t.episode, t.start, t.first_chunk, t.chunks, t.oldest_version) for t in report.trained]
    return started, fields


@pytest.mark.parametrize("sampling", sorted(LAWS))
def test_a_quota_makes_what_is_trained_independent_of_timing_and_processes(sampling):
    expected = quota_run(quota_world(1, 8, 1, sampling), seed=0)
    assert len(expected[1]) == 64
    assert quota_run(quota_world(2, 4, 2, sampling), seed=1) == expected
    assert quota_run(quota_world(4, 2, 1, sampling), seed=2) == expected


@pytest.mark.parametrize("at_s", [0.05, 0.11, 0.17, 0.23, 0.3])
def test_a_quota_survives_a_lost_simulator_and_a_skipped_update(at_s):
    faults = (fault("crash", at_s, SIMULATOR), fault("skip_update", 0.4), fault("crash", 2.5, SIMULATOR))
    settings = quota_world(2, 4, 1)
    report, _, runtime = engine_rules.run(
        settings, w.costs(), w.workload(max_chunks=3, episode_chunks=lengths), faults=faults
    )
    assert not report.stop.failed
    assert runtime.engine.statistics.trained == 64


def test_a_quota_that_cannot_be_met_any_more_ends_the_run_with_the_cause():
    settings = quota_world(2, 4, 1)
    settings = dataclasses.replace(settings, health=w.health(restarts=0))
    faults = (fault("crash", 0.3, SIMULATOR),)
    report, _, _ = engine_rules.run(settings, w.costs(), w.workload(max_chunks=3), faults=faults)
    assert report.stop.failed
    assert "simulator-0" in report.stop.reason
    assert "quota" in report.stop.reason


@pytest.mark.parametrize("sampling", sorted(LAWS))
def test_a_quota_continues_the_same_after_a_resume(sampling):
    settings = quota_world(2, 4, 1, sampling, checkpoint_every=2)
    workload = w.workload(max_chunks=10, episode_chunks=lambda task, episode: (2, 5)[task])
    whole, _, _ = engine_rules.run(settings, w.costs(), workload)
    (version, state), *_ = whole.checkpoints
    rest, _, _ = engine_rules.run(settings, w.costs(), workload, state=json.loads(state), seed=5)
    expected = [(t.episode, t.start) for t in whole.trained[version * 16 :]]
    assert [(t.episode, t.start) for t in rest.trained] == expected


# --- members that are lost ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "member", "within_s", "reason"),
    [
        ("crash", "simulator-1", 0.0, "exit code -9"),
        ("hang", "simulator-1", 2.5, "no heartbeat"),
        ("stuck", "simulator-1", 3.1, "has been stepping for"),
        ("crash", "generator-0", 0.0, "exit code -9"),
        ("hang", "generator-0", 2.5, "no heartbeat"),
        ("stuck", "generator-0", 3.1, "an inference batch has taken more than 3 s"),
    ],
)
@pytest.mark.parametrize("generators", [1, 2])
def test_a_lost_member_is_named_and_replaced_in_time(kind, member, within_s, reason, generators):
    topology = w.topology(simulators=3, generators=generators)
    settings = world(topology, train=w.training(max_lag=3, updates=60))
    report, _, _, log = trace(settings, faults=(fault(kind, 1.0, member),), reap_s=0.2)
    (replaced_s,) = times(log, ReplaceMember, member=member, restart=True)
    assert replaced_s <= 1.0 + within_s
    assert reason in report.replaced[0][1]
    assert not report.stop.failed


def test_the_others_go_on_while_one_simulator_is_stuck():
    settings = world(
        w.topology(simulators=3), train=w.training(batch=8, max_lag=3, updates=20), step_timeout_s=5.0
    )
    report, rules, _, log = trace(settings, faults=(fault("stuck", 1.0, "simulator-1"),))
    (replaced_s,) = times(log, ReplaceMember)
    assert replaced_s > 5.0
    for member in ("simulator-0", "simulator-2"):
        assert len([t for t in rules.finished[member] if 1.1 < t < replaced_s]) >= 4
    assert not report.stop.failed


@pytest.mark.parametrize("member", [SIMULATOR, GENERATOR])
@pytest.mark.parametrize(
    "faults",
    [
        [("crash", 0.2)],
        [("hang", 0.2)],
        [("crash", 0.2), ("crash", 0.5), ("crash", 1.3)],
        [("crash", 1.0), ("crash", 1.05), ("hang", 1.6)],
    ],
)
def test_losses_during_start_up_and_several_in_a_row(member, faults):
    settings = world(train=w.training(updates=8))
    struck = tuple(fault(kind, at_s, member) for kind, at_s in faults)
    report, _, _ = engine_rules.run(
        settings, w.costs(), w.workload(), faults=struck, start_s=0.7, restart_s=0.5, reap_s=0.1
    )
    assert not report.stop.failed
    assert {name for name, _ in report.replaced} == {member}


@pytest.mark.parametrize("generators", [1, 2])
def test_a_generator_lost_with_a_full_queue_loses_no_request(generators):
    topology = w.topology(simulators=2, envs=8, slots=8, generators=generators)
    settings = world(topology, w.batching(max_batch_size=2, routing="least_loaded"))
    costs = w.costs(inference_s=0.2)
    report, _, runtime = engine_rules.run(
        settings, costs, w.workload(), faults=(fault("crash", 1.5, GENERATOR),), reap_s=0.3
    )
    assert not report.stop.failed
    assert runtime.engine.statistics.dropped == {}


def test_what_waits_for_a_lost_generator_goes_to_another_one_before_it_is_reaped():
    topology = w.topology(simulators=1, envs=6, slots=6, generators=2)
    settings = world(topology, w.batching(max_batch_size=1, batch_timeout_s=99.0), w.training(max_lag=3))
    _, _, _, log = trace(
        settings, w.costs(inference_s=0.1), faults=(fault("crash", 1.0, GENERATOR),), reap_s=2.0
    )
    answers = [m for t, m in log if isinstance(m, ApplyActions) and 1.0 < t < 3.0]
    assert len({slot for answer in answers for slot, _ in answer.slots}) == 5


def test_a_member_that_reports_ready_after_it_was_lost_is_not_used():
    settings = world(w.topology(simulators=1))
    engine = Engine(settings, 0.0)
    engine.on(MemberLost(member=SIMULATOR, reason="exit code 1"), 1.0)
    assert engine.on(MemberReady(member=SIMULATOR), 1.1) == []
    assert engine.health.state[SIMULATOR] is Up.LOST
    engine.on(MemberReaped(member=SIMULATOR), 1.2)
    engine.on(MemberReady(member=SIMULATOR), 1.3)
    assert engine.health.state[SIMULATOR] is Up.UP


def test_an_idle_generator_takes_over_what_waits_too_long_for_a_busy_one():
    """generator-0 is stuck with requests in its queue; generator-1 serves them at their timeout."""
    topology = w.topology(simulators=1, envs=6, slots=6, generators=2)
    settings = world(topology, w.batching(max_batch_size=1, batch_timeout_s=0.05), w.training(max_lag=3))
    report, _, _ = engine_rules.run(
        settings, w.costs(inference_s=0.1), w.workload(), faults=(fault("stuck", 0.5, GENERATOR),)
    )
    assert not report.stop.failed


def test_a_row_is_not_given_away_while_a_batch_of_a_lost_simulator_writes_into_it():
    """There is one row for the one env: the new simulator must wait for the end of the batch."""
    topology = w.topology(simulators=1, envs=1, slots=1)
    settings = world(topology, train=w.training(batch=1, max_lag=0, micro_batch=1, updates=3))
    settings = dataclasses.replace(settings, rows=1)
    costs = w.costs(inference_s=1.0)
    report, _, _, log = trace(settings, costs, faults=(fault("crash", 0.5, SIMULATOR),), restart_s=0.1)
    first_s, second_s = times(log, StartTrajectories)[:2]
    assert first_s == 0.0
    assert second_s == pytest.approx(1.0 + 0.001, abs=0.01)
    assert not report.stop.failed


@pytest.mark.parametrize("member", [SIMULATOR, GENERATOR])
def test_the_last_of_a_role_gone_for_ever_ends_the_run_with_the_cause(member):
    settings = world(w.topology(simulators=1), restarts=1)
    faults = (fault("crash", 1.0, member), fault("crash", 3.0, member))
    report, _, _ = engine_rules.run(settings, w.costs(train_per_chunk_s=1.0), w.workload(), faults=faults)
    assert report.stop.failed
    assert f"no {member.rpartition('-')[0]} is left: {member} was lost too often" in report.stop.reason


@pytest.mark.parametrize("member", [SIMULATOR, GENERATOR])
def test_the_run_goes_on_without_a_member_that_is_gone_for_ever(member):
    settings = world(w.topology(simulators=2, generators=2), restarts=0)
    report, rules, _ = engine_rules.run(
        settings, w.costs(), w.workload(), faults=(fault("crash", 0.5, member),), reap_s=0.1
    )
    assert not report.stop.failed
    if member == SIMULATOR:
        assert max(rules.finished["simulator-1"]) > 1.0 > max(rules.finished[SIMULATOR])


@pytest.mark.parametrize("kind", ["crash", "hang", "stuck"])
def test_a_lost_trainer_ends_the_run_with_its_name(kind):
    settings = world(train=w.training(updates=50))
    report, _, _ = engine_rules.run(settings, w.costs(), w.workload(), faults=(fault(kind, 1.0, TRAINER),))
    assert report.stop.failed
    assert report.stop.reason.startswith("trainer-0 was lost: ")


def test_updates_that_are_never_finite_end_the_run():
    faults = tuple(fault("skip_update", t / 20) for t in range(400))
    report, _, runtime = engine_rules.run(world(), w.costs(), w.workload(), faults=faults)
    assert report.stop.failed
    told = "3 updates in a row were skipped, which is trainer.max_skipped; the last one because of"
    assert report.stop.reason == f"{told} an injected fault"
    assert runtime.engine.statistics.skipped_updates == 3
    assert runtime.engine.statistics.dropped == {"skipped_update": 24}


# --- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("at_s", [0.0, 0.05, 0.3, 0.9, 1.02, 1.3, 1.57, 2.2])
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("max_lag", [0, 3])
def test_a_stop_at_any_moment_checkpoints_and_answers_everybody(at_s, streaming, max_lag):
    settings = world(
        w.topology(simulators=2, envs=8, slots=8),
        w.batching(max_batch_size=2),
        w.training(updates=99, max_lag=max_lag),
    )
    costs = w.costs(train_per_chunk_s=0.01, publish_s=0.05, load_s=0.05)
    report, _, runtime = engine_rules.run(
        settings, costs, w.workload(streaming=streaming), faults=(fault("stop", at_s),)
    )
    assert report.stop.reason == "asked to"
    assert not report.stop.failed
    assert report.seconds < at_s + 8 * 10 * 0.01 + 0.2
    if at_s:
        assert report.checkpoints[-1][0] == runtime.engine.intake.version


def test_a_simulator_lost_during_the_last_checkpoint_does_not_fail_the_run():
    settings = world(w.topology(simulators=1), train=w.training(updates=99), restarts=0)
    faults = (fault("stop", 1.0), fault("crash", 1.01, SIMULATOR))
    report, _, _ = engine_rules.run(settings, w.costs(train_per_chunk_s=0.05), w.workload(), faults=faults)
    assert report.stop.reason == "asked to"
    assert not report.stop.failed


def test_a_resume_of_a_finished_run_ends_at_once():
    settings = world(evaluate=w.evaluation(2, every_versions=1))
    report, _, _ = engine_rules.run(settings, w.costs(), w.workload(episode_chunks=lambda t, e: 3))
    again, rules, _ = engine_rules.resume(
        report, settings, w.costs(), w.workload(episode_chunks=lambda t, e: 3)
    )
    assert again.stop.reason == "all 10 versions are trained"
    assert again.seconds == 0.0
    assert not rules.starts


def test_an_unfinished_episode_is_started_again_once_however_many_segments_it_had():
    """One env, endless episode of 2-chunk segments: at the checkpoint several of them are unfinished."""
    train = w.training(batch=3, max_lag=3, updates=6, checkpoint_every=1)
    settings = world(w.topology(simulators=1, envs=2, slots=2), train=train)
    costs = w.costs(train_per_chunk_s=0.2)
    report, _, _ = engine_rules.run(settings, costs, w.workload(max_chunks=2))
    state = json.loads(report.checkpoints[1][1])
    assert state["flights"]["unfinished"] > 2
    assert [entry[3] for entry in state["flights"]["starts"]["again"]] == [0, 1]


def test_an_episode_between_two_segments_is_started_again_too():
    train = w.training(batch=4, max_lag=0, updates=4, checkpoint_every=1)
    settings = world(w.topology(simulators=1, envs=2, slots=2), train=train)
    report, _, _ = engine_rules.run(settings, w.costs(), w.workload(max_chunks=2))
    state = json.loads(report.checkpoints[0][1])
    assert state["flights"]["unfinished"] == 0
    assert [entry[3] for entry in state["flights"]["starts"]["again"]] == [0, 1]


# --- evaluation --------------------------------------------------------------------------------


def lengths(task, episode):
    return 2 + episode % 7


@pytest.mark.parametrize(("envs", "slots"), [(3, 1), (3, 3), (8, 3), (1, 1)])
@pytest.mark.parametrize("generators", [1, 2])
def test_pure_evaluation_runs_every_start_once_whatever_the_envs(envs, slots, generators):
    topology = w.topology(simulators=1, envs=envs, slots=slots, generators=generators, trainers=0)
    settings = world(topology, evaluate=w.evaluation(4, max_envs=50))
    report, rules, _ = engine_rules.run(settings, w.costs(), w.workload(episode_chunks=lengths))
    (evaluation,) = report.evaluations
    assert [t.start.state for t in evaluation.trajectories] == [0, 1, 2, 3]
    assert len({t.episode for t in evaluation.trajectories}) == 4
    assert len(rules.starts) == 4
    assert not report.stop.failed


def test_the_result_of_an_evaluation_does_not_depend_on_crashes_or_envs():
    def chunks(envs, faults=()):
        topology = w.topology(simulators=2, envs=envs, slots=1, trainers=0)
        settings = world(topology, evaluate=w.evaluation(12, max_envs=50))
        report, _, _ = engine_rules.run(
            settings, w.costs(), w.workload(episode_chunks=lengths), faults=faults
        )
        return [(t.episode, t.chunks) for t in report.evaluations[0].trajectories]

    expected = chunks(1)
    assert chunks(5) == expected
    assert chunks(3, (fault("crash", 0.1, SIMULATOR), fault("crash", 0.15, GENERATOR))) == expected


def test_rollouts_go_on_during_an_evaluation_in_the_same_slots():
    topology = w.topology(simulators=1, envs=4, slots=1)
    evaluation = w.evaluation(6, every_versions=2, at_start=True, max_envs=1)
    settings = world(topology, train=w.training(updates=12, max_lag=1), evaluate=evaluation)
    report, rules, _, log = trace(settings, workload=w.workload(episode_chunks=lengths))
    mixed = 0
    for _, message in log:
        if type(message).__name__ == "ObservationReady" and message.slot == 0:
            mixed += 1
    assert mixed
    reported = times(log, ReportEvaluation)
    assert [t for t, _ in rules.started_at if t < reported[0]]
    assert report.evaluations[-1].version == 12


def test_an_evaluation_that_cannot_begin_is_counted_but_the_last_one_is_made_up_for():
    evaluation = w.evaluation(30, every_versions=1, max_envs=1)
    settings = world(train=w.training(updates=5), evaluate=evaluation)
    report, _, runtime = engine_rules.run(settings, w.costs(), w.workload(episode_chunks=lengths))
    versions = [r.version for r in report.evaluations]
    assert versions[-1] == 5
    assert len(versions) + runtime.engine.evaluation.skipped == 5


def test_endless_episodes_make_way_for_the_last_evaluation():
    evaluation = w.evaluation(3, every_versions=10, max_envs=2)
    settings = world(train=w.training(updates=10), evaluate=evaluation)
    workload = w.workload(episode_chunks=lambda task, episode: 4 if episode >= 1 << 40 else 1 << 60)
    report, _, _ = engine_rules.run(settings, w.costs(), workload)
    assert [r.version for r in report.evaluations] == [10]


def test_an_evaluation_start_that_always_kills_its_simulator_counts_as_a_failure():
    topology = w.topology(simulators=1, envs=1, slots=1, trainers=0)
    settings = world(topology, evaluate=w.evaluation(2, max_envs=1), start_attempts=2)
    faults = tuple(fault("crash", t, SIMULATOR) for t in (0.05, 1.2, 2.4, 3.6, 4.8))
    report, _, runtime = engine_rules.run(
        settings, w.costs(), w.workload(episode_chunks=lambda t, e: 100), faults=faults, restart_s=0.1
    )
    (evaluation,) = report.evaluations
    assert len(evaluation.trajectories) == 2
    assert runtime.engine.statistics.given_up >= 1
    assert [t.success for t in evaluation.trajectories] == [t.chunks > 0 for t in evaluation.trajectories]


def test_a_resumed_run_counts_its_credits_from_its_version():
    """Had it counted from nothing, it would start more than its lag bound allows."""
    settings = world(train=w.training(updates=8, max_lag=1, checkpoint_every=4))
    report, _, _ = engine_rules.run(settings, w.costs(), w.workload())
    _, state = report.checkpoints[0]
    _, rules, runtime = engine_rules.run(
        settings, w.costs(train_per_chunk_s=0.1), w.workload(), state=json.loads(state)
    )
    assert len([t for t, _ in rules.started_at if t < 8.0]) == 16
    assert runtime.engine.statistics.trained == 64
