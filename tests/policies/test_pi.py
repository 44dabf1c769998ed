"""π0 and π0.5: rollout and update agree, what trains, what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from pi_worlds import FAMILIES, INTERFACE, build, keys, observations

from rlvla3.errors import UserError
from rlvla3.policies.building import build_model
from rlvla3.policies.pi import prompts
from rlvla3.policies.settings import LoraSettings, ModelSettings
from rlvla3.policies.wrapping import network

pytestmark = pytest.mark.long  # networks of two million parameters
METHODS = (
    {"method": "sde"},
    {"method": "sde", "window": 3},
    {"method": "cps"},
    {"method": "noise"},
)
families = pytest.mark.parametrize("family", FAMILIES)


def taught(model):
    """The model with heads and adaptive norms that are not zero, so that all of it matters."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            if not p.any():
                p.copy_(0.05 * torch.randn(p.shape, generator=generator))
    return model


@families
@pytest.mark.parametrize("method", METHODS, ids=lambda m: "-".join(map(str, m.values())))
@pytest.mark.parametrize("batch", [1, 8])
def test_the_update_finds_the_rollouts_log_probs_and_values(family, method, batch):
    model = taught(build(family, **method))
    given = observations(batch)
    record = model.act(given, keys(batch), True)
    for kept in (model.prefix(given, record), ()):
        found = model.evaluate(kept, given, record)
        ratio = (found.log_prob.detach().numpy() - record["log_prob"]).clip(-5, 5)
        assert np.abs(np.exp(ratio) - 1).max() < 1e-3
        np.testing.assert_allclose(found.value.detach().numpy(), record["value"], atol=1e-4)
    np.testing.assert_allclose(model.values(given), record["value"], atol=1e-4)


@families
def test_a_sample_does_not_depend_on_its_batch(family):
    model = taught(build(family))
    together = model.act(observations(4), keys(4), True)
    one = {name: array[2:3] for name, array in observations(4).items()}
    alone = model.act(one, keys(4)[2:3], True)
    for name in ("action", "log_prob", "value"):
        np.testing.assert_allclose(alone[name][0], together[name][2], atol=1e-4, err_msg=name)


@families
def test_records_are_as_described(family):
    policy = FAMILIES[family](FAMILIES[family].Settings(size="tiny"), INTERFACE)
    record = policy.build("cpu", 0).act(observations(3), keys(3), True)
    assert set(record) == {field.name for field in policy.record_spec}
    for field in policy.record_spec:
        assert record[field.name].shape == (3, *field.shape), field.name
        assert str(record[field.name].dtype) == field.dtype, field.name


@families
@pytest.mark.parametrize("train", ["expert", "language", "all"])
def test_gradients_reach_what_trains_and_nothing_else(family, train):
    model = taught(build(family, train=train, detach_value=False))
    given = observations(4)
    record = model.act(given, keys(4), True)
    for _, parameter in model.named_parameters():
        parameter.requires_grad_(False)
    for _, parameter in model.trainable("reinforcement"):
        parameter.requires_grad_(True)
    found = model.evaluate(model.prefix(given, record), given, record)
    (found.log_prob.sum() + found.value.sum()).backward()
    reached = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    parts = {
        "vision": "paligemma_with_expert.paligemma.model.vision_tower.",
        "language": "paligemma_with_expert.paligemma.model.language_model.layers.0.self_attn.v_proj",
        "expert": "paligemma_with_expert.gemma_expert.model.layers.0.",
        "value": "value_head.",
    }
    wanted = {"expert": {"expert", "value"}, "language": {"expert", "value", "language"}, "all": {*parts}}
    assert {p for p, start in parts.items() if any(n.startswith(start) for n in reached)} == wanted[train]


@families
def test_imitation_learns_a_chunk(family):
    model = build(family)
    given = observations(8)
    actions = np.tanh(np.random.default_rng(1).normal(size=(8, 5, 7))).astype(np.float32)
    model.fit_processors_to(given, actions)
    trained = [p for _, p in model.trainable("imitation")]
    optimiser = torch.optim.AdamW(trained, lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(80):
        loss = model.imitation_loss(given, actions, generator)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])


@families
def test_weights_travel(family):
    first, second = taught(build(family, 1)), build(family, 2)
    second.load_arrays(first.arrays())
    given = observations(2)
    for name, array in first.act(given, keys(2), False).items():
        np.testing.assert_array_equal(second.act(given, keys(2), False)[name], array)


@families
def test_the_tiny_preset_is_small(family):
    assert sum(p.numel() for p in build(family).parameters()) < 5e6


def test_the_state_of_pi05_is_told_in_steps():
    state = np.array([-1.5, -1.0, 0.0, 0.9999, 1.0, 3.0], np.float32)
    text = prompts.with_state("pick up\nthe_mug ", state)
    assert text == "Task: pick up the mug, State: -1 0 128 255 255 255;\nAction: "
    assert prompts.plain("open_the drawer ") == "open the drawer\n"


def test_the_state_moves_pi05_through_its_prompt_only():
    told, silent = taught(build("pi05")), build("pi05", discrete_state_input=False)
    silent.load_arrays(told.arrays())
    given, moved = observations(2), observations(2)
    moved["proprioception"] = given["proprioception"] + 0.5
    for model, changes in ((told, True), (silent, False)):
        before, after = (model.act(o, keys(2), False)["action"] for o in (given, moved))
        assert bool(np.abs(before - after).max() > 1e-6) == changes


@families
def test_a_camera_that_is_not_there_is_not_attended(family):
    model = build(family, cameras=("front", "top"), concessions={"cameras": {"top": "blank"}})
    with torch.inference_mode():
        there = model.context(observations(2)).there
    patches = (64 // 8) ** 2
    assert there[:, :patches].all() and not there[:, patches : 2 * patches].any()


@families
def test_what_does_not_fit_is_one_line(family):
    policy = FAMILIES[family]
    with pytest.raises(UserError, match="looks through a camera 'top', which the simulator has not"):
        policy(policy.Settings(size="tiny", cameras=("top",)), INTERFACE)
    with pytest.raises(UserError, match="this simulator does not say what its fields mean"):
        policy(policy.Settings(size="tiny"), dataclasses.replace(INTERFACE, meaning=None))
    with pytest.raises(UserError, match=r"simulator.chunk = 5: the policy says 3 actions at once"):
        policy(policy.Settings(size="tiny", horizon=3), INTERFACE)
    model = build(family, prompt_length=4)
    with pytest.raises(UserError, match=r"policy.options.prompt_length = 4: a prompt has \d+ tokens"):
        model.act(observations(2), keys(2), True)


@families
def test_a_longer_horizon_is_denoised_and_not_executed(family):
    model = build(family, horizon=8)
    record = model.act(observations(2), keys(2), True)
    assert record["chain"].shape == (2, 2, 8, 8) and record["action"].shape == (2, 5, 7)
    actions = np.zeros((2, 5, 7), np.float32)
    target, known = model.from_env(actions, observations(2))
    assert target.shape == (2, 8, 8)
    assert known[:5, :7].all() and not known[5:].any() and not known[:, 7:].any()


@families
@pytest.mark.parametrize("settings", [{}, {"method": "noise"}, {"train": "all"}])
def test_shapes_and_counts_are_known_without_the_network(family, settings):
    policy = FAMILIES[family](FAMILIES[family].Settings(size="tiny", **settings), INTERFACE)
    model = policy.build("cpu", 0)
    assert policy._shapes() == {name: tuple(p.shape) for name, p in model.named_parameters()}
    whole, trained = policy.weight_counts(0, ())
    assert whole == sum(p.numel() for p in model.parameters())
    assert trained == sum(p.numel() for _, p in model.trainable("reinforcement"))
    layers = {name for name, module in model.named_modules() if type(module) is torch.nn.Linear}
    assert set(policy.linear_layers()) == layers


@families
def test_adapters_are_counted_and_train(family):
    policy = FAMILIES[family](FAMILIES[family].Settings(size="tiny"), INTERFACE)
    lora = LoraSettings(rank=4, targets=("q_proj", "v_proj"))
    model = build_model(policy, ModelSettings(lora=lora), "cpu", 0, "train")
    whole, trained = policy.weight_counts(4, lora.targets)
    assert trained == sum(p.numel() for _, p in model.trainable("reinforcement"))
    assert whole - trained == sum(p.numel() for p in policy.build("cpu", 0).parameters()) - sum(
        p.numel() for n, p in policy.build("cpu", 0).named_parameters() if n.startswith("value_head")
    )


@families
@pytest.mark.parametrize("rank", [0, 4])
def test_frozen_weights_in_bfloat16_change_nothing_for_weights_that_came_in_it(family, rank):
    lora = LoraSettings(rank=rank)
    policy = FAMILIES[family](FAMILIES[family].Settings(size="tiny"), INTERFACE)
    start = {n: a if "norm" in n else torch.from_numpy(a).bfloat16().float().numpy()
             for n, a in taught(policy.build("cpu", 0)).arrays().items()}  # fmt: skip
    models = []
    for held in ("float32", "bfloat16"):
        settings = ModelSettings(lora=lora, precision="bfloat16", frozen_weights=held)
        model = build_model(policy, settings, "cpu", 0, "train")
        model.load_arrays(start)
        models.append(model)
    whole, half = models
    held = {
        p.dtype for n, p in network(half).named_parameters() if "vision_tower" in n and "proj.weight" in n
    }
    assert held == {torch.bfloat16}
    assert {p.dtype for _, p in half.trainable("reinforcement")} == {torch.float32}
    given = observations(8)
    record = whole.act(given, keys(8), True)
    for name, array in half.act(given, keys(8), True).items():
        np.testing.assert_array_equal(array, record[name], err_msg=name)
    found = half.evaluate(half.prefix(given, record), given, record)
    gap = np.abs(np.exp(found.log_prob.detach().numpy() - record["log_prob"]) - 1)
    assert gap.max() < 0.1
    found.log_prob.sum().backward()
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in network(half).parameters())


def test_half_the_weights_need_half_the_arithmetic():
    with pytest.raises(ValueError, match="frozen_weights bfloat16 needs precision bfloat16, it is float32"):
        ModelSettings(frozen_weights="bfloat16")
