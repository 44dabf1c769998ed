"""Env batches that can only step as a whole: what the engine waits for, and what it must not wait for."""

import engine_rules
import pytest
import worlds as w

from rlvla3.core.engine import Engine
from rlvla3.core.sharding import At, SlotTable
from rlvla3.messages import (
    ApplyActions,
    Command,
    Env,
    InferenceDone,
    Member,
    MemberReady,
    ObservationReady,
    RunInference,
    Slot,
    StartTrajectories,
    TrajectoryReady,
    Version,
    WeightsLoaded,
)
from rlvla3.runtime.virtual import Fault

SIMULATOR, GENERATOR = Member("simulator-0"), Member("generator-0")
DEADLINES = {"step_timeout_s": 3.0, "inference_timeout_s": 3.0, "heartbeat_timeout_s": 2.5}


def whole(batch=None, train=None, evaluate=None, **shape):
    """One Simulator with an env batch of 4 envs in 2 slots that steps as a whole."""
    shape = {"simulators": 1, "envs": 4, "slots": 2} | shape
    return w.settings(w.topology(together=True, **shape), batch, train, evaluate, w.health(**DEADLINES))


def run(settings, costs=None, episode_chunks=lambda task, episode: 6, **options):
    """Run under all rules; returns report, runtime and [(time, message)]."""
    log = []
    rules = engine_rules.Rules(settings)

    def watch(now_s, event, commands):
        rules(now_s, event, commands)
        log.extend((now_s, message) for message in (event, *commands))

    workload = w.workload(max_chunks=10**6, episode_chunks=episode_chunks)
    runtime = engine_rules.VirtualRuntime(settings, costs or w.costs(), workload, watch=watch, **options)
    rules.engine = runtime.engine
    report = runtime.run(until_s=10_000.0)
    assert report.stop is not None
    assert not rules.unanswered
    return report, runtime, log


def applied(log):
    return [tuple(slot for slot, _ in m.slots) for _, m in log if isinstance(m, ApplyActions)]


def table(together):
    slots = SlotTable(w.slots_of([2, 1, 1], [0, 0, 1]), together)
    for slot in slots:
        slots.move(slot, At.STEPPING, 0.0)
    return slots, list(slots)


def test_a_batch_is_ready_when_all_of_its_slots_are_answered_or_idle() -> None:
    slots, (first, second, other) = table(together=True)
    slots.move(first, At.ANSWERED, 1.0)
    assert slots.ready([first]) == []
    for at in (At.QUEUED, At.INFERENCE):
        slots.move(second, at, 1.0)
        assert slots.ready([first]) == []
    slots.move(second, At.IDLE, 1.0)
    assert slots.ready([first]) == slots.ready([second]) == slots.ready([first, second]) == [first]
    slots.move(second, At.ANSWERED, 1.0)
    assert slots.ready([second, first]) == [first, second]
    assert slots.ready([other]) == [], "another env batch"


def test_slots_that_step_alone_are_ready_alone() -> None:
    slots, (first, second, _) = table(together=False)
    slots.move(second, At.ANSWERED, 1.0)
    assert slots.ready([first, second]) == [second]


def test_slots_are_inferred_in_shards_and_step_at_once() -> None:
    report, _, log = run(whole(w.batching(max_batch_size=2, linger_s=0.0)))
    assert not report.stop.failed
    assert max(report.batch_sizes) == 2, "one slot at a time"
    assert {(0, 1)} <= set(applied(log)) <= {(0,), (1,), (0, 1)}
    assert applied(log).count((0, 1)) > 0.8 * len(applied(log))


def test_the_batcher_expects_nothing_of_a_slot_that_waits_for_the_others() -> None:
    """Slot 0 fills a batch; slot 1 would linger for it for ever, if it were about to come back."""
    batching = w.batching(max_batch_size=3, linger_s=50.0, batch_timeout_s=100.0)
    report, _, _ = run(whole(batching, w.training(batch=4, updates=2, max_lag=0), slots=2, envs=5))
    assert not report.stop.failed
    assert report.seconds < 5.0


def test_a_batch_that_waits_for_a_slow_answer_is_not_blamed_for_it() -> None:
    """Three shards of 2.5 s each: the first one answered waits 5 s, more than a step may take."""
    batching = w.batching(max_batch_size=1, linger_s=0.0)
    train = w.training(batch=3, micro_batch=3, updates=2)
    report, runtime, _ = run(
        whole(batching, train, envs=3, slots=3), w.costs(inference_s=2.5), lambda task, episode: 2
    )
    assert not report.stop.failed
    assert report.replaced == []
    assert runtime.engine.statistics.turn_max_s < 1.0, "a turn is the time from its step to its observation"


@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("max_lag", [0, 1])
def test_an_env_without_a_credit_blocks_nobody(batch: int, max_lag: int) -> None:
    """Four slots of one env, fewer or more credits than envs: some are idle while their batch steps."""
    train = w.training(batch=batch, micro_batch=1, updates=6, max_lag=max_lag)
    report, runtime, log = run(whole(train=train, slots=4), episode_chunks=lambda t, e: 1 + e % 5)
    assert report.stop.reason == "all 6 versions are trained"
    assert runtime.engine.statistics.trained == 6 * batch
    assert min(map(len, applied(log))) < 4, "the batch also steps with fewer than all of its slots"


def test_a_start_in_an_idle_slot_is_waited_for() -> None:
    """What is granted while the others have their actions begins before they step, not in the middle."""
    train = w.training(batch=4, micro_batch=1, updates=8, max_lag=1)
    _, _, log = run(whole(train=train, slots=4), w.costs(reset_s=0.05), lambda t, e: 1 + e % 5)
    starting: set[int] = set()
    waited = 0
    for _, message in log:
        if isinstance(message, StartTrajectories):
            starting |= {credit.env for credit in message.starts}
        elif isinstance(message, ObservationReady):
            starting.discard(message.slot)
        elif isinstance(message, ApplyActions):
            assert not starting, "env n is slot n: its reset was under way when its batch stepped"
            waited += 1
    assert waited


def test_env_batches_of_one_simulator_step_apart() -> None:
    _, _, log = run(whole(w.batching(lockstep=True), batches=2))
    assert (0, 1) in applied(log)
    assert (2, 3) in applied(log)
    assert all(len({slot // 2 for slot in slots}) == 1 for slots in applied(log))


def test_evaluation_episodes_share_their_batch_with_rollouts() -> None:
    evaluation = w.evaluation(5, every_versions=2, at_start=True, max_envs=1)
    train = w.training(updates=6, max_lag=1)
    report, _, log = run(whole(train=train, evaluate=evaluation), episode_chunks=lambda t, e: 2 + e % 7)
    assert [r.version for r in report.evaluations][-1] == 6
    assert (0, 1) in applied(log)


@pytest.mark.parametrize("member", [SIMULATOR, GENERATOR])
@pytest.mark.parametrize("at_s", [0.031, 0.055, 0.08, 0.21])
def test_a_member_lost_between_the_answers_of_a_batch_costs_only_what_it_held(member, at_s) -> None:
    batching = w.batching(max_batch_size=2, linger_s=0.0)
    faults = (Fault(at_s=at_s, kind="crash", member=member),)
    report, runtime, _ = run(whole(batching, slots=2), w.costs(sub_step_cv=0.0), faults=faults)
    assert not report.stop.failed
    assert [name for name, _ in report.replaced] == [member]
    assert runtime.engine.statistics.trained == 80


def test_an_episode_that_ends_after_the_others_were_answered_lets_them_step() -> None:
    """Slot 1 reports its end late: slot 0 has its next actions already."""
    settings = whole(
        w.batching(max_batch_size=2, linger_s=0.0), evaluate=w.evaluation(4, max_envs=9), trainers=0
    )
    engine = Engine(settings, 0.0)
    engine.on(MemberReady(member=SIMULATOR), 0.0)
    engine.on(MemberReady(member=GENERATOR), 0.0)
    loaded = WeightsLoaded(member=GENERATOR, channel="evaluation", version=Version(0))
    [started] = engine.on(loaded, 0.0)
    rows = [tuple(c.row for c in started.starts if c.env // 2 == slot) for slot in (0, 1)]

    def ask(slot: int, seq: int, chunk: int) -> list[Command]:
        event = ObservationReady(
            member=SIMULATOR, slot=Slot(slot), seq=seq, rows=rows[slot], chunks=(chunk, chunk)
        )
        return engine.on(event, 0.1)

    def answer(commands: list[Command]) -> list[Command]:
        [batch] = commands
        assert isinstance(batch, RunInference)
        return engine.on(InferenceDone(member=GENERATOR, batch=batch.batch, version=Version(0)), 0.1)

    first = ask(0, 0, 0)
    assert ask(1, 0, 0) == []
    assert answer(answer(first)) == [ApplyActions(member=SIMULATOR, slots=((Slot(0), 0), (Slot(1), 0)))]
    assert answer(ask(0, 1, 1)) == []
    ends = [
        TrajectoryReady(
            member=SIMULATOR,
            env=Env(env),
            row=row,
            chunks=1,
            sub_steps=1,
            end="terminated",
            success=True,
            solved_at_reset=False,
            total_reward=1.0,
        )
        for env, row in zip((2, 3), rows[1], strict=True)
    ]
    assert engine.on(ends[0], 0.1) == []
    assert engine.on(ends[1], 0.1) == [ApplyActions(member=SIMULATOR, slots=((Slot(0), 1),))]


@pytest.mark.parametrize("at_s", [0.001, 0.03, 0.055, 0.08, 0.11, 0.5, 0.9])
def test_a_stop_at_any_moment_cancels_the_answers_that_a_batch_waits_with(at_s) -> None:
    """An update takes 2.4 s: the run goes on for a while after the stop was asked for."""
    batching = w.batching(max_batch_size=2, linger_s=0.0)
    faults = (Fault(at_s=at_s, kind="stop", member=Member("")),)
    costs = w.costs(train_per_chunk_s=0.05)
    report, _, log = run(whole(batching, w.training(updates=99)), costs, faults=faults)
    assert report.stop.reason == "asked to"
    assert [t for t, m in log if isinstance(m, ApplyActions) and t > at_s] == []
