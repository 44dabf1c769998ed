"""Normalisation statistics that lie beside published weights. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlvla3.errors import UserError
from rlvla3.policies.pretrained.layouts import Published, read_json
from rlvla3.transforms.statistics import Mode, Statistics, choose, read_statistics

_MODES: Mapping[str, Mode] = {"MEAN_STD": "mean_std", "QUANTILES": "quantile", "MIN_MAX": "min_max"}
_LEROBOT = {"state": "observation.state", "action": "action"}
_OPENPI = {"state": "state", "action": "actions"}
EPSILON = {"lerobot": 1e-8, "openpi": 1e-6}
"""Added to a deviation or range by either code base."""


def published_statistics(found: Published, mode: Mode, asset: str = "") -> dict[str, Statistics]:
    """Statistics of ``state`` and ``action``.

    Args:
        found: the folder.
        mode: how the weights were trained; a lerobot folder says it itself, and must agree.
        asset: which of several data sets (openpi); empty: the only one.

    Raises:
        UserError: there are none, several, or of another mode.
    """
    if found.layout == "openpi":
        return _of_openpi(found, mode, asset)
    return _of_lerobot(found, mode)


def _of_openpi(found: Published, mode: Mode, asset: str) -> dict[str, Statistics]:
    files = {file.parent.name: file for file in sorted(found.folder.glob("assets/**/norm_stats.json"))}
    if not files:
        raise UserError(
            f"{found.folder}: has no assets/NAME/norm_stats.json; copy it from the checkpoint's folder"
        )
    if not asset and len(files) > 1:
        raise UserError(
            f"{found.folder}: has statistics of several data sets ({', '.join(files)}); choose one with "
            "policy.options.statistics"
        )
    name = asset or next(iter(files))
    file = choose(files, name, f"{found.folder}/assets")
    content = read_json(Path(str(file))).get("norm_stats", {})
    return {
        what: read_statistics(choose(content, key, str(file)), mode, f"{file}: {key}", EPSILON["openpi"])
        for what, key in _OPENPI.items()
    }


def _of_lerobot(found: Published, mode: Mode) -> dict[str, Statistics]:
    step = _normaliser_step(found.folder)
    tensors = _tensors(found.folder / str(step["state_file"]))
    declared = step["config"].get("norm_map", {})
    for what, kind in (("state", "STATE"), ("action", "ACTION")):
        named = _MODES.get(str(declared.get(kind, "")))
        if named is not None and named != mode:
            raise UserError(
                f"policy.options.normalisation = {mode}: {found.folder} was trained with {named} for the "
                f"{what}; set policy.options.normalisation={named}"
            )
    epsilon = float(step["config"].get("eps", EPSILON["lerobot"]))
    return {
        what: read_statistics(_below(tensors, key), mode, f"{found.folder}: {key}", epsilon)
        for what, key in _LEROBOT.items()
    }


def _normaliser_step(folder: Path) -> dict[str, Any]:
    file = folder / "policy_preprocessor.json"
    if not file.is_file():
        raise UserError(
            f"{folder}: has no policy_preprocessor.json with the statistics; they were not saved with these "
            "weights: give a fine-tuned folder, or fit statistics with rlvla3 sft"
        )
    for step in read_json(file).get("steps", ()):
        if step.get("registry_name") == "normalizer_processor" and step.get("state_file"):
            found: dict[str, Any] = step
            return found
    raise UserError(f"{file}: has no normalizer_processor with a state_file; get the folder again")


def _tensors(file: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found: Mapping[str, Any] = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: is no whole safetensors file ({error}); get it again") from error
    return found


def _below(tensors: Mapping[str, Any], key: str) -> dict[str, Any]:
    begin = f"{key}."
    return {
        name.removeprefix(begin): np.asarray(array, np.float64).ravel().tolist()
        for name, array in tensors.items()
        if name.startswith(begin)
    }
