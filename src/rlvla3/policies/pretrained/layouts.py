"""What a folder of published weights is, found out without reading a tensor. No torch.

- ``lerobot``: ``config.json`` with ``type``, ``model.safetensors`` (or several files with an index) whose
  names begin with ``model.``, and the statistics beside it as the state of processor steps.
- ``openpi``: the same names without ``model.``, a ``config.json`` without ``type``, and statistics in
  ``assets/NAME/norm_stats.json``.
- ``peft``: ``adapter_config.json`` and ``adapter_model.safetensors``, over one of the former.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlvla3.errors import UserError

Name = Literal["lerobot", "openpi", "peft"]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
LEROBOT_PREFIX = "model."


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One folder."""

    folder: Path
    layout: Name
    family: str
    """``pi0``, ``pi05``, … where the folder says it; else empty."""
    config: Mapping[str, Any]
    """Its ``config.json``, or ``adapter_config.json``."""
    files: tuple[Path, ...]
    """Its files of tensors."""
    prefix: str
    """What its tensors' names begin with, before the names of the network."""


def find_published(folder: Path) -> Published:
    """What lies in a folder.

    Raises:
        UserError: nothing that is known, with what was looked for.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give one with {WEIGHTS} and config.json")
    if (folder / ADAPTER_CONFIG).is_file():
        return _adapter(folder)
    files = _files(folder)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    family = str(config.get("type", ""))
    names = tensor_names(files[0])
    prefixed = any(name.startswith(f"{LEROBOT_PREFIX}paligemma_with_expert.") for name in names)
    return Published(
        folder=folder,
        layout="lerobot" if family or prefixed else "openpi",
        family=family or _guessed(names),
        config=config,
        files=files,
        prefix=LEROBOT_PREFIX if prefixed else "",
    )


def _adapter(folder: Path) -> Published:
    config = read_json(folder / ADAPTER_CONFIG)
    file = folder / ADAPTER
    if not file.is_file():
        raise UserError(f"{folder}: has {ADAPTER_CONFIG} but no {ADAPTER}; get the whole folder again")
    return Published(
        folder=folder, layout="peft", family="", config=config, files=(file,), prefix="base_model.model."
    )


def _files(folder: Path) -> tuple[Path, ...]:
    if (folder / INDEX).is_file():
        listed = read_json(folder / INDEX).get("weight_map", {})
        files = tuple(folder / name for name in sorted(set(listed.values())))
    else:
        files = (folder / WEIGHTS,)
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise UserError(
            f"{folder}: there is no {', '.join(missing) or WEIGHTS}; give a folder of published weights "
            f"({WEIGHTS}, config.json), or get it again"
        )
    return files


def _guessed(names: Sequence[str]) -> str:
    """The family that parameter names tell."""
    if not any("paligemma_with_expert." in name for name in names):
        return ""
    return "pi0" if any(name.endswith("state_proj.weight") for name in names) else "pi05"


def tensor_names(file: Path) -> list[str]:
    """Names of the tensors in a file.

    Raises:
        UserError: it is no whole safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: is no whole safetensors file ({error}); get it again") from error


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UserError: there is none.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as JSON ({error}); get the folder again") from error
    if not isinstance(found, dict):
        raise UserError(f"{file}: must be a JSON object; get the folder again")
    return found
