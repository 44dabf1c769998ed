"""The Simulator role, driven by hand."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
from role_worlds import MEMBER, UNWRITTEN, WAIT_S, Driven, credit, delay, driven, tags

from rlvla3.messages import (
    ApplyActions,
    CancelRequests,
    LoadWeights,
    MemberLost,
    MemberReady,
    ObservationReady,
    Slot,
    Start,
    StartTrajectories,
    TrajectoryReady,
    Version,
)
from rlvla3.roles.slab import stamp
from rlvla3.simulators.api import Step
from rlvla3.simulators.synthetic import DelayEnv, Synthetic, SyntheticSettings


class Gated(Synthetic):
    """``delay`` whose observations wait for a gate, where there is one; all are counted."""

    def __init__(self) -> None:
        super().__init__(SyntheticSettings(task="delay"))
        self.gate: threading.Event | None = None
        self.at_gate = threading.Event()
        self.observed = 0

    def make(self) -> DelayEnv:
        outer = self

        class Env(DelayEnv):
            def observe(self):
                outer.observed += 1
                gate = outer.gate
                if gate is not None:
                    outer.at_gate.set()
                    assert gate.wait(WAIT_S)
                return super().observe()

        return Env(self._settings)


def test_rewards_are_per_sub_step_and_nothing_counts_after_the_end() -> None:
    with driven(delay(success_at=3, constant_reward=2.0)) as driver:
        driver.begin(credit(row=4, episode=9))
        first = driver.event(ObservationReady)
        assert (first.slot, first.seq, first.rows, first.chunks) == (0, 0, (4,), (0,))
        driver.answer(first)
        second = driver.event(ObservationReady)
        assert (second.seq, second.rows, second.chunks) == (1, (4,), (1,))
        driver.answer(second)
        ended = driver.event(TrajectoryReady)
        assert (ended.row, ended.env, ended.chunks, ended.sub_steps) == (4, 0, 2, 3)
        assert (ended.end, ended.success, ended.total_reward) == ("terminated", True, 6.0)
        assert driver.slab["reward"][4, :2].tolist() == [[2, 2], [2, 0]]
        assert driver.slab["sub_steps"][4, :2].tolist() == [2, 1]
        assert driver.slab["episode"][4] == 9
        assert driver.slab["chunk_index"][4, :2].tolist() == [0, 1]
        assert driver.slab["observation.task"][4, :2].tolist() == [0, 0]


def test_termination_renders_nothing() -> None:
    simulator = Gated()
    simulator._settings = SyntheticSettings(task="delay", success_at=2)
    with driven(simulator) as driver:
        driver.begin(credit())
        driver.answer(driver.event(ObservationReady))
        assert driver.event(TrajectoryReady).end == "terminated"
        assert simulator.observed == 1
        assert tags(driver, 0) == [0, UNWRITTEN, UNWRITTEN, UNWRITTEN]


def test_truncation_keeps_the_terminal_observation() -> None:
    with driven(delay()) as driver:
        driver.begin(credit(row=0, state=3, step_limit=4))
        driver.answer(driver.event(ObservationReady))
        driver.answer(driver.event(ObservationReady))
        ended = driver.event(TrajectoryReady)
        assert (ended.end, ended.chunks, ended.sub_steps) == ("truncated", 2, 4)
        driver.begin(credit(row=1, state=8, step_limit=4))
        driver.event(ObservationReady)
        assert tags(driver, 0) == [0, 2, 4, UNWRITTEN]
        assert driver.slab["observation.tag"][0, :3, 2].tolist() == [3, 3, 3]
        assert driver.slab["observation.tag"][1, 0].tolist() == [0, 0, 8, 0]
        assert driver.slab["observation.elapsed"][0, :3].tolist() == [0, 0.5, 1]
        assert driver.slab["observation.elapsed"][1, 0] == 0


def test_a_limit_within_a_chunk() -> None:
    """The last chunk is cut at the limit, in the last place of the row too."""
    with driven(delay(), chunks=2, chunk=3) as driver:
        driver.begin(credit(step_limit=5))
        driver.answer(driver.event(ObservationReady))
        driver.answer(driver.event(ObservationReady))
        ended = driver.event(TrajectoryReady)
        assert (ended.end, ended.chunks, ended.sub_steps, ended.total_reward) == ("truncated", 2, 5, 5.0)
        assert driver.slab["sub_steps"][0].tolist() == [3, 2]
        assert driver.slab["reward"][0].tolist() == [[1, 1, 1], [1, 1, 0]]
        assert tags(driver, 0) == [0, 3, 5]


def test_segments_continue_with_the_kept_observation() -> None:
    simulator = Gated()
    with driven(simulator, chunks=2) as driver:
        driver.begin(credit(row=0, episode=6, step_limit=8))
        driver.answer(driver.event(ObservationReady))
        driver.answer(driver.event(ObservationReady))
        first = driver.event(TrajectoryReady)
        assert (first.end, first.chunks, first.sub_steps) == ("segment", 2, 4)
        assert tags(driver, 0) == [0, 2, 4]
        observed = simulator.observed
        driver.begin(credit(row=3, episode=6, step_limit=8, first_chunk=2))
        asked = driver.event(ObservationReady)
        assert simulator.observed == observed, "the kept observation is used, nothing is rendered"
        assert (asked.rows, asked.chunks) == ((3,), (0,))
        for name, array in driver.slab.items():
            if name.startswith("observation."):
                assert np.array_equal(array[3, 0], array[0, 2]), name
        driver.answer(asked)
        driver.answer(driver.event(ObservationReady))
        second = driver.event(TrajectoryReady)
        assert (second.end, second.chunks, second.sub_steps, second.total_reward) == ("truncated", 2, 4, 4.0)
        assert tags(driver, 3) == [4, 6, 8]
        assert driver.slab["chunk_index"][3].tolist() == [2, 3, 4]
        assert driver.slab["observation.elapsed"][3].tolist() == [0.5, 0.75, 1]


def test_an_interrupted_episode_leaves_nothing_behind() -> None:
    """An evaluation takes the env between two segments: it begins anew, time included."""
    with driven(delay(), chunks=2) as driver:
        driver.begin(credit(row=0, step_limit=100))
        driver.answer(driver.event(ObservationReady))
        driver.answer(driver.event(ObservationReady))
        driver.event(TrajectoryReady)
        driver.begin(credit(row=1, episode=7, state=9, channel="evaluation", step_limit=4))
        driver.event(ObservationReady)
        assert driver.slab["observation.tag"][1, 0].tolist() == [0, 0, 9, 0]
        assert driver.slab["observation.elapsed"][1, 0] == 0


def test_newcomers_join_the_request_of_their_slot_and_others_keep_their_order() -> None:
    simulator = Gated()
    with driven(simulator, slots=((0, 1), (2, 3))) as driver:
        driver.begin(credit(env=0, row=0))
        asked = driver.event(ObservationReady)
        driver.begin(credit(env=2, row=2))
        other = driver.event(ObservationReady)
        gate = simulator.gate = threading.Event()
        driver.answer(asked)
        assert simulator.at_gate.wait(WAIT_S)
        # While slot 0 renders: actions and a start of slot 1, and a newcomer of slot 0.
        driver.answer(other)
        driver.begin(credit(env=3, row=3))
        driver.begin(credit(env=1, row=1))
        simulator.gate = None
        gate.set()
        joined = driver.event(ObservationReady)
        assert (joined.slot, joined.rows, joined.chunks) == (0, (0, 1), (1, 0))
        went_on = driver.event(ObservationReady)
        assert (went_on.slot, went_on.rows, went_on.chunks) == (1, (2, 3), (1, 0))


def test_a_newcomer_waits_while_its_slot_waits() -> None:
    """The actions that come are those of the request, not those of a larger one."""
    with driven(delay()) as driver:
        driver.begin(credit(env=1, row=1))
        asked = driver.event(ObservationReady)
        driver.begin(credit(env=0, row=0))
        driver.answer(asked)
        joined = driver.event(ObservationReady)
        assert (joined.seq, joined.rows, joined.chunks) == (1, (0, 1), (0, 1))
        assert driver.slab["sub_steps"][0, 0] == UNWRITTEN


def test_a_newcomer_waits_while_the_chunk_of_its_slot_waits() -> None:
    """One lane: it takes the start in while the env of the chunk waits for its latency."""
    with driven(delay(mean_ms=100)) as driver:
        driver.begin(credit(env=0, row=0))
        driver.answer(driver.event(ObservationReady))
        driver.begin(credit(env=1, row=1))
        joined = driver.event(ObservationReady)
        assert (joined.seq, joined.rows, joined.chunks) == (1, (0, 1), (1, 0))
        assert driver.slab["sub_steps"][0, 0] == 2


def test_a_lane_serves_others_while_a_chunk_waits() -> None:
    """The chunk begun first waits longer, so it ends last, although both are of one lane."""
    with driven(delay(mean_ms=(300, 1)), slots=((0,), (1,))) as driver:
        quick = Start(task=1, split="train", state=0)
        driver.begin(credit(env=0, row=0), credit(env=1, row=1, start=quick))
        slow, fast = (driver.event(ObservationReady) for _ in range(2))
        assert (slow.slot, fast.slot) == (0, 1)
        driver.answer(slow)
        driver.answer(fast)
        assert [driver.event(ObservationReady).slot for _ in range(2)] == [1, 0]


class Together(Synthetic):
    """All chunks are due at one moment. A reset to state 9 takes until ``reported`` is set."""

    def __init__(self) -> None:
        super().__init__(SyntheticSettings(task="delay"))
        self.due_s = time.monotonic() + 0.2
        self.reported = threading.Event()
        self.finishing: Callable[[int], None] = lambda state: None

    def make(self) -> DelayEnv:
        simulator = self

        class Env(DelayEnv):
            def reset(self, start: Start, step_limit: int) -> None:
                assert start.state != 9 or simulator.reported.wait(WAIT_S)
                super().reset(start, step_limit)

            def begin(self, action: npt.NDArray[np.float32]) -> float:
                super().begin(action)
                return simulator.due_s

            def finish(self) -> Step:
                simulator.finishing(self._start.state)
                return super().finish()

        return Env(self._settings)


def test_a_reset_in_a_round_does_not_hold_back_what_the_round_has_to_report() -> None:
    simulator = Together()
    with driven(simulator, slots=((0,), (1, 2)), chunk=1) as driver:
        driver.begin(credit(env=0, row=0, state=0), credit(env=1, row=1, state=1))
        first, second = (driver.event(ObservationReady) for _ in range(2))
        newcomer = credit(env=2, row=2, state=9)
        simulator.finishing = lambda state: driver.begin(newcomer) if state == 0 else None
        driver.answer(first)
        driver.answer(second)
        assert driver.event(ObservationReady).slot == 0
        simulator.reported.set()
        assert driver.event(ObservationReady).rows == (1, 2)


@pytest.mark.live
def test_no_wait_is_too_short_to_end() -> None:
    """A wait whose time passes while it begins must not become one for ever: with several slots, answers
    come while the lane is at work, and then it waits for what remains of some latency."""
    envs = range(4)
    quick = delay(mean_ms=0.2, cv=1.0, latency="log_normal")
    with driven(quick, slots=[(env,) for env in envs], chunk=1) as driver:
        driver.begin(*(credit(env=e, row=e, channel="evaluation", episode=e + (1 << 40)) for e in envs))
        for _ in range(30_000):
            driver.answer(driver.event(ObservationReady))


def test_slots_and_lanes_are_apart() -> None:
    with driven(delay(), slots=((0,), (1,), (2,)), lanes=2) as driver:
        driver.begin(*(credit(env=e, row=e, state=10 + e, episode=e) for e in (2, 0, 1)))
        asked = [driver.event(ObservationReady) for _ in range(3)]
        assert {a.slot: a.rows for a in asked} == {0: (0,), 1: (1,), 2: (2,)}
        assert driver.slab["observation.tag"][:3, 0, 2].tolist() == [10, 11, 12]


def test_actions_of_a_place_go_to_the_env_of_that_place() -> None:
    with driven(delay(), slots=((0, 1),)) as driver:
        driver.begin(credit(env=0, row=5, episode=1), credit(env=1, row=2, episode=2))
        asked = driver.event(ObservationReady)
        assert asked.rows == (5, 2)
        driver.slab["record.action"][5, 0] = 0.25
        driver.slab["record.action"][2, 0] = 0.75
        driver.slab["stamp"][5, 0], driver.slab["stamp"][2, 0] = stamp(1, 0), stamp(2, 0)
        driver.apply(asked)
        driver.event(ObservationReady)
        assert driver.slab["observation.last_action"][5, 1].tolist() == [0.25] * 4
        assert driver.slab["observation.last_action"][2, 1].tolist() == [0.75] * 4


@pytest.mark.parametrize("written", [stamp(5, 1), stamp(4, 0), UNWRITTEN])
def test_records_of_another_chunk_or_episode_are_refused(written) -> None:
    with driven(delay()) as driver:
        driver.begin(credit(episode=5))
        asked = driver.event(ObservationReady)
        driver.slab["record.action"][0, 0] = 0
        driver.slab["stamp"][0, 0] = written
        driver.apply(asked)
        lost = driver.event(MemberLost)
        assert lost.reason.startswith(f"RuntimeError: action records [{written}] where [{stamp(5, 0)}]")


@pytest.mark.parametrize("seq", [1, -1])
def test_actions_of_another_request_are_refused(seq) -> None:
    with driven(delay()) as driver:
        driver.begin(credit())
        driver.event(ObservationReady)
        driver.role.handle(ApplyActions(member=MEMBER, slots=((Slot(0), seq),)))
        assert f"slot 0 waits for actions 0, got those of {seq}" in driver.event(MemberLost).reason


def test_actions_are_applied_once() -> None:
    with driven(delay(success_at=1)) as driver:
        driver.begin(credit())
        asked = driver.event(ObservationReady)
        driver.answer(asked)
        driver.event(TrajectoryReady)
        driver.apply(asked)
        assert driver.event(MemberLost).reason.startswith("RuntimeError: slot 0 waits for actions 0")


def test_evaluation_wraps_around_its_row() -> None:
    with driven(delay(success_at=11), chunks=2) as driver:
        driver.begin(credit(channel="evaluation", episode=1 << 40, row=1, step_limit=20))
        for position in range(5):
            asked = driver.event(ObservationReady)
            assert asked.chunks == (position % 2,)
            assert driver.slab["chunk_index"][1, position % 2] == position
            assert driver.slab["observation.tag"][1, position % 2, 3] == 2 * position
            driver.answer(asked)
        driver.answer(driver.event(ObservationReady))
        ended = driver.event(TrajectoryReady)
        assert (ended.end, ended.chunks, ended.sub_steps, ended.success) == ("terminated", 6, 11, True)
        assert (driver.slab["stamp"][0] == UNWRITTEN).all(), "no other row is touched"


def test_only_the_first_actions_of_a_chunk_are_executed_where_it_is_replanned() -> None:
    with driven(delay(constant_reward=1.0), chunk=5, replan=2) as driver:
        driver.begin(credit(channel="evaluation", step_limit=3))
        driver.answer(driver.event(ObservationReady))
        asked = driver.event(ObservationReady)
        assert driver.slab["sub_steps"][0, 0] == 2
        assert driver.slab["reward"][0, 0].tolist() == [1, 1, 0, 0, 0]
        driver.answer(asked)
        ended = driver.event(TrajectoryReady)
        assert (ended.sub_steps, ended.chunks, ended.total_reward) == (3, 2, 3.0)


def test_evaluation_that_is_cut_needs_no_last_observation() -> None:
    simulator = Gated()
    with driven(simulator, chunks=2) as driver:
        driver.begin(credit(channel="evaluation", step_limit=2))
        driver.answer(driver.event(ObservationReady))
        ended = driver.event(TrajectoryReady)
        assert (ended.end, ended.success, simulator.observed) == ("truncated", False, 1)


def test_every_sub_step_of_an_evaluation_is_filmed(tmp_path: Path) -> None:
    film = tmp_path / "films" / "one.mp4"
    with driven(delay(success_at=3)) as driver:
        driver.begin(
            credit(env=0, row=0, channel="evaluation", video=str(film)),
            credit(env=1, row=1, channel="evaluation"),
        )
        driver.answer(driver.event(ObservationReady))
        driver.answer(driver.event(ObservationReady))
        driver.event(TrajectoryReady)
        driver.event(TrajectoryReady)
        with av.open(str(film)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(frames) == 4, "the first picture and one after each of the three sub-steps"
        assert [path.name for path in film.parent.iterdir()] == ["one.mp4"]


FAULTS = {
    "reset": ({"kind": "exception", "start_state": 3, "step": 0}, "resetting"),
    "step": ({"kind": "exception", "start_state": 3, "step": 2}, "stepping"),
    "nan": ({"kind": "nan_reward", "start_state": 3, "step": 1}, "stepping"),
}


@pytest.mark.parametrize(("fault", "doing"), FAULTS.values(), ids=FAULTS)
def test_an_error_comes_first_and_names_its_env_and_start(fault, doing) -> None:
    with driven(delay(faults=[fault]), slots=((7, 8),)) as driver:
        driver.begin(credit(env=8, state=3))
        if doing == "stepping":
            driver.answer(driver.event(ObservationReady))
        reason = driver.event(MemberLost).reason
        first, rest = reason.split("\n", 1)
        expected = "reward of sub-step 0 is nan" if "nan" in fault["kind"] else "scripted fault"
        assert expected in first
        assert f"while {doing} env 8 of slot 0, Start(task=0, split='train', state=3) at sub-step 0" in first
        assert rest.startswith("Traceback")


def test_waits_end_at_multiples_of_the_round() -> None:
    """Waits of 1 and 11 ms end with the round of 80 ms that they end in, so mostly together."""
    waits: list[tuple[float, float]] = []

    class Watched(Synthetic):
        def make(self) -> DelayEnv:
            class Env(DelayEnv):
                def finish(self) -> Step:
                    waits.append((self._ready_s, time.monotonic()))
                    return super().finish()

            return Env(self._settings)

    simulator = Watched(SyntheticSettings(task="delay", mean_ms=(1.0, 11.0)))
    slow = Start(task=1, split="train", state=3)
    with driven(simulator, slots=((0,), (1,)), chunk=1, chunks=8, round_s=0.08) as driver:
        driver.begin(credit(env=0, row=0), credit(env=1, row=1, start=slow))
        for _ in range(12):
            driver.answer(driver.event(ObservationReady))
        for _ in range(2):
            driver.event(ObservationReady)
    assert len(waits) == 12
    for until_s, ended_s in waits:
        assert ended_s >= math.ceil(until_s / 0.08) * 0.08, "before its round was over"


def test_a_member_whose_envs_cannot_be_built_is_lost_and_never_ready() -> None:
    class Broken(Synthetic):
        def make(self):
            raise OSError("no display")

    driver = Driven(Broken(SyntheticSettings(task="delay")), slots=((0,), (1,)), lanes=2)
    driver.role.start()
    for _ in range(2):
        assert driver.event(MemberLost).reason.startswith("OSError: no display (while building")
    driver.role.close()
    assert driver.events.empty()


def test_what_hangs_is_named_and_does_not_hold_others_up() -> None:
    simulator = Gated()
    with driven(simulator, slots=((0,), (1, 2)), lanes=2) as driver:
        assert driver.role.doing() == []
        driver.begin(credit(env=0, row=0))
        free = driver.event(ObservationReady)
        gate = simulator.gate = threading.Event()
        driver.begin(credit(env=2, row=1, state=4))
        assert simulator.at_gate.wait(WAIT_S)
        simulator.gate = None
        driver.answer(free)
        assert driver.event(ObservationReady).slot == 0
        (line,) = [text for text in driver.role.doing() if text.startswith("lane-1")]
        assert line.startswith(
            "lane-1: while rendering env 2 of slot 1, Start(task=0, split='train', state=4)"
        )
        gate.set()
        driver.event(ObservationReady)


def test_cancelled_requests_need_nothing_and_strange_commands_are_refused() -> None:
    with driven(delay()) as driver:
        driver.begin(credit())
        driver.event(ObservationReady)
        driver.role.handle(CancelRequests(member=MEMBER, slots=((Slot(0), 0),), reason="the end"))
        with pytest.raises(TypeError, match="a Simulator cannot do LoadWeights"):
            driver.role.handle(LoadWeights(member=MEMBER, channel="rollout", version=Version(0), buffer=0))
        assert driver.events.empty()


def test_no_start_is_no_request() -> None:
    with driven(delay()) as driver:
        driver.role.handle(StartTrajectories(member=MEMBER, starts=()))
        assert driver.events.empty()


def test_ready_is_the_first_word_of_every_lane_together() -> None:
    driver = Driven(delay(), slots=((0,), (1,), (2,)), lanes=3)
    driver.role.start()
    driver.event(MemberReady)
    assert driver.events.empty()
    driver.role.close()
