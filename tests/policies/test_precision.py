"""bfloat16 forward passes, and activations that are computed again."""

import bandit
import numpy as np
import pytest
import torch

from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.errors import UserError
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.policies.building import build_model
from rlvla3.policies.recomputing import recompute
from rlvla3.policies.settings import LoraSettings, ModelSettings
from rlvla3.policies.tiny import Tiny, TinySettings

HEADS = [{}, {"method": "noise"}, {"head": "tokens"}, {"store_prefix": True}, {"freeze_prefix": False}]


def built(use="train", head=None, **given):
    policy = Tiny(TinySettings(**{**bandit.SMALL.model_dump(), **(head or {})}), bandit.INTERFACE)
    return build_model(policy, ModelSettings(**given), "cpu", 0, use)


@pytest.mark.parametrize("head", HEADS)
def test_bfloat16_gives_float32_results_and_a_bounded_gap(head) -> None:
    """Ratios of an unchanged policy stay near 1, though batch composition changes its rounding."""
    serving, training = (built(use, head, precision="bfloat16") for use in ("serve", "train"))
    torch.nn.init.normal_(training.value_head.layers[-1].weight)
    serving.load_arrays(training.arrays())
    observation = bandit.observations(16)
    record = serving.act(observation, bandit.keys(16), True)
    for name, array in record.items():
        assert array.dtype.name in ("float32", "int32", "uint8"), name
    found = training.evaluate(training.prefix(observation, record), observation, record)
    assert {t.dtype for t in (found.log_prob, found.entropy, found.value)} == {torch.float32}
    gap = np.abs(np.expm1(found.log_prob.detach().numpy() - record["log_prob"]))
    assert gap.max() < 0.3 and gap.mean() < 0.06
    np.testing.assert_allclose(found.value.detach().numpy(), record["value"], atol=2e-2)
    assert training.values(observation).dtype == np.float32
    assert training.value((), observation).dtype == torch.float32
    assert all(p.dtype == torch.float32 for _, p in training.named_parameters())


def test_the_learner_reports_the_gap_of_bfloat16() -> None:
    """At rate 0 nothing but rounding moves the ratio."""
    still = ReinforcementSettings(lr=0.0, value_lr=0.0, value_warm_up=0, epochs=1)
    gaps = {}
    for precision in ("float32", "bfloat16"):
        model = built(precision=precision)
        learner = Reinforcement(model, PPO(PPOSettings(gamma=0.0)), still, seed=0)
        learner.ingest(*bandit.rollout(model, 4, 1))
        metrics = learner.update().metrics
        gaps[precision] = metrics["logprob_gap"]
        assert metrics["ratio_mean"] == pytest.approx(1.0, abs=0.02)
        assert metrics["clip_fraction"] < 0.05
    assert gaps["float32"] < 1e-4
    assert gaps["bfloat16"] < 0.1


def test_bfloat16_is_used_but_not_by_the_value_head() -> None:
    model, exact = built(precision="bfloat16"), built()
    observation, keys = bandit.observations(8), bandit.keys(8)
    low, high = (m.act(observation, keys, False)["action"] for m in (model, exact))
    assert 1e-5 < np.abs(low - high).max() < 0.1
    seen = []
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda _, inputs, out, name=name: seen.append((name, out.dtype)))
    model.values(observation)
    model.act(observation, keys, False)
    kinds = dict(seen)
    assert {d for n, d in kinds.items() if n.startswith("value_head")} == {torch.float32}
    assert {d for n, d in kinds.items() if not n.startswith("value_head")} == {torch.bfloat16}


def test_adapters_fold_to_the_same_bits_in_bfloat16() -> None:
    lora = LoraSettings(rank=4)
    model = built(precision="bfloat16", lora=lora)
    with torch.no_grad():
        for _, parameter in model.trainable("reinforcement"):
            parameter += 0.05
    plain = built("serve", precision="bfloat16", lora=lora)
    plain.load_arrays(model.arrays())
    observation, keys = bandit.observations(4), bandit.keys(4)
    assert np.array_equal(
        plain.act(observation, keys, True)["chain"], model.act(observation, keys, True)["chain"]
    )


@pytest.mark.parametrize("head", [{}, {"head": "tokens"}])
def test_imitation_in_bfloat16(head) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        model = built("imitate", head, precision=precision)
        actions = np.full((4, bandit.CHUNK, bandit.ACTION), 0.3, np.float32)
        loss = model.imitation_loss(bandit.observations(4), actions, torch.Generator().manual_seed(0))
        torch.autograd.backward(loss)
        assert loss.dtype == torch.float32
        assert all(p.grad is None or p.grad.dtype == torch.float32 for _, p in model.named_parameters())
        losses.append(float(loss.detach()))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def gradients(model, calls: list) -> dict[str, torch.Tensor]:
    observation = bandit.observations(4)
    record = model.act(observation, bandit.keys(4), True)
    calls.clear()
    found = model.evaluate(model.prefix(observation, record), observation, record)
    torch.autograd.backward(found.log_prob.sum() + found.value.sum())
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("head", [{"freeze_prefix": False}, {"method": "noise"}, {"head": "tokens"}])
def test_recomputed_activations_give_the_same_gradients(head, precision) -> None:
    results, runs = [], []
    for on in (False, True):
        model = built("train", head, activation_checkpointing=on, precision=precision)
        calls: list[int] = []
        model.expert_blocks[0].norm.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        results.append(gradients(model, calls))
        runs.append(len(calls))
    assert runs == [1, 2], "a block is computed once more in the backward pass"
    assert results[0].keys() == results[1].keys()
    for name, gradient in results[0].items():
        assert torch.equal(gradient, results[1][name]), name


def test_acting_computes_nothing_twice() -> None:
    model = built("train", activation_checkpointing=True)
    calls: list[int] = []
    model.expert_blocks[0].norm.register_forward_hook(lambda *_: calls.append(1))
    model.act(bandit.observations(2), bandit.keys(2), True)
    assert len(calls) == model.settings.denoise_steps


def test_a_policy_without_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="names no blocks"):
        recompute([])
