"""Checks that need a process of their own: equal bits there, and what is left behind."""

import json
import os
import subprocess
from typing import Any

from rlvla3.conformance.faults import ElsewhereError
from rlvla3.conformance.subject import (
    ELSEWHERE,
    FOUND,
    ConformanceError,
    Skipped,
    Subject,
    fingerprint,
    importable,
    require,
)
from rlvla3.elsewhere import interpreter
from rlvla3.messages import Start

_LIFE_MB = 8.0
"""Megabytes by which memory may grow with an env that is built, used and closed."""
_LEAKING_GB = 4.0
"""Gigabytes that the process of an adapter that asks to be recycled may grow by until then."""
_LIVES = 3


def _elsewhere(subject: Subject, job: str, **arguments: Any) -> dict[str, Any]:
    """Do a job of ``conformance.child`` in a fresh process that can import what this one can."""
    order = json.dumps({"kind": subject.kind, "options": subject.options, "job": job, **arguments})
    # Every new thread may take an arena of its own, or not, as chance will have it; what an arena keeps is
    # no leak. With one arena memory that was freed is found again.
    with importable():
        run = subprocess.run(
            interpreter.command("", "rlvla3.conformance.child", order),
            capture_output=True,
            text=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        )
    lines = [line for line in run.stdout.splitlines() if line.startswith(FOUND)]
    said = run.stderr.strip().splitlines() or ["and says nothing"]
    if run.returncode or not lines:
        raise ConformanceError(f"{ELSEWHERE}it ends with exit code {run.returncode}: {said[-1].strip()}")
    found: dict[str, Any] = json.loads(lines[-1].removeprefix(FOUND))
    if "fault" in found:
        raise ElsewhereError(found["fault"])
    require("broken" not in found, f"{ELSEWHERE}{found.get('broken')}")
    require("Traceback" not in run.stderr, f"{ELSEWHERE}at its end it fails: {said[-1].strip()}")
    return found


def equal_starts_give_equal_episodes_elsewhere(subject: Subject) -> None:
    """The same start and actions give the same bits in another process."""
    task, state = subject.last_task, subject.some_state
    start = Start(task=task, split="train", state=state)
    here = fingerprint(subject.make(), start, subject.actions())
    there = _elsewhere(subject, "episode", task=task, state=state)["fingerprint"]
    require(here == there, "the same start and actions give other bits in another process")


def torch_is_not_imported(subject: Subject) -> None:
    """A Simulator's process never loads torch, which costs a second and 200 MB in each. One whose envs are
    made with torch imports it where an env is built, and holds it to one thread."""
    found = _elsewhere(subject, "torch")
    require(not found["spec"], "reading its spec imports torch; import it where an env is built")
    threads = found["threads"]
    require(threads <= 1, f"its envs compute with {threads} threads of torch each; torch.set_num_threads(1)")
    if threads:
        raise Skipped("its envs are made with torch")


def closing_frees(subject: Subject) -> None:
    """An env that is closed leaves no descriptor, thread, process, or memory (GL contexts) behind."""
    found = _elsewhere(subject, "lives", lives=_LIVES)
    for what in ("descriptors", "threads", "processes"):
        left = found[what]
        require(not left, f"{_LIVES} envs that were built, used and closed left {what}: {left}")
    require(found["mb"] <= _LIFE_MB, f"an env that is closed leaves {found['mb']:.1f} MB behind")


def memory_is_flat_over_resets(subject: Subject) -> None:
    """Resets do not leak, or the adapter asks for its process to be replaced in time."""
    profile, recycled = subject.profile, subject.spec.recycle_after
    found = _elsewhere(subject, "resets", resets=profile.resets, states=profile.states)
    allowed = 1024 * _LEAKING_GB / recycled if recycled else profile.growth_mb
    remedy = f"recycle_after = {recycled} is too rare" if recycled else "mend it, or set spec.recycle_after"
    require(found["mb"] <= allowed, f"{found['mb']:.2f} MB more with each reset; {remedy}")
