"""A run's folder: its layout, its lock and the record of what ran."""

import contextlib
import errno
import fcntl
import json
import math
import os
import platform
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from rlvla3.errors import UserError

PACKAGES = (
    "rlvla3",
    "torch",
    "numpy",
    "msgspec",
    "pydantic",
    "safetensors",
    "av",
    "tensorboard",
    "mujoco",
    "metaworld",
    "gymnasium",
    "ray",
)
"""Packages whose versions are recorded."""


CONFIG = "config.yaml"
"""What every run folder has: the resolved configuration."""
_LOCK = ".lock"


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader or a crash sees the old text or the new one, never a part.

    A link stays one, and what is no file (a terminal, ``/dev/null``) is written to.

    Raises:
        UserError: the folder cannot be written or the disk is full.
    """
    try:
        path = path.resolve() if path.is_symlink() else path
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {_why(error)}; choose another folder") from error


def check_writable(path: Path) -> None:
    """Make sure that figures can be written to ``path``, without touching it.

    Raises:
        UserError: it is a folder or a file of something else, or its folder cannot be made or written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_file() and not _holds_figures(path):
            raise UserError(f"{path}: holds something else than figures; choose another file or remove it")
        if path.exists() and not path.is_file():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {_why(error)}; choose another file") from error


def _holds_figures(path: Path) -> bool:
    """Whether a file is empty or what ``--json`` writes."""
    try:
        text = path.read_text(encoding="utf-8")
        return not text.strip() or set(json.loads(text)) == {"rows", "versions"}
    except (ValueError, TypeError):
        return False


def _why(error: OSError) -> str:
    """What the system says, where that is not misleading: a file where a folder should be "exists"."""
    if isinstance(error, FileExistsError):
        return f"{error.filename} is a file or a broken link"
    return str(error.strerror)


def make_folder(path: Path) -> None:
    """Make a folder, unless it is there.

    Raises:
        UserError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be made: {_why(error)}; choose another folder") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically; a number that is not finite becomes null.

    Raises:
        UserError: the folder cannot be written or the disk is full.
    """
    write_text(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def package_versions() -> dict[str, str]:
    """Versions of the recorded packages that are installed, without importing them."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def versions() -> dict[str, Any]:
    """What produced a result: python, platform, CPUs, git commit of the source, packages."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "commit": _commit(),
        "packages": package_versions(),
    }


def _commit() -> str:
    """The source's git commit, marked ``+changes`` if edited; empty outside a checkout."""
    folder = Path(__file__).parent
    command = [
        "git",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty=+changes",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        # Only where the checkout is this package's own: a virtual environment may lie in another's.
        tracked = subprocess.run(
            ["git", "-C", str(folder), "ls-files", "--error-unmatch", Path(__file__).name],
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 and tracked.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock."""

    pid: int
    host: str


class RunFolder:
    """The folder of one run, locked while this object is open. Use as a context manager.

    The lock is the kernel's (``flock``): it goes with its process, however that ends. Child
    processes started without ``close_fds`` would keep it, so the descriptor is not inheritable.
    """

    def __init__(self, path: Path, lock: int, made: bool) -> None:
        """``made``: the folder was not there before; it goes again if nothing is put into it."""
        self.path = path
        self._lock = lock
        self._made = made

    @classmethod
    def create(cls, path: str | Path) -> "RunFolder":
        """Make a folder for a new run and lock it.

        Raises:
            UserError: it already holds a run, is in use, or cannot be written.
        """
        folder = Path(path)
        run = cls._locked(folder)
        if run.used:
            run.close()
            if any(run.checkpoints.glob("best-*")) and not any(run.checkpoints.glob("checkpoint-*")):
                raise UserError(
                    f"{folder}: already holds weights, which a new run can begin from (weights={folder}); "
                    "choose another folder"
                )
            raise UserError(
                f"{folder}: already holds a run; add --resume to go on with it or choose another folder"
            )
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Lock an existing run's folder, to resume it.

        Raises:
            UserError: it holds no run, is in use, or cannot be written.
        """
        folder = Path(path)
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder}: holds no run (no config.yaml); start one without --resume")
        return cls._locked(folder)

    @classmethod
    def claim(cls, path: str | Path) -> "RunFolder":
        """Make a folder if it is not there and lock it, whatever it holds.

        Raises:
            UserError: it is in use, or cannot be written.
        """
        return cls._locked(Path(path))

    @classmethod
    def _locked(cls, folder: Path) -> "RunFolder":
        lock, made = folder / _LOCK, not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be written: {_why(error)}; choose another run folder"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise UserError(
                f"{folder}: in use by process {holder.pid} on {holder.host};"
                " stop it or choose another run folder"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise UserError(
                f"{folder}: its file system has no locks ({error.strerror}); choose another run folder"
            ) from error
        if not _same_file(descriptor, lock):  # whoever held it has just removed it
            os.close(descriptor)
            return cls._locked(folder)
        run = cls(folder, descriptor, made)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except OSError as error:
            run.close()
            raise UserError(
                f"{folder}: cannot be written: {_why(error)}; make room or choose another run folder"
            ) from error
        return run

    def close(self) -> None:
        """Give the lock back; a second call does nothing. A start that was refused leaves no folder."""
        if self._lock < 0:
            return
        if self._made and {entry.name for entry in self.path.glob("*")} <= {_LOCK}:
            with contextlib.suppress(OSError):
                (self.path / _LOCK).unlink()
                self.path.rmdir()
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def used(self) -> bool:
        """Whether a run has begun here: a configuration, checkpoints or figures are present. A start that was
        killed before it wrote its configuration leaves no figures either."""
        figures = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return self.config.exists() or figures or any(self.checkpoints.glob("*"))

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / CONFIG

    @property
    def versions(self) -> Path:
        """Versions of everything that ran."""
        return self.path / "versions.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def trace(self) -> Path:
        """The timeline, where one is recorded."""
        return self.path / "trace.json"

    @property
    def summary(self) -> Path:
        """The run's result."""
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        """Folder of recorded episodes."""
        return self.path / "videos"

    def describe(self, config: str) -> None:
        """Record the resolved configuration (YAML text) and all versions.

        Raises:
            UserError: they cannot be written.
        """
        write_json(self.versions, versions())
        write_text(self.config, config)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the run's result.

        Raises:
            UserError: it cannot be written.
        """
        write_json(self.summary, summary)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _holder(descriptor: int) -> Holder:
    try:
        value = json.loads(os.pread(descriptor, 4096, 0))
        return Holder(pid=int(value["pid"]), host=str(value["host"]))
    except (ValueError, KeyError, TypeError):
        return Holder(pid=0, host="another host")
