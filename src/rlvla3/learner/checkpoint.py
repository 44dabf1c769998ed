"""Checkpoints: complete or absent, checked when read, never executed. No torch, no pickle.

A checkpoint is a folder of safetensors (numbers), JSON and text files with a manifest (``whole_folder``). It
is whole before an older one is removed; so a crash at any moment leaves the last complete one.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.learner import whole_folder
from rlvla3.learner.api import Learner
from rlvla3.learner.whole_folder import MANIFEST as MANIFEST
from rlvla3.learner.whole_folder import read_json
from rlvla3.learner.whole_folder import verify as verify
from rlvla3.policies.folding import fold

DESCRIPTION = "checkpoint.json"
CONFIG = "config.json"
ENGINE = "engine.json"
WEIGHTS = "weights.safetensors"
AVERAGE = "average.safetensors"
RESUMED = "resumed"
"""Entry of a fingerprint that only a resume must match."""
CHECKPOINTS = "checkpoints"
"""Folder of a run folder that holds its checkpoints."""
REJECTED = "rejected"
"""Folder of a run folder that holds the batches of updates that were not finite."""

_SHOWN = 3

Kind = Literal["checkpoint", "weights", "rejected"]
"""``checkpoint`` can be resumed from; ``weights`` (best, warm start, export) can only be used;
``rejected`` is a learner and the batch that its update could not use."""
Weights = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a checkpoint is of."""

    version: int
    """Policy version."""
    score: float | None
    """Evaluation result of these weights, where they were kept for it."""
    fingerprint: Mapping[str, Any]
    """What must be equal where it is used: simulator, policy interface."""
    config: str
    """The resolved configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPolicy:
    """Weights with what they are of."""

    weights: Weights
    """Parameters and buffers by name, for ``PolicyModel.load_arrays``."""
    version: int
    score: float | None
    fingerprint: Mapping[str, Any]
    config: str
    path: Path
    """The checkpoint or export that was read."""


# --- writing ---------------------------------------------------------------------------------


def save_checkpoint(target: Path, learner: Learner, description: Description, engine_state: str) -> None:
    """Write everything needed to resume into the new folder ``target``, atomically.

    Raises:
        UserError: the folder exists, or the disk refused.
    """

    def fill(folder: Path) -> None:
        learner.save(folder)
        (folder / ENGINE).write_text(engine_state, encoding="utf-8")

    _write(target, "checkpoint", description, fill)


def save_weights(target: Path, weights: Weights, description: Description) -> None:
    """Write weights alone (a best version, a warm start, an export) into the new folder ``target``.

    Raises:
        UserError: the folder exists, or the disk refused.
    """
    from safetensors.numpy import save_file

    arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    _write(target, "weights", description, lambda folder: save_file(arrays, folder / WEIGHTS))


def save_rejected(target: Path, learner: Learner, description: Description) -> None:
    """Write a learner with the batch that its last update skipped into the new folder ``target``.

    Raises:
        UserError: the folder exists, or the disk refused.
    """

    def fill(folder: Path) -> None:
        learner.save(folder)
        learner.save_rejected(folder)

    _write(target, "rejected", description, fill)


def export(source: Path, folder: Path, *, averaged: bool = True) -> None:
    """Write the policy that ``load_policy(source)`` gives as a folder of its own.

    Raises:
        UserError: the source cannot be loaded, or ``folder`` exists.
    """
    loaded = load_policy(source, averaged=averaged)
    description = Description(
        version=loaded.version, score=loaded.score, fingerprint=loaded.fingerprint, config=loaded.config
    )
    save_weights(folder, loaded.weights, description)


def _write(target: Path, kind: Kind, description: Description, fill: Callable[[Path], None]) -> None:
    def fill_all(folder: Path) -> None:
        fill(folder)
        described = asdict(description)
        (folder / CONFIG).write_text(described.pop("config"), encoding="utf-8")
        (folder / DESCRIPTION).write_text(json.dumps({"kind": kind, **described}, indent=2))

    whole_folder.write(target, fill_all)


# --- reading ---------------------------------------------------------------------------------


def describe(folder: Path) -> Description:
    """Read what a checkpoint is of, without its numbers.

    Raises:
        UserError: it cannot be read.
    """
    found = read_json(folder / DESCRIPTION)
    try:
        return Description(
            version=int(found["version"]),
            score=found["score"],
            fingerprint=found["fingerprint"],
            config=(folder / CONFIG).read_text(encoding="utf-8"),
        )
    except (KeyError, TypeError, OSError) as error:
        raise UserError(f"{folder}: not a whole checkpoint ({error!r}); use another one") from error


def engine_state(folder: Path) -> str:
    """The engine's part of a checkpoint.

    Raises:
        UserError: the folder holds weights only.
    """
    _must_resume(folder)
    return (folder / ENGINE).read_text(encoding="utf-8")


def restore(folder: Path, learner: Learner) -> None:
    """Check a checkpoint and load it into ``learner``, exactly.

    Raises:
        UserError: it is damaged, of another format, of another model, or holds weights only.
    """
    verify(folder)
    _must_resume(folder)
    learner.load(folder)


def _must_resume(folder: Path) -> None:
    if not (folder / ENGINE).is_file():
        raise UserError(
            f"{folder}: holds weights only and cannot be resumed; start a new run from it (weights: …), "
            "or resume from a checkpoint"
        )


def load_policy(path: Path, *, averaged: bool = True) -> LoadedPolicy:
    """Read the policy in a run folder, a checkpoint or an export, adapters folded in.

    Args:
        path: a run folder gives its best version, or its newest checkpoint if it has none.
        averaged: whether a checkpoint's averaged weights take the place of the newest ones.

    Raises:
        UserError: there is none, or it is damaged.
    """
    folder = find(path)
    verify(folder)
    description = describe(folder)
    weights = _arrays(folder / WEIGHTS)
    if averaged and (folder / AVERAGE).is_file():
        weights |= _arrays(folder / AVERAGE)
    return LoadedPolicy(
        weights=fold(weights),
        version=description.version,
        score=description.score,
        fingerprint=description.fingerprint,
        config=description.config,
        path=folder,
    )


def find(path: Path, *, resume: bool = False) -> Path:
    """The checkpoint that ``path`` means: itself, or one of the run folder that it is.

    Args:
        path: a checkpoint, an export, or a run folder.
        resume: take a run folder's newest checkpoint, never its best weights.

    Raises:
        UserError: there is none.
    """
    if (path / MANIFEST).is_file():
        if read_json(path / DESCRIPTION).get("kind") == "rejected":
            raise UserError(
                f"{path}: holds a batch that an update could not use; give its run folder or a checkpoint, "
                "or look at it with rlvla3 replay"
            )
        return path
    kept = Kept(path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path, keep=1)
    found = kept.newest() if resume else kept.best() or kept.newest()
    if found is None and kept.best():
        raise UserError(
            f"{path}: holds weights only and cannot be resumed; start a new run from it (weights={path})"
        )
    if found is None:
        raise UserError(f"{path}: no checkpoint here; give a run folder, a checkpoint or an exported folder")
    return found


def check_fingerprint(source: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a policy where something that it depends on differs; ``RESUMED`` is left out.

    Raises:
        UserError: the first differing entries, with both values.
    """
    _compare(source, *({k: v for k, v in part.items() if k != RESUMED} for part in (stored, wanted)))


def check_resume(source: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to resume where the run's tasks, or envs that have a quota, differ.

    Raises:
        UserError: the first differing entries, with both values.
    """
    _compare(source, stored.get(RESUMED, {}), wanted.get(RESUMED, {}))


def _compare(source: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = list(_differences(dict(stored), json.loads(json.dumps(dict(wanted))), ""))
    if differing:
        more = ", …" if len(differing) > _SHOWN else ""
        raise UserError(
            f"{source}: made for another set-up: {', '.join(differing[:_SHOWN])}{more}; "
            "use the configuration that it was saved with"
        )


def _differences(stored: Any, wanted: Any, name: str) -> list[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        found = []
        for key in [*stored, *(key for key in wanted if key not in stored)]:
            inner = f"{name}.{key}" if name else str(key)
            found += _differences(stored.get(key, "absent"), wanted.get(key, "absent"), inner)
        return found
    return [] if stored == wanted else [f"{name} is {stored!r} there and {wanted!r} here"]


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found: dict[str, npt.NDArray[Any]] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({error}); use another checkpoint") from error
    return found


# --- a run's checkpoints ---------------------------------------------------------------------


class Kept:
    """The checkpoints of a run: the newest ``keep`` ones and the best weights.

    Names carry a serial number, so that a run resumed from an older checkpoint never meets its
    own earlier names, and the newest is known without clocks.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def newest(self) -> Path | None:
        """The newest checkpoint."""
        found = self._all("checkpoint")
        return found[-1] if found else None

    def best(self) -> Path | None:
        """The best weights."""
        found = self._all("best")
        return found[-1] if found else None

    def verify(self, path: Path) -> None:
        """``verify`` of one of these checkpoints.

        Raises:
            UserError: it is damaged; with the next older one that is whole, and how to use it.
        """
        try:
            verify(path)
        except UserError as error:
            whole = [
                other for other in self._all("checkpoint") if other < path and whole_folder.is_whole(other)
            ]
            if not whole:
                raise
            remedy = f"{whole[-1].name} is whole: rename or remove {path} to go on from it"
            raise UserError(f"{error}; {remedy}") from error

    def save(self, learner: Learner, description: Description, engine_state: str) -> Path:
        """Write a checkpoint, then remove those that are too old."""
        target = self._next("checkpoint", description.version)
        save_checkpoint(target, learner, description, engine_state)
        self._prune("checkpoint", self._keep)
        return target

    def save_best(self, weights: Weights, description: Description) -> Path:
        """Write the best weights, then remove the former ones."""
        target = self._next("best", description.version)
        save_weights(target, weights, description)
        self._prune("best", 1)
        return target

    def _all(self, family: str) -> list[Path]:
        # Also one without a manifest: it was complete when it got its name, so it is damaged.
        named = re.compile(rf"{family}-\d{{6,}}-version-\d+")
        return sorted(path for path in self._folder.glob(f"{family}-*") if named.fullmatch(path.name))

    def _next(self, family: str, version: int) -> Path:
        taken = [int(path.name.split("-")[1]) for path in self._all(family)]
        return self._folder / f"{family}-{max(taken, default=0) + 1:06d}-version-{version}"

    def _prune(self, family: str, keep: int) -> None:
        for old in self._all(family)[:-keep]:
            shutil.rmtree(old)
        for abandoned in self._folder.glob(f"{whole_folder.WRITING}*"):
            shutil.rmtree(abandoned)
