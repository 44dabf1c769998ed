"""Groups: members of one start, trained whole and once, whatever happens to them."""

import json

import engine_rules
import pytest
import worlds as w

from rlvla3.core.groups import Groups
from rlvla3.core.staleness import Staleness
from rlvla3.core.statistics import Statistics
from rlvla3.messages import Episode, Member, MemberLost, Row, Start, StartTrajectories, Trajectory, Version
from rlvla3.runtime.virtual import Fault

START = Start(task=0, split="train", state=0)


class Books:
    """Groups alone, of G members in batches of two groups."""

    def __init__(self, size=2, attempts=2, max_lag=2, **changes):
        settings = w.training(batch=2 * size, group_size=size, micro_batch=size, max_lag=max_lag, **changes)
        self.staleness = Staleness(settings.units, max_lag)
        self.statistics = Statistics()
        self.groups = Groups(settings, self.staleness, self.statistics, attempts)
        self.episodes = 0

    def open(self, lowest=0):
        size = self.groups._size
        episodes = [Episode(self.episodes + i) for i in range(size)]
        self.episodes += size
        self.groups.open(START, episodes, 0, Version(lowest))
        return [self.groups.next() for _ in range(size)]

    def finish(self, place, version=0, success=False, filling=0, reward=0.0):
        trajectory = Trajectory(
            row=Row(0),
            episode=place.episode,
            group=place.unit,
            start=place.start,
            first_chunk=0,
            chunks=1,
            sub_steps=1,
            end="terminated",
            success=success,
            solved_at_reset=False,
            total_reward=reward,
            oldest_version=Version(version),
        )
        return self.groups.finished(trajectory, filling)


def test_a_group_leaves_when_its_last_member_has_finished_and_takes_one_credit():
    books = Books(size=3)
    first, second, third = books.open()
    assert books.staleness.outstanding == 1
    assert {place.start for place in (first, second, third)} == {START}
    assert books.finish(third) == ((), "")
    assert books.finish(first) == ((), "")
    unit, reason = books.finish(second)
    assert ([t.episode for t in unit], reason) == ([0, 1, 2], "")
    assert books.staleness.outstanding == 1, "queued until it is admitted"


def test_the_deadline_rises_to_the_oldest_members_when_all_have_finished_and_not_before():
    books = Books(max_lag=2)
    first, second = books.open(lowest=1)
    books.finish(first, version=4)
    assert books.staleness.deadline(first.unit) == 1 + 2
    books.finish(second, version=2, success=True)
    assert books.staleness.deadline(first.unit) == 2 + 2


def test_a_lost_member_runs_again_in_its_group_before_anything_new():
    books = Books(attempts=2)
    first, second = books.open()
    assert not books.groups.waiting
    assert books.groups.lost(first.unit, first.attempts, Episode(9)) == ()
    assert books.groups.waiting
    again = books.groups.next()
    assert (again.unit, again.start, again.episode, again.attempts) == (first.unit, START, 9, 1)
    books.finish(second)
    unit, _ = books.finish(again)
    assert [t.episode for t in unit] == [1, 9]
    assert books.staleness.outstanding == 1


def test_a_lost_member_goes_before_groups_that_were_begun_later():
    books = Books(attempts=2)
    first, _ = books.open()
    books.groups.open(START, [Episode(7), Episode(8)], 0, Version(0))
    books.groups.lost(first.unit, 0, Episode(9))
    assert [books.groups.next().episode for _ in range(3)] == [9, 7, 8]


def test_a_group_that_was_begun_is_begun_anew_after_a_resume():
    books = Books(size=3)
    first, *_ = books.open()
    books.finish(first)
    assert books.groups.unfinished([]) == [START]


def test_a_group_whose_member_cannot_be_tried_any_more_is_given_up_and_gives_one_credit_back():
    books = Books(size=3, attempts=1)
    first, second, third = books.open()
    books.finish(first)
    assert [t.episode for t in books.groups.lost(second.unit, 0, Episode(9))] == [first.episode]
    assert books.staleness.outstanding == 0
    assert books.groups.given_up == 1
    assert books.finish(third)[1] == "group_given_up"
    assert books.groups.given_up == 0
    assert books.staleness.outstanding == 0
    assert books.statistics.given_up == 1


def test_members_that_still_wait_go_with_a_group_that_is_given_up():
    books = Books(size=2, attempts=1)
    books.groups.open(START, [Episode(0), Episode(1)], 0, Version(0))
    place = books.groups.next()
    books.groups.lost(place.unit, 0, Episode(9))
    assert not books.groups.waiting
    assert books.groups.given_up == 0


def test_equal_groups_are_replaced_for_each_version_anew_and_then_trained():
    books = Books(group_replacements=1)

    def whole(filling, **second):
        places = books.open()
        books.finish(places[0], filling=filling)
        return books.finish(places[1], filling=filling, **second)[1]

    assert whole(0) == "equal_group"
    assert books.staleness.outstanding == 0
    assert whole(0, success=True) == ""
    assert whole(0) == ""
    assert whole(1) == "equal_group"
    assert (books.statistics.equal_groups, books.statistics.replaced_groups) == (3, 2)


@pytest.mark.parametrize(("score", "equal"), [("success", 1), ("return", 0)])
def test_members_are_compared_by_the_configured_score(score, equal):
    books = Books(group_score=score)
    first, second = books.open()
    books.finish(first, reward=1.0)
    books.finish(second, reward=2.0)
    assert books.statistics.equal_groups == equal


# --- whole runs --------------------------------------------------------------------------------


def grouped(**changes):
    values = {"batch": 8, "group_size": 2, "micro_batch": 4, "updates": 6, "max_lag": 1}
    return w.training(**(values | changes))


def odd(task, episode):
    return episode % 2 == 1


def workload(**changes):
    values = {"max_chunks": 1000, "episode_chunks": lambda task, episode: 3 + episode % 4, "success": odd}
    return w.workload(**(values | changes))


def test_start_number_i_gives_the_episodes_of_group_i_whatever_the_order_of_arrival():
    def run(seed, simulators):
        settings = w.settings(w.topology(simulators=simulators, envs=3), train=grouped(max_lag=0))
        report, rules, _ = engine_rules.run(settings, w.costs(sub_step_cv=3.0), workload(), seed=seed)
        members = {g: [t.episode for t in ts] for g, ts in rules.groups.items()}
        assert members == {g: [2 * g, 2 * g + 1] for g in range(24)}
        return sorted((t.episode, t.group, t.start) for t in report.trained)

    assert run(0, 2) == run(1, 2) == run(2, 1)


def crash_at(at_s, **changes):
    """Two envs, of two Simulators, run the two members of a group; one of them is lost."""
    settings = w.settings(
        w.topology(simulators=2, envs=1, slots=1),
        train=grouped(),
        watch=w.health(**changes),
    )
    fault = Fault(at_s=at_s, kind="crash", member=Member("simulator-0"))
    slow = workload(episode_chunks=lambda task, episode: 10)
    return engine_rules.run(settings, w.costs(), slow, faults=(fault,), restart_s=0.1)


def test_a_crash_inside_a_group_costs_its_lost_members_only():
    report, rules, runtime = crash_at(0.15)
    assert not report.stop.failed
    assert runtime.engine.statistics.dropped == {"simulator_lost": 1}
    assert runtime.engine.statistics.trained == 48
    members = {number: [t.episode for t in ts] for number, ts in rules.groups.items()}
    assert members[0] == [1, 2], "one member was started again, with another number"
    assert members[1] == [3, 4]


def test_a_group_that_is_given_up_is_dropped_whole_and_another_one_takes_its_place():
    """One attempt: what simulator-0 ran is lost for good, and with it the other half of its group."""
    report, rules, runtime = crash_at(0.15, start_attempts=1)
    assert not report.stop.failed
    assert runtime.engine.statistics.dropped == {"simulator_lost": 1, "group_given_up": 1}
    assert runtime.engine.statistics.given_up == 1
    assert runtime.engine.statistics.trained == 48
    assert sorted(rules.groups) == list(range(1, 25)), "group 0 is nowhere"


def test_members_lost_out_of_different_groups_leave_halves_that_end_and_are_dropped():
    settings = w.settings(
        w.topology(simulators=2, envs=3, slots=3),
        train=grouped(batch=6, group_size=3, micro_batch=3, updates=4),
        watch=w.health(start_attempts=1),
    )
    # Two groups of three fly in 3 + 3 envs, and the second one's envs are those of simulator-1 only.
    fault = Fault(at_s=0.3, kind="crash", member=Member("simulator-1"))
    lengths = workload(episode_chunks=lambda task, episode: (4, 9, 30)[episode % 3])
    report, _, runtime = engine_rules.run(settings, w.costs(), lengths, faults=(fault,), restart_s=0.1)
    assert not report.stop.failed
    assert runtime.engine.statistics.dropped["group_given_up"] >= 1
    assert runtime.engine.accounting()["given_up"] == 0


@pytest.mark.parametrize("replacements", [0, 2])
def test_equal_groups_are_replaced_and_then_accepted(replacements):
    """No episode ever succeeds: without a bound the run would wait for ever."""
    settings = w.settings(train=grouped(group_replacements=replacements))
    report, _, runtime = engine_rules.run(settings, w.costs(), workload(success=lambda task, episode: False))
    statistics = runtime.engine.statistics
    assert not report.stop.failed
    assert statistics.replaced_groups == 6 * replacements
    assert statistics.equal_groups == 6 * (4 + replacements)
    assert statistics.dropped.get("equal_group", 0) == 2 * 6 * replacements
    assert statistics.trained == 48


def test_groups_that_are_replaced_count_for_the_law_of_sampling():
    """Task 0 always succeeds. All of its groups are equal; were only trained ones counted, those that were
    replaced would be missing, and its estimate would move more slowly."""
    found = []
    for replacements in (0, 3):
        tasks = w.tasks(1.0, 1.0, sampling="success_weighted")
        settings = w.settings(
            train=grouped(tasks=tasks, step_limits=(0, 0), group_replacements=replacements, updates=3)
        )
        works = workload(success=lambda task, episode: task == 0 or episode % 2 == 0)
        report, _, runtime = engine_rules.run(settings, w.costs(), works)
        assert not report.stop.failed
        found.append(runtime.engine.flights._starts._sequence.law._success[0])
        statistics = runtime.engine.statistics
        assert bool(statistics.replaced_groups) == bool(replacements)
    assert found[1] > found[0] > 0.5


def test_a_slow_group_is_waited_for_in_time():
    """Two groups a version, lag 2. A member of the first group takes as long as ten fast groups: by the end
    of version 2 it must be there, however many others are."""
    settings = w.settings(
        w.topology(simulators=1, envs=8, slots=8),
        train=grouped(batch=4, micro_batch=2, max_lag=2, updates=8),
    )
    lengths = workload(episode_chunks=lambda task, episode: 120 if episode == 1 else 2)
    report, rules, _ = engine_rules.run(settings, w.costs(), lengths)
    trained_in = [i for i, episodes in enumerate(rules.updates) if 1 in episodes]
    assert trained_in == [2], "not before it was needed, and not later"
    assert max(report.lags) == 2


def test_a_slow_group_that_is_stale_is_dropped_whole():
    settings = w.settings(
        w.topology(simulators=1, envs=8, slots=8),
        train=grouped(batch=4, micro_batch=2, updates=8, on_stale="drop"),
    )
    lengths = workload(episode_chunks=lambda task, episode: 120 if episode == 1 else 2)
    report, _, runtime = engine_rules.run(settings, w.costs(train_per_chunk_s=0.0), lengths)
    assert not report.stop.failed
    assert runtime.engine.statistics.dropped == {"stale": 2}


def test_a_resume_begins_unfinished_groups_anew_each_once():
    settings = w.settings(
        w.topology(simulators=2, envs=3, slots=3), train=grouped(checkpoint_every=2, max_lag=2)
    )
    costs = w.costs(sub_step_cv=2.0)
    report, rules, _ = engine_rules.run(settings, costs, workload())
    version, state = report.checkpoints[0]
    flights = json.loads(state)["flights"]
    again = [tuple(entry[1:4]) for entry in flights["starts"]["again"]]
    assert len(again) == len(set(again)) > 0, "an unfinished group's start is stored once"
    assert flights["unfinished"] >= len(again)
    rest, resumed, runtime = engine_rules.resume_from(report, 0, settings, costs, workload())
    assert not rest.stop.failed
    new = {e for _, e, _, _ in resumed.starts}
    old = {e for _, e, _, _ in rules.starts}
    assert not {t.episode for t in rest.trained} & {t.episode for t in report.trained[: 8 * version]}
    assert min(new) >= min(old)
    before = {t.group: t.start.state for t in report.trained[: 8 * version]}
    states = [*before.values(), *(ts[0].start.state for ts in resumed.groups.values())]
    assert sorted(states) == list(range(24)), "each start is trained once, whatever was under way"
    assert runtime.engine.statistics.trained == 48


def test_a_lost_simulator_while_a_group_waits_for_envs_starts_nothing_new_before_it():
    """One env, groups of three: the members of a group run one after the other."""
    settings = w.settings(
        w.topology(simulators=1, envs=1, slots=1),
        train=grouped(batch=3, group_size=3, micro_batch=3, updates=3, max_lag=1),
    )
    begun = []
    fault = Fault(at_s=0.15, kind="crash", member=Member("simulator-0"))

    rules = engine_rules.Rules(settings)

    def watch(now_s, event, commands):
        rules(now_s, event, commands)
        begun.extend(c.starts[0].start.state for c in commands if isinstance(c, StartTrajectories))
        if isinstance(event, MemberLost):
            begun.append("lost")

    runtime = engine_rules.VirtualRuntime(
        settings, w.costs(), workload(), faults=(fault,), restart_s=0.1, watch=watch
    )
    rules.engine = runtime.engine
    runtime.run()
    lost = begun.index("lost")
    assert begun[:lost] in ([0] * n for n in (1, 2, 3))
    assert begun[lost + 1 :] == [0] * (4 - lost) + [1, 1, 1, 2, 2, 2]
