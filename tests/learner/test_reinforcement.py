"""The reinforcement learner on a slab without a simulator."""

import itertools

import bandit
import msgspec
import numpy as np
import pytest
import torch

from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.learner import rejected
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings


def learner(
    model=None, seed=0, streaming=False, recompute_values=False, gamma=0.0, correction="decoupled", **settings
):
    settings = {"minibatch": 16, "lr": 1e-3, "value_warm_up": 0, **settings}
    return Reinforcement(
        model or bandit.build(),
        PPO(PPOSettings(gamma=gamma, correction=correction)),
        ReinforcementSettings(**settings),
        seed=seed,
        streaming=streaming,
        recompute_values=recompute_values,
    )


def step(trained: Reinforcement, first: int, rows: int = 12, parts: int = 2, **changes):
    trajectories, slab = bandit.rollout(trained.model, rows, 2, version=trained.version, first=first)
    slab |= changes
    for part in range(parts):
        trained.ingest(trajectories[part::parts], slab)
    return trained.update()


def same(first, second) -> bool:
    return all(
        np.array_equal(first.weights(channel)[name], array)
        for channel in ("rollout", "evaluation")
        for name, array in second.weights(channel).items()
    )


@pytest.mark.long
@pytest.mark.parametrize("streaming", [False, True])
def test_reward_rises(streaming) -> None:
    trained = learner(streaming=streaming, lr=2e-3, minibatch=64)
    rewards = []
    for update in range(8):
        report = step(trained, update * 48, rows=48)
        assert not report.skipped
        rewards.append(report.metrics["reward_mean"])
    assert rewards[-1] > 0.4 * rewards[0]
    assert trained.version == 8


def test_without_learning_the_ratio_stays_one() -> None:
    trained = learner(lr=0.0, value_lr=0.0, weight_decay=0.0, gamma=0.97)
    before = {name: array.copy() for name, array in trained.weights("rollout").items()}
    metrics = step(trained, 0).metrics
    assert metrics["logprob_gap"] < 1e-3
    assert metrics["kl"] < 1e-6
    assert metrics["clip_fraction"] == 0.0
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert all(np.array_equal(before[name], array) for name, array in trained.weights("rollout").items())


@pytest.mark.parametrize("streaming", [False, True])
def test_stale_chunks_get_their_log_prob_under_the_present_policy(streaming) -> None:
    """One version behind; what the present version makes keeps the Generator's own."""
    trained = learner(lr=3e-2, streaming=streaming)
    stale = bandit.rollout(trained.model, 4, 2, version=0)
    step(trained, 40)
    fresh = bandit.rollout(trained.model, 4, 2, version=1, first=80)
    for trajectories, slab in (stale, fresh):
        trained.ingest(trajectories, slab)
    old, new = trained._parts
    with torch.no_grad():
        expected = trained.model.evaluate(old.prefix, old.observation, old.record).log_prob.numpy()
    np.testing.assert_allclose(old.proximal, expected, rtol=1e-5)
    assert np.abs(old.proximal - old.record["log_prob"]).max() > 1e-2
    assert np.array_equal(new.proximal, new.record["log_prob"])
    assert not trained.update().skipped


def test_without_lag_the_correction_changes_no_bit() -> None:
    results = [learner(correction=correction) for correction in ("none", "decoupled")]
    for trained in results:
        step(trained, 0)
        step(trained, 12)
    assert same(*results)


def test_the_gap_is_known_where_every_chunk_is_one_version_behind() -> None:
    """The usual case of full asynchrony. Records under the weights of before have none; others do."""
    trained = learner(lr=3e-2)
    rollouts = {}
    for version in range(3):
        rollouts[version] = bandit.rollout(trained.model, 12, 2, version=version, first=12 * version)
        taken = rollouts[max(version - 1, 0)]
        trained.ingest(*taken)
        report = trained.update()
        assert report.metrics["lag_mean"] == float(version > 0)
        assert report.metrics["logprob_gap"] < 1e-3, version
    trajectories, slab = bandit.rollout(trained.model, 12, 2, version=2, first=100)
    trained.ingest(trajectories, slab)
    assert trained.update().metrics["logprob_gap"] > 1e-3, "these were made by version 3"


@pytest.mark.long
@pytest.mark.parametrize("minibatch", [1, 3, 8, 32])
@pytest.mark.parametrize("streaming", [False, True])
def test_without_learning_every_batch_size_has_ratio_one(minibatch, streaming) -> None:
    still = {"lr": 0.0, "value_lr": 0.0, "weight_decay": 0.0, "epochs": 2}
    trained = learner(minibatch=minibatch, streaming=streaming, **still)
    for update in range(2 if minibatch == 1 else 3):
        metrics = step(trained, 12 * update).metrics
        assert metrics["logprob_gap"] < 1e-3
        assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-3)
        assert metrics["clip_fraction"] == 0.0


def test_weights_that_would_not_be_finite_are_put_back() -> None:
    """A gradient is finite and the step is not: an infinite learning rate."""
    trained, untouched = learner(lr=1e38, epochs=1, minibatch=1000), learner()
    report = step(trained, 0)
    assert report.skipped
    assert report.metrics["not_finite_weights"] == 1.0
    assert same(trained, untouched)


def test_a_rejected_batch_can_be_replayed(tmp_path) -> None:
    trained = learner(epochs=1)
    step(trained, 0)
    with pytest.raises(ValueError, match="was not skipped"):
        trained.save_rejected(tmp_path)
    _, slab = bandit.rollout(trained.model, 12, 2, version=1, first=40)
    broken = slab["record.log_prob"].copy()
    broken[2, 1] = np.nan
    assert step(trained, 40, **{"record.log_prob": broken}).skipped
    trained.save(tmp_path)
    trained.save_rejected(tmp_path)
    other = learner(epochs=1, model=bandit.build(seed=5))
    samples, reason = rejected.read(tmp_path, other.model)
    assert reason == "not_finite_loss"
    found = list(rejected.findings(samples))
    # The proximal policy of a chunk of the present version is its behaviour policy.
    assert {(one.field, one.episode, one.chunk) for one in found} == {
        ("record.log_prob", 42, 1),
        ("proximal", 42, 1),
    }
    assert all(np.isnan(one.value) for one in found)
    report = other.replay(tmp_path)
    assert report.skipped
    assert report.metrics["not_finite_loss"] == 1.0
    assert (other.version, other.skipped) == (1, 2)
    assert same(other, trained)


def test_value_warm_up_holds_the_policy() -> None:
    trained = learner(value_warm_up=1)
    before = trained.weights("rollout")
    step(trained, 0)
    moved = {n for n, a in trained.weights("rollout").items() if not np.array_equal(a, before[n])}
    assert moved
    assert all(name.startswith("value_head.") for name in moved)
    step(trained, 12)
    assert not np.array_equal(trained.weights("rollout")["state_proj.weight"], before["state_proj.weight"])


def test_value_passes_train_the_value_head_alone() -> None:
    trained, plain = learner(epochs=1, value_passes=3), learner(epochs=1)
    step(trained, 0)
    step(plain, 0)
    for name, array in trained.weights("rollout").items():
        same = np.array_equal(array, plain.weights("rollout")[name])
        assert same != name.startswith("value_head."), name
    for name, array in trained.weights("evaluation").items():
        if not name.startswith("value_head."):
            np.testing.assert_array_equal(array, plain.weights("evaluation")[name])


def test_the_order_of_arrival_changes_no_bit() -> None:
    results = []
    for order in (lambda rows: rows, lambda rows: rows[::-1]):
        trained = learner()
        trajectories, slab = bandit.rollout(trained.model, 12, 2)
        arrived = order(trajectories)
        for first in range(0, 12, 4):
            trained.ingest(arrived[first : first + 4], slab)
        trained.update()
        results.append(trained)
    assert same(*results)


@pytest.mark.long
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("field", ["reward", "record.log_prob", "record.chain"])
def test_an_update_that_is_not_finite_changes_no_bit(field, streaming, before) -> None:
    """Small minibatches: steps were made before the one broken chunk is met."""
    trained, untouched = (learner(streaming=streaming, minibatch=2, epochs=1) for _ in range(2))
    for update in range(before):
        step(trained, 4 * update, rows=4)
        step(untouched, 4 * update, rows=4)
    _, slab = bandit.rollout(trained.model, 4, 2, version=before, first=40)
    broken = slab[field].copy()
    broken[2, 1] = np.nan
    report = step(trained, 40, rows=4, **{field: broken})
    assert report.skipped
    assert report.metrics["skipped_updates"] == 1.0
    assert trained.version == before
    assert same(trained, untouched)
    assert not step(trained, 80, rows=4).skipped
    assert not step(untouched, 80, rows=4).skipped
    assert same(trained, untouched)


def test_streaming_accumulates_the_full_batch_gradient() -> None:
    """One epoch: the streamed step equals one step on everything, for unequal micro-batches."""
    results = []
    for streaming, cuts in ((False, (0, 12)), (True, (0, 1, 6, 12))):
        trained = learner(streaming=streaming, epochs=1, minibatch=1000, statistics_keep=0.0)
        step(trained, 0)
        frozen = trained._advantages
        trajectories, slab = bandit.rollout(trained.model, 12, 2, version=1, first=12)
        for start, stop in itertools.pairwise(cuts):
            trained.ingest(trajectories[start:stop], slab)
        if not streaming:
            trained._advantages = frozen
            samples = trained._parts[0]
            trained._optimiser.set_rate(trained.rate_factor(1))
            loss, _ = trained._loss(samples, frozen)
            torch.autograd.backward(loss)
            trained._optimiser.step()
        else:
            trained.update()
        results.append(trained.weights("rollout"))
    for name, array in results[0].items():
        np.testing.assert_allclose(array, results[1][name], atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("streaming", [False, True])
def test_resume_equals_no_resume(tmp_path, streaming) -> None:
    straight = learner(streaming=streaming, schedule_versions=6)
    for update in range(4):
        step(straight, 12 * update)
        if update == 1:
            straight.save(tmp_path)
    resumed = learner(bandit.build(99), seed=5, streaming=streaming, schedule_versions=6)
    resumed.load(tmp_path)
    assert resumed.version == 2
    reports = [step(resumed, 12 * update) for update in (2, 3)]
    assert same(straight, resumed)
    assert reports[-1].metrics["lr"] == pytest.approx(1e-3 * (1 - 0.9 * 3 / 6))


def test_averaged_weights_follow_the_newest() -> None:
    trained = learner(ema=0.5, epochs=1, minibatch=1000)
    name = "state_proj.weight"
    before = trained.weights("rollout")[name]
    step(trained, 0)
    after, average = trained.weights("rollout")[name], trained.weights("evaluation")[name]
    np.testing.assert_allclose(average, (before + after) / 2, atol=1e-7)
    plain = learner(ema=0.0)
    step(plain, 0)
    assert np.array_equal(plain.weights("rollout")[name], plain.weights("evaluation")[name])


def test_a_high_kl_ends_the_update_early() -> None:
    assert step(learner(epochs=4, target_kl=1e-9), 0).metrics["epochs"] < 4
    assert step(learner(epochs=4, target_kl=1e9), 0).metrics["epochs"] == 4


def test_truncation_bootstraps_from_its_own_observation_only() -> None:
    """The learner computes V of observation ``chunks``, and of nothing behind it."""
    trained = learner(recompute_values=True, gamma=1.0, lr=0.0, value_lr=0.0)
    torch.nn.init.normal_(trained.model.value_head.layers[-1].weight)
    trajectories, slab = bandit.rollout(trained.model, 1, 3, reward=lambda a: np.zeros(a.shape[:2]))
    cut = msgspec.structs.replace(trajectories[0], chunks=1, end="truncated")
    final = {
        name.removeprefix("observation."): array[0, 1:2]
        for name, array in slab.items()
        if name.startswith("observation.")
    }
    expected = float(trained.model.values(final)[0])
    trained.ingest([cut], slab)
    assert float(trained._parts[0].returns[0]) == pytest.approx(expected, abs=1e-6)
    given = learner(recompute_values=False, gamma=1.0)
    slab["bootstrap_value"][0] = 7.0
    given.ingest([cut], slab)
    assert float(given._parts[0].returns[0]) == pytest.approx(7.0, abs=1e-6)


def test_lag_is_reported_and_a_version_from_the_future_is_an_error() -> None:
    trained = learner()
    step(trained, 0)
    trajectories, slab = bandit.rollout(trained.model, 4, 2, version=0, first=20)
    slab["version"][:, 1] = 1
    trained.ingest(trajectories, slab)
    metrics = trained.update().metrics
    assert (metrics["lag_mean"], metrics["lag_max"]) == (0.5, 1.0)
    trajectories, slab = bandit.rollout(trained.model, 4, 2, version=3, first=24)
    with pytest.raises(ValueError, match="behaviour version 3 is newer"):
        trained.ingest(trajectories, slab)


def test_counts_of_what_was_used() -> None:
    metrics = step(learner(), 0).metrics
    assert (metrics["trajectories"], metrics["chunks"], metrics["sub_steps"]) == (12.0, 24.0, 48.0)
    assert 0.0 <= metrics["success_rate"] <= 1.0


def test_an_update_of_nothing_is_an_error() -> None:
    trained = learner()
    trained.ingest([], {})
    with pytest.raises(ValueError, match="without any trajectory"):
        trained.update()


def test_the_rate_falls_with_versions_or_time_whichever_is_further() -> None:
    trained = learner(lr_schedule="linear", lr_final=0.0, schedule_versions=10, schedule_s=100.0)
    assert trained.rate_factor(5) == pytest.approx(0.5)
    trained._used_before_s = 80.0
    assert trained.rate_factor(5) == pytest.approx(0.2)
    assert trained.rate_factor(9) == pytest.approx(0.1)


def test_time_used_goes_on_after_a_resume(tmp_path) -> None:
    trained, again = learner(schedule_s=100.0), learner(schedule_s=100.0)
    trained._used_before_s = 80.0
    step(trained, 0)
    trained.save(tmp_path)
    again.load(tmp_path)
    assert again.used_s >= 80.0
