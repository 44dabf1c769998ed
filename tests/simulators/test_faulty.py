"""The wrapper of any adapter with scripted faults, where env batches step as a whole."""

import math
from pathlib import Path

import numpy as np
import pytest

from rlvla3.conformance import CHECKS, Profile, Subject
from rlvla3.messages import Start
from rlvla3.simulators.chunking import chunk_step
from rlvla3.simulators.faulty import Faulty, FaultySettings

TOGETHER = {"task": "reach", "together": True, "step_limits": 12}
ACTIONS = np.random.default_rng(0).uniform(-1, 1, (3, 4, 2)).astype(np.float32)


def batch(*faults: dict) -> object:
    """Three envs, each in an initial state of its own."""
    adapter = Faulty(FaultySettings(kind="synthetic", options=TOGETHER, faults=faults))
    assert adapter.spec.steps_together
    made = adapter.make_batch(3)
    for index in range(3):
        made.reset(index, Start(task=0, split="train", state=index), 0)
    return made


def test_without_a_fault_it_is_the_adapters_own_batch() -> None:
    wrapped = batch()
    own = wrapped._batch
    rewards = [result.reward for result in chunk_step(wrapped, range(3), ACTIONS)]
    seen = wrapped.observe(range(3))
    for index in range(3):
        own.reset(index, Start(task=0, split="train", state=index), 0)
    assert rewards == [result.reward for result in chunk_step(own, range(3), ACTIONS)]
    for ours, theirs in zip(seen, own.observe(range(3)), strict=True):
        np.testing.assert_array_equal(ours["proprioception"], theirs["proprioception"])
    assert wrapped.size == 3 and wrapped.picture(1).shape == (256, 256, 3)
    wrapped.close()


@pytest.mark.parametrize("kind", ["nan_reward", "nan_observation"])
def test_a_fault_strikes_the_env_and_the_sub_step_that_it_names(kind: str) -> None:
    struck = batch({"kind": kind, "start_state": 1, "step": 2})
    for sub_step in (1, 2, 3):
        struck.begin((0, 1, 2), ACTIONS[:, sub_step])
        steps = struck.finish((0, 1, 2))
        seen = struck.observe((0, 1, 2))
        rewards = [math.isnan(step.reward) for step in steps]
        numbers = [bool(np.isnan(fields["proprioception"]).any()) for fields in seen]
        hit = [False, sub_step == 2, False]
        assert rewards == (hit if kind == "nan_reward" else [False] * 3)
        assert numbers == (hit if kind == "nan_observation" else [False] * 3)


@pytest.mark.parametrize("step", [0, 2])
def test_the_env_that_is_struck_is_the_busy_one(step: int, tmp_path: Path) -> None:
    marker = tmp_path / "struck"
    fault = {"kind": "exception", "start_state": 4, "step": step, "marker": str(marker)}
    struck = batch(fault)
    with pytest.raises(RuntimeError, match=rf"\(0, 'train', 4, {step}\)"):
        struck.reset(1, Start(task=0, split="train", state=4), 0)
        chunk_step(struck, range(3), ACTIONS)
    assert struck.busy == 1 and marker.exists()


@pytest.mark.live
@pytest.mark.parametrize("check", ["a_hang_in_a_reset_is_ended", "a_hang_in_a_step_is_ended"])
def test_a_whole_batch_that_hangs_is_replaced(check: str) -> None:
    with Subject("synthetic", TOGETHER, Profile(deadline_s=2)) as subject:
        CHECKS[check](subject)
