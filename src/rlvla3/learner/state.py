"""A reinforcement learner's state on disk: weights, average, optimiser, reference and counters."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlvla3.algorithms.normalise import Statistics
from rlvla3.errors import UserError
from rlvla3.learner import saving
from rlvla3.learner.parts import Parts
from rlvla3.learner.recomputing import Recomputing

FORMAT = 2
"""Version of the files that ``write`` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What is neither a weight nor of the optimiser."""

    version: int
    skipped: int
    shortened: int
    seed: int
    used_s: float
    """Seconds of training, without the time between resumes."""
    advantages: Statistics | None
    """Of earlier updates."""


def write(folder: Path | None, parts: Parts, recomputing: Recomputing, counters: Counters) -> None:
    """Write all of it; every rank takes part, and the first knows the folder."""
    optimiser = parts.optimiser
    tensors = {
        "weights": parts.model.state_dict(),
        "average": optimiser.shared(optimiser.average),
        "optimiser": optimiser.shared_state(),
    }
    if recomputing.reference_parts:
        tensors["reference"] = optimiser.shared(recomputing.reference_parts)
    for name, content in tensors.items():
        saving.write(folder / f"{name}.safetensors" if folder else None, content, parts.ranks)
    if folder is not None:
        state = {"format": FORMAT, **asdict(counters)}
        (folder / "learner.json").write_text(json.dumps(state, indent=2))


def read(folder: Path, parts: Parts, recomputing: Recomputing) -> Counters:
    """Put tensors in place, on any number of ranks, exactly, and return the counters.

    Raises:
        UserError: a file is damaged, of another format or of another model.
    """
    state = _read_counters(folder / "learner.json")
    optimiser, path = parts.optimiser, folder / "optimiser.safetensors"
    saving.read_into(folder / "weights.safetensors", parts.model.state_dict())
    saving.read_into(folder / "average.safetensors", optimiser.shared(optimiser.average))
    if recomputing.reference_parts:
        _read_reference(folder / "reference.safetensors", parts, recomputing)
    moments = optimiser.room_for_state(list(saving.shapes(path)), str(path))
    saving.read_into(path, moments)
    optimiser.load_state(moments, str(path))
    optimiser.weights_changed()
    advantages = Statistics(**state["advantages"]) if state["advantages"] else None
    names = ("version", "skipped", "shortened", "seed", "used_s")
    return Counters(**{name: state[name] for name in names}, advantages=advantages)


def _read_reference(path: Path, parts: Parts, recomputing: Recomputing) -> None:
    if not path.exists():
        raise UserError(
            f"{path}: is not there: the run was begun without a KL from a reference "
            "(algorithm.options.kl_coefficient); leave it out, or start a new run"
        )
    saving.read_into(path, parts.optimiser.shared(recomputing.reference_parts))


def _read_counters(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); use another checkpoint") from error
    if state.get("format") != FORMAT:
        raise UserError(
            f"{path}: format {state.get('format')!r} is not {FORMAT}; load it with the rlvla3 that wrote it"
        )
    return state
