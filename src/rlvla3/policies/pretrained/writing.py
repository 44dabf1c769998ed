"""Weights of ours as a folder in a published layout. Importing this module does not import torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.policies.pretrained.layouts import LEROBOT_PREFIX, WEIGHTS, Published, tensor_names

if TYPE_CHECKING:
    from torch import Tensor

Arrays = Mapping[str, npt.NDArray[Any]]
Target = Literal["lerobot", "openpi"]
_STATE_FILE = "policy_preprocessor_step_0_normalizer_processor.safetensors"
_STATISTICS = {"mean_std": ("mean", "std"), "quantile": ("q01", "q99")}
_LEROBOT_MODES = {"mean_std": "MEAN_STD", "quantile": "QUANTILES"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What is written."""

    family: str
    weights: Arrays
    """The network's parameters by their published names."""
    mode: Literal["mean_std", "quantile"]
    statistics: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]
    """Shift and scale of ``state`` (absent: it is not read) and ``action``."""
    cameras: Sequence[str]
    """Roles, in the policy's order."""
    image_size: int
    horizon: int
    executed: int
    state_width: int
    action_width: int
    tied: Mapping[str, str]
    """Network's name → another published name of the same tensor."""
    source: Published | None = None
    """The folder that the policy began with: what of it is not used is carried through."""


def write_published(folder: Path, policy: Exported, layout: Target) -> None:
    """Write a new folder, whole or not at all.

    Raises:
        UserError: it exists, or the disk refused.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already; give a new folder")
    working = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(working, ignore_errors=True)
    try:
        working.mkdir(parents=True)
        prefix = LEROBOT_PREFIX if layout == "lerobot" else ""
        _write_weights(working / WEIGHTS, policy, prefix)
        (_write_lerobot if layout == "lerobot" else _write_openpi)(working, policy)
        working.rename(folder)
    except OSError as error:
        shutil.rmtree(working, ignore_errors=True)
        why = error.strerror or error
        raise UserError(
            f"{folder}: cannot be written ({why}); free space or choose another folder"
        ) from error


def _write_weights(file: Path, policy: Exported, prefix: str) -> None:
    """In the types that the source has, so that what was not trained is written bit by bit as it came."""
    from safetensors.torch import save_file

    tensors = dict(_typed(policy))
    save_file(
        {f"{prefix}{name}": tensor for name, tensor in tensors.items()}, file, metadata={"format": "pt"}
    )


def _typed(policy: Exported) -> Iterator[tuple[str, Tensor]]:
    """The weights, and what the source has besides; of two names for one tensor both get the new one."""
    import torch

    own = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in policy.weights.items()}
    given = {} if policy.source is None else {n.removeprefix(policy.source.prefix): n for n in _names(policy)}
    stands_in = {other: name for name, other in policy.tied.items()}
    for name, tensor in own.items():
        yield name, tensor if name not in given else tensor.to(_read(policy, given[name]).dtype)
    for name, stored in given.items():
        if name not in own:
            kept = _read(policy, stored)
            tied = own.get(stands_in.get(name, ""))
            yield name, kept if tied is None else tied.to(kept.dtype).clone()


def _names(policy: Exported) -> list[str]:
    return [name for file in _files(policy) for name in tensor_names(file)]


def _files(policy: Exported) -> tuple[Path, ...]:
    return () if policy.source is None else policy.source.files


def _read(policy: Exported, name: str) -> Tensor:
    from safetensors import safe_open

    for file in _files(policy):
        with safe_open(file, "pt") as opened:
            if name in opened.keys():  # noqa: SIM118 - no mapping
                found: Tensor = opened.get_tensor(name)
                return found
    raise KeyError(name)


def _ends(policy: Exported, what: str) -> dict[str, list[float]]:
    """Statistics as files name them: mean and std, or the two quantiles."""
    shift, scale = (np.asarray(part, np.float64) for part in policy.statistics[what])
    first, second = (shift, scale) if policy.mode == "mean_std" else (shift - scale, shift + scale)
    return dict(zip(_STATISTICS[policy.mode], (first.tolist(), second.tolist()), strict=True))


def _write_openpi(folder: Path, policy: Exported) -> None:
    config = {"action_dim": policy.action_width, "action_horizon": policy.horizon}
    _write_json(folder / "config.json", _inherited(policy, config))
    names = {"state": "state", "action": "actions"}
    stats = {names[what]: _ends(policy, what) for what in policy.statistics}
    assets = folder / "assets" / "rlvla3"
    assets.mkdir(parents=True)
    _write_json(assets / "norm_stats.json", {"norm_stats": stats})


def _write_lerobot(folder: Path, policy: Exported) -> None:
    from safetensors.numpy import save_file

    keys = {"state": "observation.state", "action": "action"}
    sizes = {what: len(policy.statistics[what][0]) for what in policy.statistics}
    side = policy.image_size
    inputs: dict[str, Any] = {
        f"observation.images.{role}": {"type": "VISUAL", "shape": [3, side, side]} for role in policy.cameras
    }
    if "state" in sizes:
        inputs["observation.state"] = {"type": "STATE", "shape": [sizes["state"]]}
    outputs = {"action": {"type": "ACTION", "shape": [sizes["action"]]}}
    mode = _LEROBOT_MODES[policy.mode]
    norm_map = {"VISUAL": "IDENTITY", "STATE": mode, "ACTION": mode}
    config = {
        "type": policy.family,
        "input_features": inputs,
        "output_features": outputs,
        "chunk_size": policy.horizon,
        "n_action_steps": policy.executed,
        "max_state_dim": policy.state_width,
        "max_action_dim": policy.action_width,
        "image_resolution": [side, side],
        "normalization_mapping": norm_map,
    }
    _write_json(folder / "config.json", _inherited(policy, config))
    step = {
        "registry_name": "normalizer_processor",
        "config": {"eps": 1e-8, "features": inputs | outputs, "norm_map": norm_map},
        "state_file": _STATE_FILE,
    }
    _write_json(folder / "policy_preprocessor.json", {"name": "policy_preprocessor", "steps": [step]})
    state = {
        f"{keys[what]}.{name}": np.asarray(numbers, np.float32)
        for what in policy.statistics
        for name, numbers in _ends(policy, what).items()
    }
    save_file(state, folder / _STATE_FILE)


def _inherited(policy: Exported, config: Mapping[str, Any]) -> dict[str, Any]:
    """The source's configuration with what is known better."""
    before = policy.source.config if policy.source is not None else {}
    return {**before, **config}


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
