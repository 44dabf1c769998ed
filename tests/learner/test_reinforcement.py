"""The reinforcement learner on a slab without a simulator."""

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
    model=None, seed=0, streaming=False, final_values=False, gamma=0.0, correction="decoupled", **settings
):
    settings = {"minibatch": 16, "lr": 1e-3, "value_warm_up": 0, **settings}
    return Reinforcement(
        model or bandit.build(),
        PPO(PPOSettings(gamma=gamma, correction=correction)),
        ReinforcementSettings(**settings),
        seed=seed,
        streaming=streaming,
        final_values=final_values,
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
    old, new = trained._taken
    with torch.no_grad():
        expected = trained.model.evaluate(old.prefix, old.observation, old.record).log_prob.numpy()
    np.testing.assert_allclose(old.proximal, expected, rtol=1e-5)
    assert np.abs(old.proximal - old.record["log_prob"]).max() > 1e-2
    assert np.array_equal(new.proximal, new.record["log_prob"])
    trajectories, slab = bandit.rollout(trained.model, 4, 2, version=1, first=120)
    slab["version"][:, 0] = 0  # an episode over a change of version
    slab["record.log_prob"] += 1e-4
    trained.ingest(trajectories, slab)
    proximal, recorded = (
        array.reshape(4, 2) for array in (trained._taken[2].proximal, slab["record.log_prob"])
    )
    assert np.array_equal(proximal[:, 1], recorded[:, 1])
    assert not np.array_equal(proximal[:, 0], recorded[:, 0])
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
        assert report.metrics["lag_mean"] == report.metrics["lag_min"] == float(version > 0)
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
    assert (
        "the weights after the last step" in report.skipped and "lower learner.options.lr" in report.skipped
    )
    assert same(trained, untouched)


def test_a_rejected_batch_can_be_replayed(tmp_path) -> None:
    trained = learner(epochs=1)
    step(trained, 0)
    with pytest.raises(ValueError, match="was not rejected"):
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
        ("reference", 42, 1),
    }
    assert all(np.isnan(one.value) for one in found)
    report = other.replay(tmp_path)
    assert report.skipped
    assert report.metrics["not_finite_loss"] == 1.0
    assert (other.version, other.skipped) == (1, 2)
    assert same(other, trained)


def test_a_replay_is_normalised_as_the_streamed_update_was(tmp_path) -> None:
    """By statistics of earlier updates: rewards fifty times as large make fifty times the gradient."""
    trained = learner(streaming=True, epochs=1, gradient_clip=1e9)
    step(trained, 0)
    trained.save(tmp_path)
    _, slab = bandit.rollout(trained.model, 12, 2, version=1, first=40)
    large = step(trained, 40, reward=50 * slab["reward"])
    again = learner(bandit.build(seed=5), streaming=True, epochs=1, gradient_clip=1e9, minibatch=1000)
    again.load(tmp_path)
    trajectories, slab = bandit.rollout(again.model, 12, 2, version=1, first=40)
    again.ingest(trajectories, slab | {"reward": 50 * slab["reward"]})
    rejected.write(tmp_path, again._taken[0], "not_finite_loss")
    assert again.replay(tmp_path).metrics["grad_norm"] == pytest.approx(large.metrics["grad_norm"], rel=1e-3)


def test_value_warm_up_holds_the_policy() -> None:
    trained = learner(value_warm_up=1)
    before = trained.weights("rollout")
    step(trained, 0)
    moved = {n for n, a in trained.weights("rollout").items() if not np.array_equal(a, before[n])}
    assert moved
    assert all(name.startswith("value_head.") for name in moved)
    step(trained, 12)
    assert not np.array_equal(trained.weights("rollout")["state_proj.weight"], before["state_proj.weight"])


def test_value_warm_up_holds_a_policy_whose_prefix_trains_too() -> None:
    """The value looks at the prefix; its loss must not move it."""
    settings = bandit.SMALL.model_copy(update={"freeze_prefix": False})
    for passes in (0, 2):
        trained = learner(bandit.build(settings=settings), value_warm_up=1, value_passes=passes)
        before = trained.weights("rollout")
        metrics = step(trained, 0).metrics
        after = trained.weights("rollout")
        moved = {name for name, array in after.items() if not np.array_equal(array, before[name])}
        assert moved and all(name.startswith("value_head.") for name in moved)
        assert metrics["value_loss"] > 0


@pytest.mark.parametrize("frozen", [True, False])
def test_value_passes_train_the_value_head_alone(frozen) -> None:
    settings = bandit.SMALL.model_copy(update={"freeze_prefix": frozen})
    trained = learner(bandit.build(settings=settings), epochs=1, value_passes=3)
    plain = learner(bandit.build(settings=settings), epochs=1)
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


def test_a_high_kl_ends_the_update_before_the_step_that_would_be_too_far() -> None:
    trained = learner(epochs=4, target_kl=1e-6, lr=1e-2)
    report = step(trained, 0)
    assert not report.skipped
    assert report.metrics["shortened_updates"] == 1.0
    assert report.metrics["steps"] == 1.0
    assert report.metrics["epochs"] == 1.0
    whole = step(learner(epochs=4, target_kl=1e9), 0).metrics
    assert (whole["epochs"], whole["steps"], whole["shortened_updates"]) == (4.0, 8.0, 0.0)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_update_that_begins_too_far_off_policy_is_skipped_and_counted(streaming) -> None:
    """Stale data whose behaviour log-probs are far away; nothing is kept for a replay."""
    trained = learner(target_kl=0.5, streaming=streaming)
    step(trained, 0)
    before = trained.weights("rollout")
    _, slab = bandit.rollout(trained.model, 12, 2, version=1, first=40)
    report = step(trained, 40, **{"record.log_prob": slab["record.log_prob"] - 3.0})
    assert report.skipped and not report.rejected
    assert report.metrics["too_large_kl"] == report.metrics["skipped_updates"] == 1.0
    assert report.metrics["kl"] > 0.5
    guard = f"too_large_kl: a mean KL of {report.metrics['kl']:.3g} from the policy that acted, before"
    assert report.skipped.startswith(
        f"{guard} the first step, exceeds learner.options.target_kl = 0.5; raise it, or lower "
    )
    assert trained.version == 1
    assert all(np.array_equal(before[name], array) for name, array in trained.weights("rollout").items())
    assert not step(trained, 80).skipped


def test_an_update_with_too_few_effective_samples_is_skipped_and_counted() -> None:
    """One chunk of 24 has a weight of e³ against 1: (23 + 20.1)² / (24·(23 + 403.4)) = .181."""
    for least, skipped in ((0.19, True), (0.17, False)):
        trained = learner(min_ess=least, lr=1e-5)
        step(trained, 0)
        trajectories, slab = bandit.rollout(trained.model, 12, 2, version=0, first=40)
        slab["record.log_prob"][3, 1] -= 3.0
        trained.ingest(trajectories, slab)
        # Nothing was learned in between but by a tiny step: other weights are 1.
        report = trained.update()
        assert bool(report.skipped) == skipped
        if skipped:
            size = f"an effective sample size of {report.metrics['start_ess']:.3g} of the chunks"
            bound = "is less than learner.options.min_ess = 0.19; lower it, or "
            assert report.skipped.startswith(f"too_small_ess: {size} {bound}")
        assert report.metrics["start_ess"] == pytest.approx(0.181, abs=0.01)
        assert ("too_small_ess" in report.metrics) == skipped


def test_truncation_bootstraps_from_its_own_observation_only() -> None:
    """The learner computes V of observation ``chunks``, and of nothing behind it."""
    trained = learner(final_values=True, gamma=1.0, lr=0.0, value_lr=0.0)
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
    assert float(trained._taken[0].returns[0]) == pytest.approx(expected, abs=1e-6)
    given = learner(final_values=False, gamma=1.0)
    slab["bootstrap_value"][0] = 7.0
    given.ingest([cut], slab)
    assert float(given._taken[0].returns[0]) == pytest.approx(7.0, abs=1e-6)


def test_lag_is_reported_and_a_version_from_the_future_is_an_error() -> None:
    trained = learner()
    step(trained, 0)
    trajectories, slab = bandit.rollout(trained.model, 4, 2, version=0, first=20)
    slab["version"][:, 1] = 1
    trained.ingest(trajectories, slab)
    metrics = trained.update().metrics
    assert (metrics["lag_min"], metrics["lag_mean"], metrics["lag_max"]) == (0.0, 0.5, 1.0)
    trajectories, slab = bandit.rollout(trained.model, 4, 2, version=3, first=24)
    with pytest.raises(ValueError, match="behaviour version 3 is newer"):
        trained.ingest(trajectories, slab)


def test_ratio_clipping_and_effective_samples_are_told_by_lag() -> None:
    """Chunks of the version before have log-probs that are .5 too low: ratio e^.5, outside the region."""
    trained = learner(lr=0.0, value_lr=0.0, correction="none")
    step(trained, 0)
    trajectories, slab = bandit.rollout(trained.model, 4, 2, version=0, first=20)
    slab["version"][:, 1] = 1
    slab["record.log_prob"][:, 0] -= 0.5
    trained.ingest(trajectories, slab)
    metrics = trained.update().metrics
    assert metrics["lag_0/ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["lag_1/ratio_mean"] == pytest.approx(np.exp(0.5), abs=1e-3)
    assert (metrics["lag_0/clip_fraction"], metrics["lag_1/clip_fraction"]) == (0.0, 1.0)
    assert metrics["lag_1/ess"] == pytest.approx(1.0, abs=1e-3)
    both = (1 + np.exp(0.5)) ** 2 / (2 * (1 + np.exp(1.0)))
    assert metrics["ess"] == pytest.approx(both, abs=1e-3)


@pytest.mark.parametrize("correction", ["none", "decoupled", "vtrace", "truncated_is", "gaussian"])
def test_every_correction_tells_the_same_kinds_of_figures(correction) -> None:
    trained = learner(correction=correction)
    step(trained, 0)
    trajectories, slab = bandit.rollout(trained.model, 8, 2, version=0, first=20)
    trained.ingest(trajectories, slab)
    metrics = trained.update().metrics
    assert {"kl", "clip_fraction", "ratio_mean", "ess", "weight_mean", "weight_max"} <= metrics.keys()
    assert {"lag_1/ratio_mean", "lag_1/clip_fraction", "lag_1/ess"} <= metrics.keys()
    assert 0 < metrics["ess"] <= 1.0 + 1e-9
    assert all(np.isfinite(value) for value in metrics.values())


def test_recomputed_values_are_those_of_the_present_weights() -> None:
    trained = learner(recompute_values=True, gamma=1.0, lr=0.0, value_lr=0.0)
    torch.nn.init.normal_(trained.model.value_head.layers[-1].weight)
    trajectories, slab = bandit.rollout(trained.model, 2, 3)
    expected = slab["record.value"].copy()
    slab["record.value"] = np.full_like(expected, np.nan)
    trained.ingest(trajectories, slab)
    np.testing.assert_allclose(trained._taken[0].value, expected.reshape(-1), atol=1e-6)
    assert np.abs(expected).max() > 0.01
    assert not trained.update().skipped


def test_the_reference_stays_what_the_run_started_from(tmp_path) -> None:
    def made(weights=0):
        return Reinforcement(
            bandit.build(weights),
            PPO(PPOSettings(kl_coefficient=0.1)),
            ReinforcementSettings(minibatch=16, lr=1e-2, value_warm_up=0),
            seed=0,
        )

    trained, start = made(), bandit.build()
    for update in range(3):
        metrics = step(trained, 12 * update).metrics
        trained.save(_new(tmp_path / str(update)))
    assert metrics["reference_kl"] > 0
    for holder in (trained, made(weights=99)):
        if holder is not trained:
            holder.load(tmp_path / "2")
        trajectories, slab = bandit.rollout(holder.model, 2, 2, version=3, first=90)
        holder.ingest(trajectories, slab)
        part = holder._taken[0]
        with torch.no_grad():
            expected = start.evaluate(part.prefix, part.observation, part.record).log_prob.numpy()
        np.testing.assert_allclose(part.reference, expected, rtol=1e-5)
        assert np.abs(part.reference - part.record["log_prob"]).max() > 1e-2


def _new(folder):
    folder.mkdir()
    return folder


def test_offloaded_state_changes_no_bit() -> None:
    results = [learner(offload_optimiser=offload, ema=0.9, minibatch=4) for offload in (False, True)]
    for trained in results:
        for update in range(2):
            step(trained, 12 * update)
        _, slab = bandit.rollout(trained.model, 12, 2, version=2, first=40)
        broken = slab["record.log_prob"].copy()
        broken[7, 1] = np.nan  # other minibatches were stepped before it is met
        assert step(trained, 40, **{"record.log_prob": broken}).skipped
        step(trained, 60)
    assert same(*results)


def test_a_minibatch_in_several_passes_is_the_same_step() -> None:
    results = [learner(forward_batch=size, epochs=2) for size in (0, 5)]
    for trained in results:
        step(trained, 0)
    for name, array in results[0].weights("rollout").items():
        np.testing.assert_allclose(array, results[1].weights("rollout")[name], atol=2e-5)


def test_actions_after_an_end_do_not_count(tmp_path) -> None:
    """At the level of actions: rubbish log-probs behind the end of an episode change no bit."""
    model = bandit.build(settings=bandit.SMALL.model_copy(update={"ratio_level": "action_level"}))
    results = []
    for rubbish in (0.0, np.nan):
        trained = learner(bandit.build(settings=model.settings))
        trajectories, slab = bandit.rollout(trained.model, 6, 2)
        slab["sub_steps"][2, 1] = 1
        slab["record.log_prob"][2, 1, 1] = rubbish
        trained.ingest(trajectories, slab)
        report = trained.update()
        assert not report.skipped
        results.append(trained)
    assert same(*results)


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
