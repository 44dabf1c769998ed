"""Adapters: by hand, what trains, what is refused, and folding."""

from pathlib import Path

import bandit
import numpy as np
import pytest
import torch
from torch import nn

from rlvla3.assembly import Assembly
from rlvla3.config import load_config
from rlvla3.errors import UserError
from rlvla3.learner.checkpoint import check_fingerprint, check_resume
from rlvla3.policies.adapted import Adapted
from rlvla3.policies.building import build_model
from rlvla3.policies.folding import fold
from rlvla3.policies.lora import LowRankLinear, adapt, linear_layers
from rlvla3.policies.settings import LoraSettings, ModelSettings
from rlvla3.policies.tiny import Tiny, TinySettings

POLICY = Tiny(bandit.SMALL, bandit.INTERFACE)


def settings(rank=4, publish="whole", **lora) -> ModelSettings:
    return ModelSettings(lora=LoraSettings(rank=rank, **lora), publish=publish)


def adapted(seed=0, policy=POLICY, use="train", **given) -> Adapted:
    return build_model(policy, settings(**given), "cpu", seed, use)


def moved(model: Adapted, seed=0) -> Adapted:
    """With every trained number changed."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in model.trainable("reinforcement"):
            parameter += 0.1 * torch.randn(parameter.shape, generator=random)
    return model


def test_effective_weight_by_hand() -> None:
    """W = [[1, 2], [3, 4]], down = [1, 2], up = [10, 20], alpha/r = 1/2: W + [[5, 10], [10, 20]]."""
    layer = nn.Linear(2, 2)
    adapt(layer, "layer", rank=1, alpha=0.5, seed=0)
    assert isinstance(layer, LowRankLinear)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.lora_down.copy_(torch.tensor([[1.0, 2.0]]))
        layer.lora_up.copy_(torch.tensor([[10.0], [20.0]]))
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    assert layer.effective().tolist() == [[6.0, 12.0], [13.0, 24.0]]
    assert layer(torch.tensor([[1.0, -1.0]])).tolist() == [[-5.5, -11.5]]
    arrays = {f"a.{name}": tensor.detach().numpy() for name, tensor in layer.state_dict().items()}
    folded = fold(arrays)
    assert sorted(folded) == ["a.bias", "a.weight"]
    assert folded["a.weight"].tolist() == [[6.0, 12.0], [13.0, 24.0]]


def test_a_new_adapter_changes_nothing_and_its_start_is_named_by_seed_and_layer() -> None:
    plain, model = POLICY.build("cpu", 0), adapted()
    observation, keys = bandit.observations(3), bandit.keys(3)
    expected = plain.act(observation, keys, True)
    for name, array in model.act(observation, keys, True).items():
        assert np.array_equal(array, expected[name]), name
    downs = [m.state_dict()["expert_blocks.0.up.lora_down"] for m in (model, adapted(), adapted(1))]
    assert torch.equal(downs[0], downs[1])
    assert not torch.equal(downs[0], downs[2])
    assert not torch.equal(downs[0], model.state_dict()["expert_blocks.1.up.lora_down"])
    assert float(downs[0].std()) == pytest.approx(32**-0.5, rel=0.2)


def test_adapters_and_value_head_train_and_nothing_else() -> None:
    model = adapted(train=("expert_norm", "action_out_proj.bias"))
    names = {name for name, _ in model.trainable("reinforcement")}
    whole = {n for n in names if not n.endswith(("lora_up", "lora_down")) and not n.startswith("value_head.")}
    assert whole == {"expert_norm.weight", "action_out_proj.bias"}
    layers = {n.removesuffix(".lora_up") for n in names if n.endswith("lora_up")}
    inner = {f"expert_blocks.{i}.{n}" for i in (0, 1) for n in ("qkv", "out", "up", "down")}
    outer = {"state_proj", "action_in_proj", "action_time_mlp_in", "action_time_mlp_out", "action_out_proj"}
    assert layers == inner | outer
    assert {name for name, _ in model.trainable("value")} <= names
    base = {name for name, _ in POLICY.build("cpu", 0).trainable("imitation")}
    assert {name for name, _ in model.trainable("imitation")} == base


def test_targets_choose_layers_and_frozen_ones_stay_out() -> None:
    names = dict(adapted(targets=("qkv",)).trainable("reinforcement"))
    ups = sorted(name for name in names if name.endswith("lora_up"))
    assert ups == ["expert_blocks.0.qkv.lora_up", "expert_blocks.1.qkv.lora_up"]
    assert names["expert_blocks.0.qkv.lora_down"].shape == (4, 32)


def test_small_layers_get_adapters_of_their_size() -> None:
    names = dict(adapted().trainable("reinforcement"))
    assert names["action_out_proj.lora_up"].shape == (2, 2)
    assert names["expert_blocks.0.up.lora_up"].shape == (128, 4)


def test_gradients_reach_the_adapters_alone() -> None:
    model = moved(adapted())
    model.requires_grad_(False)
    names = dict(model.trainable("reinforcement"))
    for parameter in names.values():
        parameter.requires_grad_(True)
    observation = bandit.observations(3)
    record = model.act(observation, bandit.keys(3), True)
    found = model.evaluate(model.prefix(observation, record), observation, record)
    torch.autograd.backward(found.log_prob.sum() + found.value.sum())
    assert {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()} == set(names)


@pytest.mark.parametrize("use", ["evaluate", "serve"])
def test_the_whole_policy_is_a_plain_one_that_acts_with_the_same_bits(use) -> None:
    model = moved(adapted())
    plain = build_model(POLICY, settings(), "cpu", 7, use)
    assert not isinstance(plain, Adapted)
    plain.load_arrays(model.arrays())
    observation, keys = bandit.observations(5), bandit.keys(5)
    expected = model.act(observation, keys, True)
    for name, array in plain.act(observation, keys, True).items():
        assert np.array_equal(array, expected[name]), name


def test_folding_arrays_is_the_models_own_folding_up_to_rounding() -> None:
    model = moved(adapted())
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    folded, own = fold(state), model.arrays()
    assert folded.keys() == own.keys()
    for name, array in folded.items():
        np.testing.assert_allclose(array, own[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("publish", ["whole", "trained"])
def test_plain_weights_leave_the_adapters_without_effect(publish) -> None:
    model, plain = moved(adapted(publish=publish)), POLICY.build("cpu", 5)
    model.load_arrays(plain.arrays())
    whole = fold({**model.base(), **model.arrays()})
    for name, array in plain.arrays().items():
        assert np.array_equal(whole[name], array), name


def test_it_takes_over_all_of_its_own_tensors() -> None:
    model, other = moved(adapted(publish="trained")), adapted(3, publish="trained")
    other.load_arrays({name: tensor.numpy() for name, tensor in model.state_dict().items()})
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_a_part_of_the_published_weights_is_refused() -> None:
    model = adapted(publish="trained")
    weights = model.arrays()
    weights.pop("expert_blocks.0.up.lora_up")
    with pytest.raises(UserError, match="weights of another model"):
        model.load_arrays(weights)


def test_without_adapters_what_the_policy_freezes_is_not_published() -> None:
    model = adapted(rank=0, publish="trained")
    published = set(model.arrays())
    assert published == {name for name, _ in POLICY.build("cpu", 0).trainable("reinforcement")}
    assert published | set(model.base()) == set(POLICY.build("cpu", 0).arrays())
    other = adapted(rank=0, publish="trained", use="serve")
    other.load_arrays(moved(model).arrays())
    assert all(np.array_equal(array, other.arrays()[name]) for name, array in model.arrays().items())


class Sleeper:
    """A policy whose model is no network."""

    def build(self, device, seed):
        return object()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": ("qvk",)}, r"targets: 'qvk' matches no linear layer; layers to choose from: state_proj"),
        ({"targets": ("prefix_blocks",)}, "'prefix_blocks' matches only layers that do not train"),
        ({"targets": ("value_head",)}, "'value_head' matches only layers that do not train, or that train w"),
        ({"targets": ("action_out",), "rank": 3}, "policy.lora.rank = 3 exceeds the smaller side of every"),
        ({"train": ("stem",)}, "policy.lora.train: 'stem' matches no parameter that may train"),
        ({"train": ("weight",)}, "no linear layer is left"),
    ],
)
def test_settings_that_do_not_fit_are_one_clear_line(given, message) -> None:
    with pytest.raises(UserError, match=message):
        adapted(**given)


def test_publishing_a_part_needs_a_part_that_is_frozen() -> None:
    free = Tiny(TinySettings(**{**bandit.SMALL.model_dump(), "freeze_prefix": False}), bandit.INTERFACE)
    with pytest.raises(UserError, match=r"policy\.publish = trained: every weight of this policy trains"):
        adapted(policy=free, rank=0, publish="trained")
    assert adapted(policy=free, publish="trained").base()


def test_only_networks_can_be_adapted() -> None:
    with pytest.raises(UserError, match=r"policy\.lora: needs a policy whose model is a torch\.nn\.Module"):
        adapted(policy=Sleeper())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": ("a",)}, "rank 0 adds no adapters: targets has no effect"),
        ({"alpha": 3.0, "train": ("a",)}, "rank 0 adds no adapters: alpha, train has no effect"),
        ({"rank": 1, "targets": ("(",)}, "is no regular expression"),
    ],
)
def test_settings_without_effect_are_refused(given, message) -> None:
    with pytest.raises(ValueError, match=message):
        LoraSettings(**given)


def test_supervised_learning_has_no_adapters() -> None:
    model = build_model(POLICY, settings(publish="trained"), "cpu", 0, "imitate")
    assert not any("lora" in name for name, _ in model.named_parameters())


def test_a_resume_needs_the_same_adapters_and_a_start_from_weights_does_not() -> None:
    prints = [
        Assembly(load_config("reach", list(overrides))).fingerprint()
        for overrides in ((), ("policy.lora.rank=2",), ("policy.lora.rank=2", "policy.lora.alpha=8"))
    ]
    for other in prints[1:]:
        check_fingerprint(Path("there"), prints[0], other)
        with pytest.raises(UserError, match="lora"):
            check_resume(Path("there"), prints[0], other)
    with pytest.raises(UserError, match=r"lora\.alpha is 16\.0 there and 8\.0 here"):
        check_resume(Path("there"), prints[1], prints[2])


def test_emulated_policies_have_nothing_to_adapt() -> None:
    with pytest.raises(UserError, match="kind emulated has no network: lora, precision has no effect"):
        load_config("reach", ["policy.kind=emulated", "policy.options={}", "policy.lora.rank=1",
                              "policy.precision=bfloat16"])  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stem": "linear", "freeze_prefix": False},
        {"method": "noise", "unfreeze_last_blocks": 1},
        {"head": "tokens", "layers": 3},
        {"layers": 1},
    ],
)
def test_layers_that_are_named_without_torch_are_those_of_the_model(options) -> None:
    policy = Tiny(bandit.SMALL.model_copy(update=options), bandit.INTERFACE)
    model = policy.build("cpu", 0)
    value = {name for name, _ in model.trainable("value")}
    trains = {name for name, _ in model.trainable("reinforcement")} - value
    found = {name: f"{name}.weight" in trains for name in linear_layers(model)}
    assert list(policy.linear_layers().items()) == list(found.items())


@pytest.mark.parametrize(
    ("lora", "refusal"),
    [
        (("targets=[qvk]",), "policy.lora.targets: 'qvk' matches no linear layer; layers to choose from: st"),
        (
            ("targets=[prefix_blocks]",),
            "policy.lora.targets: 'prefix_blocks' matches only lay",
        ),
        (
            ("targets=[expert.*qkv]", "train=[expert_blocks]"),
            "policy.lora.targets: 'expert.*qkv' matches on",
        ),
        (("targets=[expert.*qkv]", "train=[expert_norm]"), ""),
        ((), ""),
    ],
)
def test_targets_are_refused_before_a_model_is_built(lora, refusal) -> None:
    overrides = ["policy.lora.rank=4", *(f"policy.lora.{setting}" for setting in lora)]
    made = Assembly(load_config("reach", overrides))
    if not refusal:
        assert made.settings
        return
    with pytest.raises(UserError) as error:
        assert made.settings
    assert str(error.value).startswith(refusal)
    # Nothing but training has adapters.
    assert Assembly(made.config, training=False).settings
