"""The Simulator role with env batches that can only step as a whole, driven by hand."""

import pytest
from role_worlds import UNWRITTEN, Driven, credit, driven, tags

from rlvla3.messages import MemberLost, ObservationReady, TrajectoryReady
from rlvla3.simulators.synthetic import Synthetic, SyntheticSettings

SLOTS = ((0, 1), (2, 3))


def whole(**settings) -> Synthetic:
    return Synthetic(SyntheticSettings(task="delay", together=True, **settings))


def begun(driver: Driven, *envs: int, **changes) -> dict[int, ObservationReady]:
    """Begin an episode in each env, row n in env n; returns each slot's request."""
    asked = {}
    for env in envs:
        driver.begin(credit(env=env, row=env, episode=50 + env, state=env, **changes))
        request = driver.event(ObservationReady)
        asked[request.slot] = request
    return asked


def test_a_batch_steps_when_all_slots_that_asked_have_their_actions() -> None:
    """What a start in a third slot leads to comes first, so nothing was stepped before."""
    with driven(whole(), slots=((0,), (1,), (2,))) as driver:
        asked = begun(driver, 0, 1)
        driver.answer(asked[0])
        asked |= begun(driver, 2)
        driver.answer(asked[2])
        assert driver.slab["sub_steps"][0, 0] == UNWRITTEN
        driver.answer(asked[1])
        again = [driver.event(ObservationReady) for _ in range(3)]
        assert [(a.slot, a.seq, a.rows, a.chunks) for a in again] == [
            (0, 1, (0,), (1,)),
            (1, 1, (1,), (1,)),
            (2, 1, (2,), (1,)),
        ]
        assert driver.slab["sub_steps"][:3, 0].tolist() == [2, 2, 2]
        assert [tags(driver, row)[:2] for row in range(3)] == [[0, 2]] * 3
        assert driver.slab["observation.tag"][:3, 1, 2].tolist() == [0, 1, 2], "each in its own row"


def test_a_start_in_a_slot_that_waits_begins_after_the_chunk() -> None:
    """Reset before it, the env would have moved on by two sub-steps without an action."""
    with driven(whole(), slots=SLOTS) as driver:
        asked = begun(driver, 0, 2)
        driver.begin(credit(env=1, row=1, episode=51, state=1))
        driver.answer(asked[0])
        driver.answer(asked[1])
        first, second = driver.event(ObservationReady), driver.event(ObservationReady)
        assert (first.rows, first.chunks) == ((0, 1), (1, 0))
        assert (second.rows, second.chunks) == ((2,), (1,))
        assert tags(driver, 1)[0] == 0
        assert driver.slab["sub_steps"][1, 0] == UNWRITTEN


def test_a_start_in_the_middle_of_a_chunk_begins_after_it() -> None:
    """One lane: it hears of the start while the batch waits for its latency; slot 1 is idle."""
    with driven(whole(mean_ms=100), slots=SLOTS) as driver:
        asked = begun(driver, 0)
        driver.answer(asked[0])
        driver.begin(credit(env=2, row=2, episode=52, state=2))
        first, second = driver.event(ObservationReady), driver.event(ObservationReady)
        assert (first.slot, first.chunks) == (0, (1,))
        assert (second.slot, second.chunks, second.seq) == (1, (0,), 0)
        assert tags(driver, 2)[0] == 0


def test_an_end_in_the_middle_of_a_chunk_keeps_its_observation_though_its_env_moves_on() -> None:
    with driven(whole(), slots=SLOTS, chunk=3) as driver:
        asked = begun(driver, 0, 2, step_limit=4)
        driver.answer(asked[0])
        driver.answer(asked[1])
        driver.begin(credit(env=1, row=1, episode=51, state=1, step_limit=9))
        for request in [driver.event(ObservationReady) for _ in range(2)]:
            driver.answer(request)
        ends = [driver.event(TrajectoryReady) for _ in range(2)]
        assert [(e.row, e.end, e.sub_steps, e.total_reward) for e in ends] == [
            (0, "truncated", 4, 4.0),
            (2, "truncated", 4, 4.0),
        ]
        assert tags(driver, 0)[:3] == tags(driver, 2)[:3] == [0, 3, 4]
        assert driver.slab["reward"][0, 1].tolist() == [1, 0, 0]


def test_an_env_that_idled_through_a_chunk_begins_like_a_new_one() -> None:
    with driven(whole(success_at=2), slots=SLOTS, chunk=2) as driver:
        asked = begun(driver, 0)
        driver.answer(asked[0])
        assert driver.event(TrajectoryReady).end == "terminated"
        asked = begun(driver, 2)
        driver.answer(asked[1])
        assert driver.event(TrajectoryReady).row == 2
        again = begun(driver, 0)[0]
        assert (again.seq, again.rows) == (1, (0,))
        assert tags(driver, 0)[0] == 0


def test_env_batches_of_a_lane_step_apart() -> None:
    with driven(whole(), slots=((0,), (1,)), batches=(0, 1)) as driver:
        asked = begun(driver, 0, 1)
        driver.answer(asked[1])
        assert driver.event(ObservationReady).slot == 1
        assert driver.slab["sub_steps"][0, 0] == UNWRITTEN


def test_a_credit_for_a_further_segment_is_an_error() -> None:
    with driven(whole(), slots=SLOTS) as driver:
        driver.begin(credit(env=0, row=0, first_chunk=2))
        lost = driver.event(MemberLost)
        assert "env 0 cannot wait for a segment: its batch steps as a whole" in lost.reason


@pytest.mark.parametrize(("env", "slot"), [(1, 0), (2, 1)])
def test_an_error_names_the_env_and_its_slot(env: int, slot: int) -> None:
    fault = {"kind": "exception", "start_state": env, "step": 1}
    simulator = Synthetic(
        SyntheticSettings.model_validate({"task": "delay", "together": True, "faults": [fault]})
    )
    with driven(simulator, slots=SLOTS) as driver:
        asked = begun(driver, 0, 2)
        driver.answer(asked[0])
        driver.begin(credit(env=1, row=1, episode=51, state=1))
        driver.answer(asked[1])
        if env == 1:
            for request in [driver.event(ObservationReady) for _ in range(2)]:
                driver.answer(request)
        lost = driver.event(MemberLost)
        assert f"while stepping env {env} of slot {slot}, Start(task=0" in lost.reason
