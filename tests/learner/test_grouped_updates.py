"""Groups in the learner: what members are compared by, and that they really began alike."""

import bandit
import msgspec
import numpy as np
import pytest

from rlvla3.algorithms.grouped import GRPO, RLOO, GroupedSettings
from rlvla3.errors import UserError
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.messages import Start


def learner(kind=GRPO, streaming=False, group=None, **settings):
    settings = {"minibatch": 64, "lr": 2e-3, **settings}
    return Reinforcement(
        bandit.build(),
        kind(GroupedSettings(group_size=4, score="return", **(group or {}))),
        ReinforcementSettings(**settings),
        seed=0,
        streaming=streaming,
    )


def step(trained, first, rows=16, parts=2):
    trajectories, slab = bandit.rollout(trained.model, rows, 2, version=trained.version, first=first, group=4)
    for part in range(parts):
        trained.ingest(trajectories[part * rows // parts : (part + 1) * rows // parts], slab)
    return trained.update()


@pytest.mark.long
@pytest.mark.parametrize("kind", [GRPO, RLOO])
@pytest.mark.parametrize("streaming", [False, True])
def test_reward_rises(kind, streaming) -> None:
    trained = learner(kind, streaming)
    rewards = []
    for update in range(8):
        report = step(trained, update * 64, rows=64, parts=4)
        assert not report.skipped
        rewards.append(report.metrics["reward_mean"])
    assert rewards[-1] > 0.5 * rewards[0]


def test_the_value_head_neither_trains_nor_is_asked() -> None:
    trained = learner(recompute_values=True, value_warm_up=5)
    before = trained.weights("rollout")
    metrics = step(trained, 0).metrics
    after = trained.weights("rollout")
    moved = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    assert moved and not any(name.startswith("value_head.") for name in moved)
    assert not {"value_loss", "explained_variance"} & metrics.keys()
    assert not any(name.startswith("value_head.") for name in trained._optimiser.parameters)


def test_figures_of_groups() -> None:
    """Two groups of four: returns 1, 0, 0, 1 and four times 3."""
    trained = learner()
    trajectories, slab = bandit.rollout(trained.model, 8, 2, group=4)
    returns = (1.0, 0.0, 0.0, 1.0, 3.0, 3.0, 3.0, 3.0)
    trajectories = [
        msgspec.structs.replace(t, total_reward=r) for t, r in zip(trajectories, returns, strict=True)
    ]
    trained.ingest(trajectories, slab)
    part = trained._taken[0]
    one = 0.5 / (0.5 + 1e-6)
    np.testing.assert_allclose(part.advantage[::2], [one, -one, -one, one, 0, 0, 0, 0], atol=1e-6)
    np.testing.assert_array_equal(part.advantage[::2], part.advantage[1::2])
    metrics = trained.update().metrics
    assert metrics["group/score_mean"] == 14 / 8
    assert metrics["group/score_std"] == 0.25
    assert metrics["group/equal"] == 0.5
    assert metrics["group/start_difference_max"] == 0.0


def test_members_that_did_not_begin_alike_are_told() -> None:
    for field, wanted in (("state", 0.25), ("image", 0.2)):
        trained = learner()
        trajectories, slab = bandit.rollout(trained.model, 8, 2, group=4)
        changed = slab[f"observation.{field}"]
        changed[4:8, 0].flat[0] = 0
        changed[4:8, 0] = changed[4, 0]
        changed[4:8, 0, ..., 0] = 10
        changed[5, 0, ..., 0] = 61 if field == "image" else 10.25
        with pytest.raises(
            UserError, match=rf"episode 5 .* differs from episode 4 by {wanted:g} in '{field}'"
        ):
            trained.ingest(trajectories, slab)
        tolerant = learner(group={"start_tolerance": 0.3})
        tolerant.ingest(trajectories, slab)
        assert tolerant.update().metrics["group/start_difference_max"] == pytest.approx(wanted)


def test_numbers_that_are_none_are_no_equal_start() -> None:
    trained = learner()
    trajectories, slab = bandit.rollout(trained.model, 4, 2, group=4)
    slab["observation.state"][1, 0, 0] = np.nan
    with pytest.raises(UserError, match="differs from episode 0 by inf in 'state'"):
        trained.ingest(trajectories, slab)


def test_members_of_another_start_are_told() -> None:
    trained = learner()
    trajectories, slab = bandit.rollout(trained.model, 4, 2, group=4)
    other = Start(task=0, split="train", state=9)
    with pytest.raises(RuntimeError, match="state=9"):
        trained.ingest([*trajectories[:3], msgspec.structs.replace(trajectories[3], start=other)], slab)
