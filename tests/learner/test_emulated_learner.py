"""The emulated learner, and learners by name."""

import time

import bandit
import numpy as np
import pytest

from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.learner.registry import BUILT_IN, LearnerContext, learner_class
from rlvla3.messages import Episode, Row, Start, Trajectory, Version
from rlvla3.policies.tiny import Tiny

TRAJECTORY = Trajectory(
    row=Row(0),
    episode=Episode(0),
    group=0,
    start=Start(task=0, split="train", state=0),
    first_chunk=0,
    chunks=2,
    sub_steps=10,
    end="terminated",
    success=True,
    solved_at_reset=False,
    total_reward=1.0,
    oldest_version=Version(0),
)


@pytest.mark.parametrize("streaming", [False, True])
def test_time_passes_once_for_each_sample(streaming) -> None:
    learner = EmulatedLearner(EmulatedLearnerSettings(ms_per_sample=1.0), streaming=streaming)
    start_s = time.monotonic()
    learner.ingest([TRAJECTORY, TRAJECTORY], {})
    middle_s = time.monotonic()
    report = learner.update()
    used = (middle_s - start_s, time.monotonic() - middle_s)
    assert used[0 if streaming else 1] >= 0.02
    assert used[1 if streaming else 0] < 0.02
    assert report.metrics["sub_steps"] == 20.0
    assert learner.version == 1
    assert learner.weights("rollout")["weights"].tolist() == [1.0]


def test_it_saves_its_version(tmp_path) -> None:
    learner = EmulatedLearner(EmulatedLearnerSettings(), streaming=False)
    learner.version = 4
    learner.save(tmp_path)
    other = EmulatedLearner(EmulatedLearnerSettings(), streaming=False)
    other.load(tmp_path)
    assert other.version == 4


def context(weights: str = "") -> LearnerContext:
    return LearnerContext(
        policy=Tiny(bandit.SMALL, bandit.INTERFACE),
        algorithm=PPO(PPOSettings()),
        device="cpu",
        seed=0,
        streaming=False,
        final_values=False,
        sharing=False,
        weights=weights,
        rank=0,
        ranks=1,
        store="",
    )


@pytest.mark.parametrize("kind", list(BUILT_IN))
def test_learners_build_by_name(kind) -> None:
    factory = learner_class(kind)
    assert factory.build(factory.Settings(), context()) is not None


def test_training_starts_from_given_weights(tmp_path) -> None:
    target = tmp_path / "warm"
    start = bandit.build(17).arrays()
    checkpoint.save_weights(
        target, start, checkpoint.Description(version=0, score=None, fingerprint={}, config="")
    )
    factory = learner_class("reinforcement")
    learner = factory.build(factory.Settings(), context(str(target)))
    for channel in ("rollout", "evaluation"):
        assert all(np.array_equal(start[name], array) for name, array in learner.weights(channel).items())


def test_unknown_learners_are_one_clear_line() -> None:
    with pytest.raises(UserError, match="did you mean 'reinforcement'"):
        learner_class("reinforcment")
