"""The tiny policy: records, log-probs, prefix cache, processors."""

import bandit
import numpy as np
import pytest
import torch

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.policies.api import PolicyInterface
from rlvla3.policies.tiny import Tiny, TinySettings
from rlvla3.policies.tiny_blocks import grid_positions


def changed(**changes) -> TinySettings:
    return TinySettings(**{**bandit.SMALL.model_dump(), **changes})


@pytest.fixture(scope="module")
def model():
    return bandit.build()


HEADS = [
    {"method": "sde"},
    {"method": "sde", "window": 3},
    {"method": "cps"},
    {"method": "cps", "window": 4},
    {"method": "noise"},
    {"method": "noise", "denoise_reduce": "mean", "include_prior": False},
    {"head": "tokens", "normalisation": "quantile"},
    {"head": "tokens", "temperature": 0.7},
]
"""Every way to choose actions."""


@pytest.mark.parametrize("head", HEADS)
def test_records_follow_the_spec(head) -> None:
    model = bandit.build(settings=changed(**head))
    spec = Tiny(model.settings, bandit.INTERFACE).record_spec
    record = model.act(bandit.observations(5), bandit.keys(5), True)
    assert list(record) == [field.name for field in spec]
    for field in spec:
        assert record[field.name].shape == (5, *field.shape)
        assert record[field.name].dtype == np.dtype(field.dtype)


@pytest.mark.parametrize("level", ["chunk_level", "action_level", "token_level"])
@pytest.mark.parametrize("head", HEADS)
def test_trainer_and_generator_agree_on_log_probs(level, head) -> None:
    model = bandit.build(settings=changed(ratio_level=level, **head))
    observation, keys = bandit.observations(32), bandit.keys(32)
    spec = {f.name: f.shape for f in Tiny(model.settings, bandit.INTERFACE).record_spec}
    for size in (1, 7, 32):
        part = bandit.take(observation, slice(0, size))
        record = model.act(part, keys[:size], True)
        assert record["log_prob"].shape == (size, *spec["log_prob"])
        for chosen in (slice(0, 1), slice(0, size)):
            inputs = bandit.take(part, chosen)
            again = model.evaluate(model.prefix(inputs, {}), inputs, bandit.take(record, chosen))
            gap = again.log_prob.detach().numpy() - record["log_prob"][chosen]
            assert np.abs(np.expm1(gap)).max() < 1e-3
            np.testing.assert_allclose(again.value.detach().numpy(), record["value"][chosen], atol=1e-5)
            assert again.entropy.shape == again.value.shape
            learned = model.settings.method == "noise" or model.settings.head == "tokens"
            assert bool(again.entropy.any()) is learned


@pytest.mark.parametrize("head", HEADS)
def test_a_record_does_not_depend_on_its_batch(head) -> None:
    model = bandit.build(settings=changed(**head))
    observation, keys = bandit.observations(9), bandit.keys(9)
    order = np.array([4, 0, 8, 2])
    whole = model.act(observation, keys, True)
    part = model.act(bandit.take(observation, order), tuple(keys[i] for i in order), True)
    for name in {"step_index", "tokens"} & set(whole):
        assert np.array_equal(whole[name][order], part[name])
    for name in {"action", "chain", "value"} & set(whole):
        np.testing.assert_allclose(whole[name][order], part[name], atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_evaluation_is_deterministic_and_exploration_is_not(head) -> None:
    model = bandit.build(settings=changed(**head))
    observation, keys = bandit.observations(4), bandit.keys(4)
    calm = [model.act(observation, keys, False)["action"] for _ in range(2)]
    assert np.array_equal(calm[0], calm[1])
    assert not np.allclose(calm[0], model.act(observation, keys, True)["action"])


def test_every_method_starts_a_chunk_equally_and_evaluates_alike() -> None:
    """Without exploring, all methods integrate the same ODE; exploring, they begin with the same x_0."""
    observation, keys = bandit.observations(3), bandit.keys(3)
    models = [bandit.build(settings=changed(window=4)), bandit.build(settings=changed(method="noise"))]
    calm = [model.act(observation, keys, False) for model in models]
    assert np.array_equal(calm[0]["action"], calm[1]["action"])
    wild = [model.act(observation, keys, True) for model in models]
    for record in (*calm, *wild):
        assert np.array_equal(record["chain"][:, 0], calm[0]["chain"][:, 0])
    assert not np.allclose(wild[0]["action"], wild[1]["action"])


def test_gradients_reach_the_noise_net_and_move_its_deviations() -> None:
    model = bandit.build(settings=changed(method="noise"))
    names = dict(model.trainable("reinforcement"))
    observation = bandit.observations(3)
    record = model.act(observation, bandit.keys(3), True)
    prefix = model.prefix(observation, record)
    before = model.evaluate(prefix, observation, record)
    torch.autograd.backward(before.entropy.sum())
    net = {name: p for name, p in names.items() if name.startswith("noise_net.")}
    assert len(net) == 6
    assert all(p.grad is not None and p.grad.any() for p in net.values())
    with torch.no_grad():
        for parameter in net.values():
            parameter += 0.1 * parameter.grad
    assert (model.evaluate(prefix, observation, record).entropy > before.entropy).all()


def test_weights_without_a_noise_net_leave_the_own_one() -> None:
    """A warm start that was made with another method serves ``noise``, and the other way round."""
    plain, noisy = bandit.build(1), bandit.build(2, settings=changed(method="noise"))
    before = noisy.arrays()
    noisy.load_arrays(plain.arrays())
    for name, array in noisy.arrays().items():
        source = before if name.startswith("noise_net.") else plain.arrays()
        assert np.array_equal(array, source[name]), name
    plain.load_arrays(before)
    assert np.array_equal(plain.arrays()["action_out_proj.weight"], before["action_out_proj.weight"])


def test_tokens_are_what_the_actions_say() -> None:
    model = bandit.build(settings=changed(head="tokens"))
    record = model.act(bandit.observations(4), bandit.keys(4), True)
    expected = 3.0 * (record["tokens"].astype(np.float32) * 2 / 255 - 1)
    np.testing.assert_allclose(record["action"], expected, atol=1e-5)
    assert len(np.unique(record["tokens"])) > 8


def test_token_imitation_loss_is_the_cross_entropy_of_even_logits() -> None:
    model = bandit.build(settings=changed(head="tokens"))
    torch.nn.init.zeros_(model.token_out.weight)
    torch.nn.init.zeros_(model.token_out.bias)
    actions = np.zeros((2, bandit.CHUNK, bandit.ACTION), np.float32)
    loss = model.imitation_loss(bandit.observations(2), actions, torch.Generator())
    assert float(loss.detach()) == pytest.approx(np.log(256), abs=1e-5)


def test_values_are_the_recorded_ones() -> None:
    model = bandit.build()
    torch.nn.init.normal_(model.value_head.layers[-1].weight)
    observation = bandit.observations(3)
    record = model.act(observation, bandit.keys(3), False)
    np.testing.assert_allclose(model.values(observation), record["value"], atol=1e-6)
    later = {**observation, "elapsed": observation["elapsed"] + 0.5}
    assert not np.allclose(model.values(later), record["value"])


@pytest.mark.parametrize(
    ("changes", "tensors"),
    [({}, 5), ({"store_prefix": True}, 5), ({"unfreeze_last_blocks": 1}, 3), ({"freeze_prefix": False}, 0)],
)
def test_the_cached_prefix_changes_nothing(changes, tensors) -> None:
    model = bandit.build(settings=changed(**changes))
    observation = bandit.observations(6)
    record = model.act(observation, bandit.keys(6), True)
    prefix = model.prefix(observation, record)
    assert len(prefix) == tensors
    assert all(len(tensor) == 6 and not tensor.requires_grad for tensor in prefix)
    cached = model.evaluate(prefix, observation, record)
    np.testing.assert_allclose(cached.log_prob.detach().numpy(), record["log_prob"], atol=1e-3)


def test_a_stored_prefix_is_the_computed_one() -> None:
    model = bandit.build(settings=changed(store_prefix=True))
    observation = bandit.observations(6)
    record = model.act(observation, bandit.keys(6), True)
    for stored, computed in zip(
        model.prefix(observation, record), model.prefix(observation, {}), strict=True
    ):
        assert stored.shape == computed.shape
        np.testing.assert_array_equal(stored.numpy(), computed.numpy())


def test_a_prefix_that_trains_cannot_be_stored() -> None:
    with pytest.raises(UserError, match="store_prefix keeps what never changes"):
        bandit.build(settings=changed(store_prefix=True, unfreeze_last_blocks=1))


def test_actions_are_scaled() -> None:
    observation = bandit.observations(3)
    plain = bandit.build(settings=changed()).act(observation, bandit.keys(3), False)
    scaled = bandit.build(settings=changed(action_scale=1.5)).act(observation, bandit.keys(3), False)
    np.testing.assert_allclose(scaled["action"], 1.5 * plain["action"], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "trained", "still"),
    [
        ({}, "expert_blocks.0.qkv.weight", "prefix_blocks.1.kv.weight"),
        ({"unfreeze_last_blocks": 1}, "prefix_blocks.1.kv.weight", "prefix_blocks.0.qkv.weight"),
        ({"freeze_prefix": False}, "stem.layers.0.weight", ""),
    ],
)
def test_what_trains_gets_a_gradient_and_nothing_else(changes, trained, still) -> None:
    model = bandit.build(settings=changed(**changes))
    names = dict(model.trainable("reinforcement"))
    assert trained in names
    assert still not in names
    model.requires_grad_(False)
    for parameter in names.values():
        parameter.requires_grad_(True)
    observation = bandit.observations(3)
    record = model.act(observation, bandit.keys(3), True)
    found = model.evaluate(model.prefix(observation, record), observation, record)
    torch.autograd.backward(found.log_prob.sum() + found.value.sum())
    unused = {"value_head.layers.0.weight", "value_head.layers.0.bias", "value_head.layers.2.weight"}
    unused |= {"value_head.layers.2.bias"}
    with_gradient = {n for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert with_gradient >= set(names) - unused
    assert with_gradient <= set(names)


def test_stages_partition_the_parameters(model) -> None:
    everything = {name for name, _ in model.named_parameters()}
    imitation = {name for name, _ in model.trainable("imitation")}
    value = {name for name, _ in model.trainable("value")}
    assert imitation | value == everything
    assert not imitation & value
    with pytest.raises(ValueError, match="imitation, reinforcement, value"):
        model.trainable("nonsense")


def test_several_cameras_several_states_and_none() -> None:
    fields = (
        FieldSpec(name="left", shape=(16, 32, 3), dtype="uint8"),
        FieldSpec(name="wrist", shape=(16, 16, 3), dtype="uint8"),
        FieldSpec(name="arm", shape=(3,), dtype="float32"),
        FieldSpec(name="hand", shape=(), dtype="float32"),
    )
    task = np.zeros(2, np.int64)
    arrays = {f.name: np.zeros((2, *f.shape), f.dtype) for f in fields}
    arrays |= {"task": task, "elapsed": np.zeros(2, np.float32)}
    for chosen in (fields, fields[:1], fields[2:]):
        interface = PolicyInterface(observation=chosen, instructions=("go",), action_dim=3, chunk=2)
        network = bandit.build(settings=changed(stem="linear"), interface=interface)
        record = network.act(arrays, bandit.keys(2), True)
        assert record["action"].shape == (2, 2, 3)
        assert np.isfinite(record["log_prob"]).all()


def test_the_instruction_reaches_the_action(model) -> None:
    observation = bandit.take(bandit.observations(1), [0, 0])
    observation["task"] = np.array([0, 1])
    same = (bandit.keys(1)[0],) * 2
    action = model.act(observation, same, False)["action"]
    assert not np.allclose(action[0], action[1])


def test_weights_do_not_depend_on_the_task_table() -> None:
    other = PolicyInterface(
        observation=bandit.INTERFACE.observation,
        instructions=("open the quux", "a third task", "press the button"),
        action_dim=bandit.ACTION,
        chunk=bandit.CHUNK,
    )
    model, swapped = bandit.build(), bandit.build(1, interface=other)
    swapped.load_arrays(model.arrays())
    observation = bandit.observations(3)
    renumbered = {**observation, "task": np.array([2, 0])[observation["task"]]}
    expected = model.act(observation, bandit.keys(3), True)["action"]
    np.testing.assert_allclose(swapped.act(renumbered, bandit.keys(3), True)["action"], expected, atol=1e-6)


def test_equal_seeds_build_equal_networks_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = bandit.build(3), bandit.build(3), bandit.build(4)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.state_proj.weight, again.state_proj.weight)
    assert not torch.equal(first.state_proj.weight, other.state_proj.weight)


def test_loading_another_models_weights_copies_nothing(model) -> None:
    weights = model.arrays()
    before = weights["word_position"].copy()
    wrong = {name: array + 1 for name, array in weights.items() if name != "state_proj.bias"}
    wrong["state_proj.weight"] = np.zeros((1, 1), np.float32)
    wrong["extra"] = np.zeros(1, np.float32)
    with pytest.raises(
        UserError, match=r"1 missing \(state_proj.bias\); 1 unexpected \(extra\); 1 of another"
    ):
        model.load_arrays(wrong)
    assert np.array_equal(model.arrays()["word_position"], before)


def test_statistics_of_another_mode_are_refused(model) -> None:
    with pytest.raises(UserError, match="quantile_shift"):
        bandit.build(settings=changed(normalisation="quantile")).load_arrays(model.arrays())


@pytest.mark.parametrize(("size", "millions"), [("1.4M", 1.4), ("3.5M", 3.5)])
def test_presets_have_the_size_they_are_named_by(size, millions) -> None:
    interface = PolicyInterface(
        observation=(
            FieldSpec(name="image", shape=(64, 64, 3), dtype="uint8"),
            FieldSpec(name="state", shape=(4,), dtype="float32"),
        ),
        instructions=("press the button",),
        action_dim=4,
        chunk=5,
    )
    network = bandit.build(settings=TinySettings(size=size), interface=interface)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count / 1e6 == pytest.approx(millions, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "interface", "message"),
    [
        ({"heads": 3}, {}, "policy.options.heads = 3 must divide policy.options.width = 32"),
        ({"unfreeze_last_blocks": 3}, {}, "at most 2"),
        ({"method": "cps", "noise_level": 1.5}, {}, "noise_level = 1.5 must be at most 1 for method cps"),
        ({"method": "cps", "denoise_steps": 1}, {}, "denoise_steps = 1: the last step of method cps"),
        ({"method": "noise", "window": 2}, {}, "window = 2: method noise makes every denoise step"),
        ({"window": 5}, {}, "window = 5 exceeds denoise_steps = 4"),
        ({"noise_std": (0.2, 0.1)}, {}, r"noise_std = \[0.2, 0.1\] must be a range"),
        ({"patch": 16}, {"shape": (24, 16, 3)}, "policy.options.patch = 16 must divide the 24×16 pixels"),
        ({}, {"dtype": "int32"}, "int32"),
    ],
)
def test_bad_settings_are_one_clear_line(changes, interface, message) -> None:
    field = FieldSpec(**{"name": "camera", "shape": (16, 16, 3), "dtype": "uint8", **interface})
    with pytest.raises(UserError, match=message):
        Tiny(
            changed(**changes), PolicyInterface(observation=(field,), instructions=(), action_dim=1, chunk=1)
        )


def test_action_statistics_scale_actions() -> None:
    model = bandit.build()
    observation, keys = bandit.observations(2), bandit.keys(2)
    before = model.act(observation, keys, False)["action"]
    model.action_normaliser.shift.fill_(3.0)
    model.action_normaliser.scale.fill_(2.0)
    np.testing.assert_allclose(model.act(observation, keys, False)["action"], before * 2 + 3, atol=1e-5)


def test_imitation_loss_separates_flow_samples() -> None:
    """With a velocity that ignores its input the loss is that of independent samples."""
    model = bandit.build(settings=changed(flow_samples=3))
    observation = bandit.observations(2)
    caches, _ = model._encode(observation)
    state = model._state(observation)
    torch.manual_seed(0)
    x, time = torch.randn(2, 3, bandit.CHUNK, bandit.ACTION), torch.rand(2, 3)
    together = model.velocity(x, time, state, caches)
    for m in range(3):
        alone = model.velocity(x[:, m : m + 1], time[:, m : m + 1], state, caches)
        torch.testing.assert_close(together[:, m : m + 1], alone, atol=1e-5, rtol=1e-4)


def test_every_patch_starts_with_a_position_of_its_own() -> None:
    grid = grid_positions(3, 5, 32)
    assert grid.shape == (15, 32)
    distances = torch.cdist(grid, grid) + 9 * torch.eye(15)
    assert float(distances.min()) > 0.3
