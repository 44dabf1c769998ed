"""Folders of published weights: lerobot's (written by lerobot itself), openpi's, adapters; refusals."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixture_weights import weight
from pi_worlds import FAMILIES as PI
from pi_worlds import INTERFACE, build, observations
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as torch_load
from safetensors.torch import save_file as torch_save
from test_pi import taught
from test_pi_reference import FAMILIES, FIXTURES, SIZES, Given

from rlvla3.errors import UserError
from rlvla3.policies.pi.family import check_family
from rlvla3.policies.pi.naming import NAMES
from rlvla3.policies.pretrained.layouts import find_published
from rlvla3.policies.pretrained.loading import load_published
from rlvla3.policies.pretrained.statistics import published_statistics
from rlvla3.policies.pretrained.writing import write_published

MODES = {"pi0": "mean_std", "pi05": "quantile"}
families = pytest.mark.parametrize("family", FAMILIES)
LAYER = "paligemma_with_expert.gemma_expert.model.layers.0.self_attn.q_proj.weight"


def empty(family, device="meta"):
    """A network whose body has no numbers yet."""
    network_class, settings_class = FAMILIES[family]
    interface = SimpleNamespace(chunk=4, action_dim=5, instructions=("",))
    with torch.device(device):
        made = network_class(settings_class(denoise_steps=4), SIZES, interface, Given({}))
    made.add_own()
    return made


def openpi(family, folder):
    """The same weights and statistics as openpi's conversion writes them."""
    (folder / "assets" / "mine").mkdir(parents=True)
    tensors = load_file(FIXTURES / family / "model.safetensors")
    save_file({n.removeprefix("model."): t for n, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"action_dim": 5, "action_horizon": 4}))
    found = published_statistics(find_published(FIXTURES / family), MODES[family])
    names = ("mean", "std") if family == "pi0" else ("q01", "q99")
    stats = {
        key: dict(zip(names, (list(found[what].first), list(found[what].second)), strict=True))
        for what, key in (("state", "state"), ("action", "actions"))
    }
    (folder / "assets" / "mine" / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    return folder


def body(network):
    return {n: p for n, p in network.named_parameters() if not n.startswith("value_head")}


@families
def test_a_folder_of_lerobot(family):
    found = find_published(FIXTURES / family)
    assert (found.layout, found.family, found.prefix) == ("lerobot", family, "model.")
    network = empty(family)
    report = load_published(network, FIXTURES / family, NAMES, "cpu")
    assert report.loaded == len(body(network)) and not report.carried
    for name, parameter in body(network).items():
        np.testing.assert_array_equal(parameter.detach().numpy(), weight(name, tuple(parameter.shape)))
    assert not any(p.is_meta for p in network.parameters())


@families
def test_a_folder_of_openpi(family, tmp_path):
    folder = openpi(family, tmp_path)
    found = find_published(folder)
    assert (found.layout, found.family, found.prefix) == ("openpi", family, "")
    one, other = empty(family), empty(family)
    load_published(one, FIXTURES / family, NAMES, "cpu")
    load_published(other, folder, NAMES, "cpu")
    for name, parameter in body(one).items():
        assert torch.equal(parameter, body(other)[name])


@families
def test_statistics_travel_with_either_layout(family, tmp_path):
    mode = MODES[family]
    ours = published_statistics(find_published(FIXTURES / family), mode)
    theirs = published_statistics(find_published(openpi(family, tmp_path)), mode)
    network = empty(family)
    network.use_statistics(ours)
    for what in ("state", "action"):
        assert ours[what].first == theirs[what].first and ours[what].second == theirs[what].second
        first, second = (torch.tensor(numbers) for numbers in (ours[what].first, ours[what].second))
        normaliser = getattr(network, f"{what}_normaliser")
        ends = torch.stack((first, second if mode == "quantile" else first + second))
        wanted = torch.tensor([-1.0, 1.0] if mode == "quantile" else [0.0, 1.0])[:, None].expand_as(ends)
        torch.testing.assert_close(normaliser.normalise(ends), wanted, atol=1e-5, rtol=0)


def test_what_is_not_used_is_carried_and_what_is_tied_stands_in(tmp_path):
    tensors = load_file(FIXTURES / "pi0" / "model.safetensors")
    table = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    tensors["model.paligemma_with_expert.paligemma.lm_head.weight"] = tensors.pop(table)
    tensors["model.paligemma_with_expert.gemma_expert.lm_head.weight"] = np.zeros((3, 2), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    network = empty("pi0")
    report = load_published(network, tmp_path, NAMES, "cpu")
    assert report.carried == (
        "paligemma_with_expert.gemma_expert.lm_head.weight",
        "paligemma_with_expert.paligemma.lm_head.weight",
    )
    name = table.removeprefix("model.")
    np.testing.assert_array_equal(body(network)[name].detach().numpy(), weight(name, (64, 48)))


def test_adapters_are_folded_in(tmp_path):
    outputs, inputs = weight(LAYER, (64, 32)).shape
    up, down = np.full((outputs, 2), 0.5, np.float32), np.full((2, inputs), 0.25, np.float32)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "base_model_name_or_path": str(FIXTURES / "pi0")}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    bare = f"base_model.model.model.{LAYER.removesuffix('.weight')}"
    saved = {
        f"{bare}.lora_A.weight": down,
        f"{bare}.lora_B.weight": up,
        "base_model.model.model.state_proj.modules_to_save.bias": np.full(32, 7.0, np.float32),
    }
    save_file(saved, tmp_path / "adapter_model.safetensors")
    network = empty("pi0")
    load_published(network, tmp_path, NAMES, "cpu")
    wanted = weight(LAYER, (64, 32)) + 4.0 * (up @ down)
    np.testing.assert_allclose(body(network)[LAYER].detach().numpy(), wanted, rtol=1e-6)
    assert (network.state_proj.bias == 7.0).all()


def refused(tmp_path, change, family="pi0"):
    """The line with which a changed copy of a folder is refused; nothing was loaded."""
    folder = tmp_path / "copy"
    shutil.copytree(FIXTURES / family, folder)
    change(folder)
    network = empty(family, "cpu")
    before = {n: p.clone() for n, p in body(network).items()}
    with pytest.raises(UserError) as error:
        load_published(network, folder, NAMES, "cpu")
        published_statistics(find_published(folder), MODES[family])
    if "statistics" not in str(error.value) and "preprocessor" not in str(error.value):
        assert all(torch.equal(p, before[n]) for n, p in body(network).items())
    assert "\n" not in str(error.value)
    return str(error.value)


def edited(change):
    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (edited(lambda t: t.pop("model.state_proj.bias")), "1 missing (state_proj.bias)"),
        (edited(lambda t: t.update({"model.extra": np.zeros(1)})), "1 unexpected (extra)"),
        (
            edited(lambda t: t.update({"model.state_proj.bias": np.zeros(3, np.float32)})),
            "1 of another shape (state_proj.bias [3] for [32])",
        ),
        (cut, "is no whole safetensors file"),
        (lambda f: (f / "model.safetensors").unlink(), "there is no model.safetensors; give a folder of"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: cannot be read as JSON"),
        (lambda f: (f / "policy_preprocessor.json").unlink(), "has no policy_preprocessor.json with the"),
    ],
)
def test_a_damaged_folder_is_one_line(change, line, tmp_path):
    assert line in refused(tmp_path, change)


def test_weights_of_another_family_say_so(tmp_path):
    with pytest.raises(UserError, match=r"policy.kind = pi0: .* has weights of pi05; set policy.kind=pi05"):
        check_family(find_published(FIXTURES / "pi05"), "pi0")
    with pytest.raises(UserError, match=r"normalisation = mean_std: .* was trained with quantile"):
        published_statistics(find_published(FIXTURES / "pi05"), "mean_std")
    with pytest.raises(UserError, match="no such folder"):
        find_published(tmp_path / "nowhere")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "lerobot/pi0"}')
    save_file({"a": np.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError, match="its adapters are over 'lerobot/pi0', which is no folder here"):
        load_published(empty("pi0"), tmp_path, NAMES, "cpu")


def test_statistics_of_another_simulator_are_refused():
    network, found = empty("pi0"), published_statistics(find_published(FIXTURES / "pi0"), "mean_std")
    network.state_normaliser = type(network.state_normaliser)(5, "mean_std")
    with pytest.raises(
        UserError, match="statistics of the state have 6 dimensions, this simulator's state has 5"
    ):
        network.use_statistics(found)


@families
@pytest.mark.parametrize("layout", ["lerobot", "openpi"])
def test_an_export_is_read_back_bit_by_bit(family, layout, tmp_path):
    first = taught(build(family))
    actions = np.random.default_rng(3).normal(size=(8, 5, 7)).astype(np.float32)
    first.fit_processors_to(observations(8), actions)
    policy = PI[family](PI[family].Settings(size="tiny"), INTERFACE)
    folder = tmp_path / "out"
    write_published(folder, policy.exported(first.arrays()), layout)
    found = find_published(folder)
    assert (found.layout, found.family) == (layout, family)
    settings = PI[family].Settings(size="tiny", pretrained=str(folder))
    second = PI[family](settings, INTERFACE).build("cpu", 5)
    own, read = first.arrays(), second.arrays()
    assert own.keys() == read.keys()
    for name in own:
        if name.startswith(("state_normaliser", "action_normaliser")):
            np.testing.assert_allclose(read[name], own[name], rtol=1e-5, atol=1e-6)
        elif not name.startswith("value_head"):
            np.testing.assert_array_equal(read[name], own[name], err_msg=name)
    with pytest.raises(UserError, match="exists already; give a new folder"):
        write_published(folder, policy.exported(first.arrays()), layout)


def test_an_export_carries_types_and_what_it_does_not_use(tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    network = build("pi0")
    embedding = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
    output = "paligemma_with_expert.paligemma.lm_head.weight"
    unused = "paligemma_with_expert.gemma_expert.lm_head.weight"
    tensors = {f"model.{n}": p.detach().bfloat16() for n, p in body(network).items()}
    tensors[f"model.{output}"] = tensors[f"model.{embedding}"].clone()
    tensors[f"model.{unused}"] = torch.arange(6.0).bfloat16().view(3, 2)
    torch_save(tensors, start / "model.safetensors")
    policy = PI["pi0"](PI["pi0"].Settings(size="tiny"), INTERFACE)
    stats = policy.exported(network.arrays())
    write_published(tmp_path / "with", stats, "lerobot")
    for file in (tmp_path / "with").glob("*.json"):
        shutil.copy(file, start)
    shutil.copy(next((tmp_path / "with").glob("policy_*.safetensors")), start)
    policy = PI["pi0"](PI["pi0"].Settings(size="tiny", pretrained=str(start)), INTERFACE)
    arrays = policy.build("cpu", 0).arrays()
    arrays[embedding] = arrays[embedding] + 1.0
    write_published(tmp_path / "out", policy.exported(arrays), "lerobot")
    written = torch_load(tmp_path / "out" / "model.safetensors")
    assert written.keys() == tensors.keys()
    for name, tensor in written.items():
        assert tensor.dtype == torch.bfloat16
        changed = embedding in name or output in name
        assert torch.equal(tensor, tensors[name]) != changed, name
    assert torch.equal(written[f"model.{output}"], written[f"model.{embedding}"])
