"""``python -m rlvla3.conformance.child ORDER``: one job in a process of its own; prints what it found."""

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlvla3.conformance.faults import fault_of
from rlvla3.conformance.subject import FOUND, ConformanceError, Subject, fingerprint, picture, use
from rlvla3.messages import Start
from rlvla3.plugins import USERS_FAULTS

_MB = 1024**2
_LOOK_S, _LOOKS, _ALIKE = 0.05, 100, 5
"""Seconds between two looks at what a process holds, how many at most, and how many must be alike."""


def _episode(subject: Subject, order: dict[str, Any]) -> dict[str, Any]:
    start = Start(task=order["task"], split="train", state=order["state"])
    return {"fingerprint": fingerprint(subject.make(), start, subject.actions())}


def _torch(subject: Subject, order: dict[str, Any]) -> dict[str, Any]:
    _ = subject.spec
    spec = "torch" in sys.modules
    use(subject.make(), subject, 0)
    torch = sys.modules.get("torch")
    return {"spec": spec, "threads": torch.get_num_threads() if torch is not None and not spec else 0}


def _lives(subject: Subject, order: dict[str, Any]) -> dict[str, Any]:
    """Two lives load whatever is loaded once."""
    for _ in range(2):
        _live(subject)
    before, start_mb = _settled(), _resident_mb()
    for _ in range(order["lives"]):
        _live(subject)
    after, end_mb = _settled(), _resident_mb()
    # What is closed and opened again has another name, so only more than before is too much.
    left = {
        what: sorted(after[what] - held) if len(after[what]) > len(held) else []
        for what, held in before.items()
    }
    return {**left, "mb": (end_mb - start_mb) / order["lives"]}


def _live(subject: Subject) -> None:
    """One env's life, in a thread of its own as in a Simulator: what a thread keeps for its envs counts."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_build_use_close, subject).result()
    gc.collect()


def _build_use_close(subject: Subject) -> None:
    env = subject.simulator.make()
    use(env, subject, 0)
    picture(env)
    env.close()


def _resets(subject: Subject, order: dict[str, Any]) -> dict[str, Any]:
    """Growth with a reset, measured after the first third: caches fill up before."""
    env, count = subject.make(), order["resets"]
    warm, states = max(count // 3, 3), order["states"] or sys.maxsize
    for state in range(warm):
        use(env, subject, state % states)
    gc.collect()
    start_mb = _resident_mb()
    for state in range(warm, warm + count):
        use(env, subject, state % states)
    gc.collect()
    return {"mb": (_resident_mb() - start_mb) / count}


def _settled() -> dict[str, set[str]]:
    """What is held once it stays: the system sees a thread's end a moment after Python does."""
    seen = [_held()]
    while len(seen) < _LOOKS and not (
        len(seen) > _ALIKE and all(held == seen[-1] for held in seen[-_ALIKE:])
    ):
        time.sleep(_LOOK_S)
        seen.append(_held())
    return seen[-1]


def _held() -> dict[str, set[str]]:
    """Descriptors (with what they are open on), threads and children of this process."""
    descriptors, processes = set(), set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists the folder
            descriptors.add(f"{path.name} {path.readlink()}")
    threads = {f"{path.name} {_text(path / 'comm')}" for path in Path("/proc/self/task").iterdir()}
    for path in Path("/proc").glob("[0-9]*"):
        words = _text(path / "stat").rpartition(")")[2].split()
        if words and int(words[1]) == os.getpid():
            processes.add(f"{path.name} {_text(path / 'comm')}")
    return {"descriptors": descriptors, "threads": threads, "processes": processes}


def _text(file: Path) -> str:
    """What a file of /proc says; nothing once its process is gone."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _resident_mb() -> float:
    """Memory in use: what was freed and is kept does not count, where the allocator can be asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / _MB


_JOBS = {"episode": _episode, "torch": _torch, "lives": _lives, "resets": _resets}


def main() -> None:
    """Do the job."""
    order = json.loads(sys.argv[1])
    try:
        with Subject(order["kind"], order["options"]) as subject:
            found = _JOBS[order["job"]](subject, order)
    except ConformanceError as broken:
        found = {"broken": str(broken)}
    except USERS_FAULTS as error:
        found = {"fault": dataclasses.asdict(fault_of(error))}
    sys.stdout.write(f"\n{FOUND}{json.dumps(found)}\n")


if __name__ == "__main__":
    main()
