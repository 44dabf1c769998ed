"""Whose turn it is: each law by hand, and that what is trained follows it whatever the tasks' speeds."""

import json
from collections import Counter
from itertools import pairwise

import engine_rules
import pytest
import worlds as w
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.core.sampling import LAWS, Balances, SuccessWeighted, law


def draws(made, count):
    return [made.draw() for _ in range(count)]


def former_sequence(weights, count):
    """The law of turns as it is defined: the task that is furthest behind its share goes."""
    shares, counts, found = [weight / sum(weights) for weight in weights], [0] * len(weights), []
    for index in range(1, count + 1):
        task = max(range(len(shares)), key=lambda t: (shares[t] * index - counts[t], -t))
        counts[task] += 1
        found.append(task)
    return found


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(0.01, 9.0), min_size=1, max_size=6))
def test_round_robin_is_the_task_furthest_behind(weights):
    assert draws(law(w.tasks(*weights)), 80) == former_sequence(weights, 80)


def test_round_robin_of_equal_tasks_takes_turns_lowest_first():
    assert draws(law(w.tasks(1.0, 1.0, 1.0)), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_list_is_taken_in_its_order_again_and_again():
    made = law(w.tasks(1.0, 1.0, 1.0, sampling="list", order=(2, 0, 0)))
    assert draws(made, 7) == [2, 0, 0, 2, 0, 0, 2]
    assert made.shares == (2 / 3, 0.0, 1 / 3)


def test_uniform_draws_are_random_by_weight_and_a_function_of_seed_and_number():
    def made(seed):
        return law(w.tasks(1.0, 0.0, 3.0, sampling="uniform", seed=seed))

    found = draws(made(0), 4000)
    assert found == draws(made(0), 4000)
    assert found != draws(made(1), 4000)
    counts = Counter(found)
    assert counts[1] == 0
    # Standard deviation of the count: sqrt(4000 * 0.25 * 0.75) = 27.
    assert abs(counts[0] - 1000) < 110
    runs = sum(a != b for a, b in pairwise(found))
    assert abs(runs - 2 * 0.25 * 0.75 * 4000) < 150, "draws do not depend on each other"


def test_tasks_that_succeed_now_and_then_get_more_and_the_others_keep_a_floor():
    made = law(w.tasks(1.0, 1.0, 2.0, sampling="success_weighted", floor=0.1))
    assert made.shares == (0.25, 0.25, 0.5)
    for _ in range(400):
        made.learn({0: (10, 10), 1: (10, 0), 2: (10, 5)})
    assert made.shares == pytest.approx((0.1 / 2.2, 0.1 / 2.2, 2 / 2.2))


def test_what_a_task_had_by_its_former_share_is_not_taken_back():
    made = law(w.tasks(1.0, 1.0, sampling="success_weighted", floor=0.1))
    draws(made, 200)
    for _ in range(10):
        made.learn({0: (100, 50), 1: (100, 0)})
    assert made.shares == pytest.approx((10 / 11, 1 / 11), rel=0.02)
    assert Counter(draws(made, 22)) == {0: 20, 1: 2}


def test_an_update_moves_the_estimate_by_all_its_episodes_at_once():
    """p = 1/2; three episodes, two successes: (1 - 0.95³) of the way to 2/3."""
    made = SuccessWeighted(w.tasks(1.0, 1.0, sampling="success_weighted"))
    made.learn({0: (3, 2)})
    assert made._success == pytest.approx([0.5 + (1 - 0.95**3) * (2 / 3 - 0.5), 0.5])


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4), min_size=1, max_size=20))
def test_shares_that_change_leave_no_debt_beyond_one_start(changes):
    balances, owed = Balances((0.25,) * 4), [0.0] * 4
    for weights in changes:
        shares = tuple(weight / sum(weights) for weight in weights)
        balances.change(shares)
        for _ in range(3):
            owed = [o + s for o, s in zip(owed, shares, strict=True)]
            owed[balances.draw()] -= 1
            assert min(owed) > -1 - 1e-9
            assert sum(owed) == pytest.approx(0)


@pytest.mark.parametrize("sampling", sorted(LAWS))
def test_a_restored_law_goes_on(sampling):
    def made():
        return law(w.tasks(1.0, 2.0, 4.0, sampling=sampling, order=(0, 2, 1, 1), seed=3))

    straight, resumed = made(), made()
    draws(straight, 11)
    straight.learn({0: (4, 1), 2: (2, 2)})
    draws(straight, 5)
    resumed.restore(json.loads(json.dumps(straight.snapshot())))
    assert resumed.shares == straight.shares
    assert draws(resumed, 20) == draws(straight, 20)


def test_weights_that_were_configured_anew_hold_from_the_resume_on():
    straight = law(w.tasks(1.0, 1.0))
    draws(straight, 101)
    resumed = law(w.tasks(1.0, 9.0))
    resumed.restore(straight.snapshot())
    assert Counter(draws(resumed, 50))[1] in (44, 45, 46)


SPEEDS = {"even": (4, 4, 4), "first": (1, 9, 30), "last": (40, 9, 2)}


@pytest.mark.parametrize("sampling", sorted(LAWS))
@pytest.mark.parametrize("max_lag", [0, 2])
@pytest.mark.parametrize("group_size", [1, 2])
def test_what_is_trained_follows_the_law_whatever_the_speeds(sampling, max_lag, group_size):
    tasks = w.tasks(1.0, 3.0, 2.0, sampling=sampling, order=(0, 2, 1, 1), seed=5)
    train = w.training(
        batch=12,
        group_size=group_size,
        micro_batch=4,
        max_lag=max_lag,
        updates=10,
        tasks=tasks,
        step_limits=(0,) * 3,
    )
    world = w.settings(w.topology(simulators=2, envs=8, slots=4), train=train)
    trained = {}
    for name, chunks in SPEEDS.items():
        workload = w.workload(
            max_chunks=100,
            episode_chunks=lambda task, episode, chunks=chunks: chunks[task],
            success=lambda task, episode: task == 1 and episode % 3 == 0,
        )
        report, _, runtime = engine_rules.run(world, w.costs(), workload)
        if sampling == "success_weighted":
            assert runtime.engine.flights.shares[1] > 0.55, "the other tasks never succeed"
        # With lag the law learns from what was trained by then, and that may depend on time.
        taken = 12 if max_lag or sampling != "success_weighted" else 1
        versions = [report.trained[i : i + 12 * taken] for i in range(0, 120, 12 * taken)]
        trained[name] = [Counter(t.start.task for t in version) for version in versions]
    if not (max_lag and sampling == "success_weighted"):
        assert trained["first"] == trained["even"] == trained["last"]
    if sampling != "success_weighted":
        expected = Counter(draws(law(tasks), 120 // group_size))
        assert trained["even"][0] == {task: group_size * count for task, count in expected.items()}


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_everything_that_a_law_started_is_trained(data):
    """Random laws, speeds and outcomes, with lag: starts and trained episodes are the same."""
    draw = data.draw
    tasks = w.tasks(
        *draw(st.lists(st.floats(0.1, 5.0), min_size=3, max_size=3)),
        sampling=draw(st.sampled_from(sorted(LAWS))),
        order=tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))),
    )
    train = w.training(tasks=tasks, step_limits=(0,) * 3, max_lag=draw(st.integers(0, 2)), updates=8)
    chunks = draw(st.tuples(*[st.integers(1, 30)] * 3))
    modulus = draw(st.integers(1, 4))
    workload = w.workload(
        max_chunks=100,
        episode_chunks=lambda task, episode: chunks[task],
        success=lambda task, episode: (episode + task) % modulus == 0,
    )
    report, rules, runtime = engine_rules.run(w.settings(train=train), w.costs(), workload)
    started = Counter(start.task for start in rules.start_of.values())
    assert Counter(t.start.task for t in report.trained) == started
    assert runtime.engine.statistics.trained_episodes == [started[task] for task in range(3)]
