"""Folders of files that are complete or absent, and checked when they are read.

A folder has a manifest of every file's size and SHA-256. It is written beside its place, synced to disk,
renamed into place and read back; so a crash at any moment leaves a whole folder or none.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlvla3.errors import UserError

FORMAT = 1
"""Version of the folders' layout."""

MANIFEST = "manifest.json"
WRITING = ".writing-"
"""How the names of folders begin that are being written, or that a crash left."""


def write(target: Path, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write files into a folder, which becomes ``target``, atomically.

    Raises:
        UserError: the folder exists, or the disk refused.
    """
    from safetensors import SafetensorError

    if target.exists():
        raise UserError(f"{target}: exists already; give a new folder, checkpoints are never written over")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        working = Path(tempfile.mkdtemp(dir=target.parent, prefix=WRITING))
        try:
            fill(working)
            files = {file.name: _digest(file) for file in sorted(working.iterdir())}
            (working / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=2))
            for file in working.iterdir():
                _sync(file)
            _sync(working)
            working.chmod(0o755)
            working.rename(target)
        except BaseException:
            shutil.rmtree(working, ignore_errors=True)
            raise
        _sync(target.parent)
    except (OSError, SafetensorError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(
            f"{target}: cannot be written ({why}); free space or choose another folder"
        ) from error
    verify(target)


def _digest(file: Path) -> dict[str, str | int]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(folder: Path) -> None:
    """Check every file of a folder against its manifest.

    Raises:
        UserError: a file is missing, truncated or changed (it is named), or another format.
    """
    manifest = read_json(folder / MANIFEST)
    if manifest.get("format") != FORMAT:
        raise UserError(
            f"{folder / MANIFEST}: format {manifest.get('format')!r} is not {FORMAT}; "
            "load it with the rlvla3 that wrote it"
        )
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(entry, dict) and entry.keys() >= {"bytes", "sha256"} for entry in files.values()
    ):
        raise UserError(f"{folder / MANIFEST}: lists no files; the checkpoint is damaged, use another one")
    for name, expected in files.items():
        file = folder / name
        if not file.is_file():
            raise UserError(f"{file}: file is missing from the checkpoint; use another one")
        if file.stat().st_size != expected["bytes"]:
            raise UserError(
                f"{file}: has {file.stat().st_size} bytes, the manifest says {expected['bytes']}; "
                "the checkpoint is damaged, use another one"
            )
        if _digest(file) != expected:
            raise UserError(
                f"{file}: content differs from its checksum; the checkpoint is damaged, use another"
            )


def is_whole(folder: Path) -> bool:
    """Whether every file is as its manifest says."""
    try:
        verify(folder)
    except UserError:
        return False
    return True


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: the file cannot be read, or holds something else.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); use another checkpoint") from error
    if not isinstance(found, dict):
        raise UserError(f"{path}: must hold a JSON object; the checkpoint is damaged, use another one")
    return found
