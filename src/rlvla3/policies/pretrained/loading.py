"""Tensors of published folders into a network whose parameters have the published names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.policies.pretrained.layouts import Published, find_published

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How a family's published names stand to its network's."""

    own: tuple[str, ...]
    """Beginnings of names that no published folder has: heads for reinforcement learning, statistics."""
    unused: tuple[str, ...]
    """Ends of published names that the network does not need; they are carried through at an export."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Network's name → the published one that stands for it where it is missing itself."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of other published names → the network's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a folder had."""

    loaded: int
    """Parameters that were taken over."""
    carried: tuple[str, ...]
    """Names of those that are not used, and are written again at an export."""


def load_published(network: nn.Module, folder: Path, names: Names, device: str) -> Report:
    """Put a folder's tensors into a network; all of them, or none.

    The network may be on the meta device: tensors are assigned, never copied twice, and what no folder has
    must have been made before.

    Args:
        network: its parameters have the published names.
        folder: of the layout ``lerobot`` or ``openpi``, or a ``peft`` one over such.
        names: of the family.
        device: where tensors go.

    Raises:
        UserError: names or shapes differ, each kind with the first few; nothing was changed.
    """
    found = find_published(folder)
    adapter = found if found.layout == "peft" else None
    base = base_of_adapter(found) if adapter else found
    own = {n: p for n, p in network.named_parameters() if not n.startswith(names.own)}
    given, carried = _given(base, own, names)
    _check(base, own, given)
    tensors = {n: t.to(device, own[n].dtype if not own[n].is_meta else t.dtype) for n, t in _read(given)}
    if adapter is not None:
        merge_adapter(tensors, adapter)
    for name, tensor in tensors.items():
        _assign(network, name, tensor)
    return Report(loaded=len(tensors), carried=tuple(carried))


def base_of_adapter(adapter: Published) -> Published:
    """The folder that adapters were trained over.

    Raises:
        UserError: it is not on this machine.
    """
    named = str(adapter.config.get("base_model_name_or_path") or "")
    for place in (Path(named), adapter.folder / named):
        if named and place.is_dir():
            return find_published(place)
    raise UserError(
        f"{adapter.folder}: its adapters are over {named or 'a model that is not named'!r}, which is no "
        "folder here; get that one and put its path into base_model_name_or_path of adapter_config.json"
    )


def _given(found: Published, own: Mapping[str, Tensor], names: Names) -> tuple[dict[str, _Place], list[str]]:
    """Where each of the network's tensors is, and what is left over and allowed."""
    places = {_renamed(name.removeprefix(found.prefix), names): p for name, p in _places(found)}
    carried = [name for name in places if name not in own and name.endswith(names.unused)]
    for name, stands_in in names.tied.items():
        if name not in places and stands_in in places:
            places[name] = places[stands_in]
    return {name: place for name, place in places.items() if name not in carried}, carried


def _renamed(name: str, names: Names) -> str:
    for begin, becomes in names.renamed.items():
        if name.startswith(begin):
            return becomes + name.removeprefix(begin)
    return name


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    name: str
    shape: tuple[int, ...]


def _places(found: Published) -> Iterator[tuple[str, _Place]]:
    from safetensors import safe_open

    for file in found.files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                yield name, _Place(file, name, tuple(opened.get_slice(name).get_shape()))


def _check(found: Published, own: Mapping[str, Tensor], given: Mapping[str, _Place]) -> None:
    kinds = {
        "missing": [name for name in own if name not in given],
        "unexpected": [name for name in given if name not in own],
        "of another shape": [
            f"{name} {list(given[name].shape)} for {list(own[name].shape)}"
            for name in own
            if name in given and given[name].shape != tuple(own[name].shape)
        ],
    }
    problems = [f"{len(n)} {kind} ({_first(n)})" for kind, n in kinds.items() if n]
    if problems:
        family = f" of family {found.family}" if found.family else ""
        raise UserError(
            f"{found.folder}: weights{family} do not fit this policy: {'; '.join(problems)}; choose "
            "policy.kind and policy.options.size as the folder's config.json says"
        )


def _first(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_SHOWN]) + (", …" if len(listed) > _SHOWN else "")


def _read(given: Mapping[str, _Place]) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for file in dict.fromkeys(place.file for place in given.values()):
        with safe_open(file, "pt") as opened:
            for name, place in given.items():
                if place.file == file:
                    yield name, opened.get_tensor(place.name)


def _assign(network: nn.Module, name: str, tensor: Tensor) -> None:
    holder, _, leaf = name.rpartition(".")
    module = network.get_submodule(holder) if holder else network
    old = getattr(module, leaf)
    if old.is_meta:
        setattr(module, leaf, nn.Parameter(tensor, requires_grad=old.requires_grad))
        return
    with torch.no_grad():
        old.copy_(tensor)


def merge_adapter(tensors: dict[str, Tensor], adapter: Published) -> None:
    """Fold low-rank adapters into the weights that they belong to: W + (alpha/r)·up·down, in float32.

    Raises:
        UserError: the adapters are of another kind, or belong to weights that are not there.
    """
    from safetensors import safe_open

    scale = _scale(adapter)
    with safe_open(adapter.files[0], "pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - no mapping
            if ".lora_B." in name:
                continue
            bare = name.removeprefix(adapter.prefix).removeprefix("model.")
            target = bare.replace(".lora_A.", ".").replace(".modules_to_save.", ".")
            if target not in tensors:
                raise UserError(f"{adapter.folder}: its {bare} belongs to no weight of {_base(adapter)}")
            part = opened.get_tensor(name)
            base = tensors[target]
            if ".lora_A." in name:
                up = opened.get_tensor(name.replace(".lora_A.", ".lora_B.")).float()
                part = base.float() + scale * (up @ part.float()).to(base.device)
            tensors[target] = part.to(base.device, base.dtype)


def _scale(adapter: Published) -> float:
    config = adapter.config
    rank, alpha = float(config.get("r", 0)), float(config.get("lora_alpha", 0))
    if config.get("peft_type") != "LORA" or not rank or config.get("use_dora"):
        raise UserError(
            f"{adapter.folder}: only plain LoRA adapters can be loaded; merge these with peft first"
        )
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def _base(adapter: Published) -> str:
    return str(adapter.config.get("base_model_name_or_path"))
