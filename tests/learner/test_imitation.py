"""The supervised warm start."""

import bandit
import numpy as np
import pytest
import torch

from rlvla3.errors import UserError
from rlvla3.learner.imitation import Demonstrations, Imitation
from rlvla3.learner.settings import ImitationSettings


def demonstrations(count: int = 40) -> Demonstrations:
    """Actions that depend on task and state."""
    observation = bandit.observations(count)
    task, _ = observation.pop("task"), observation.pop("elapsed")
    target = np.stack((np.where(task == 0, 0.8, -0.8), np.tanh(observation["state"][:, 0])), axis=1)
    actions = np.repeat(target[:, None], bandit.CHUNK, axis=1).astype(np.float32)
    return Demonstrations(observation=observation, task=task, actions=actions)


def imitation(seed: int = 0, **settings) -> Imitation:
    return Imitation(bandit.build(), ImitationSettings(**{"steps": 12, "batch": 8, **settings}), seed=seed)


@pytest.mark.long
def test_it_learns_the_demonstrated_actions() -> None:
    data = demonstrations()
    learned = imitation(steps=120, batch=32, lr=5e-3, warm_up=10)
    losses = []
    final = learned.run(data, report=lambda p: losses.append(p.loss))
    assert final < 0.5 * losses[0]
    observation, actions = data.take(np.arange(40))
    found = learned.model.act(observation, bandit.keys(40), False)["action"]
    assert np.abs(found - actions).mean() < 0.35


def test_resume_equals_no_resume(tmp_path) -> None:
    data = demonstrations()
    straight = imitation(ema=0.9)
    straight.run(data)
    half = imitation(ema=0.9)
    half.run(data, stop=lambda: half.step == 5)
    assert not half.done
    half.save(tmp_path)
    resumed = imitation(seed=3, ema=0.9)
    resumed.load(tmp_path)
    resumed.run(data)
    for name, array in straight.model.arrays().items():
        assert np.array_equal(array, resumed.model.arrays()[name]), name


def test_every_demonstration_is_used_equally_often() -> None:
    learned = imitation(batch=8)
    used = []
    for learned.step in range(10):
        used.extend(learned._batch(20).tolist())
    assert np.bincount(used).tolist() == [4] * 20


def test_the_rate_warms_up_and_ends_low() -> None:
    rates = []
    imitation(steps=20, warm_up=4, lr=1.0, lr_final=0.05).run(
        demonstrations(), report=lambda p: rates.append(p.lr)
    )
    assert rates[0] == pytest.approx(0.25)
    assert max(rates) == pytest.approx(rates[3], abs=0.01)
    assert rates[-1] < 0.07


def test_a_used_budget_ends_training() -> None:
    learned = imitation(steps=10**6, budget_s=0.2)
    learned.run(demonstrations())
    assert learned.done
    assert 0 < learned.step < 10**6


def test_the_value_head_is_left_alone_and_threads_are_put_back() -> None:
    learned = imitation(threads=1, steps=4)
    before, threads = learned.model.arrays(), torch.get_num_threads()
    torch.set_num_threads(2)
    learned.run(demonstrations())
    put_back = torch.get_num_threads()
    torch.set_num_threads(threads)
    after = learned.model.arrays()
    assert all(np.array_equal(before[n], after[n]) for n in before if n.startswith("value_head."))
    assert not np.array_equal(before["stem.layers.0.weight"], after["stem.layers.0.weight"])
    assert put_back == 2


def test_bad_demonstrations_are_one_clear_line() -> None:
    with pytest.raises(UserError, match="M ≥ 1"):
        Demonstrations(observation={}, task=np.zeros(0, np.int64), actions=np.zeros((0, 2, 2), np.float32))
    with pytest.raises(UserError, match="'state' has 2 entries for 3 actions"):
        Demonstrations(
            observation={"state": np.zeros((2, 3))},
            task=np.zeros(3, np.int64),
            actions=np.zeros((3, 2, 2), np.float32),
        )


def test_a_loss_that_is_not_finite_stops() -> None:
    data = demonstrations()
    data.actions[:] = np.nan
    with pytest.raises(UserError, match="not finite"):
        imitation().run(data)
