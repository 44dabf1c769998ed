"""A real run in which an env of the adapter never returns: it must be replaced, and the run go on."""

import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlvla3.conformance.subject import Subject, importable, require, require_gl, use
from rlvla3.core.engine import Engine
from rlvla3.messages import Event, Member, ReportEvaluation

_HANGS = "has been stepping for"
"""What is said of a member that hangs, in a reset or a sub-step."""
_LATE_S = 5.0
"""Time that a controller on a busy machine may take to notice."""


def a_hang_in_a_reset_is_ended(subject: Subject) -> None:
    """A reset that never returns is given up at its deadline, and its start is run by another process."""
    _survive(subject, step=0)


def a_hang_in_a_step_is_ended(subject: Subject) -> None:
    """A sub-step that never returns is given up at its deadline, and its start is run by another process."""
    _survive(subject, step=1)


class _Watcher:
    """Notes who was lost, and when."""

    def __init__(self) -> None:
        self.lost: list[tuple[str, float]] = []

    def on_event(self, event: Event, engine: Engine, now_s: float) -> None:
        """Nothing to note."""

    def on_telemetry(self, telemetry: object, now_s: float) -> None:
        """Nothing to note."""

    def on_evaluation(self, report: ReportEvaluation, now_s: float) -> float | None:
        """Nothing is evaluated."""
        return None

    def on_lost(self, member: Member, reason: str, log: str) -> None:
        """Note it."""
        self.lost.append((reason, time.time()))

    def on_watch(self, engine: Engine, now_s: float) -> None:
        """Nothing to note."""

    def on_stood_still(self, seconds: float) -> None:
        """Nothing to note."""


def _survive(subject: Subject, step: int) -> None:
    from rlvla3.assembly import Assembly
    from rlvla3.config import Config
    from rlvla3.runtime.local.runtime import LocalRuntime

    require_gl(subject)
    # What fails by itself would be lost again and again.
    use(subject.make(), subject, 0)
    subject.close()
    with TemporaryDirectory(prefix="rlvla3-hang-") as folder:
        marker = Path(folder) / "struck"
        assembly = Assembly(Config.model_validate(_run(subject, step, marker)))
        watcher = _Watcher()
        with importable():
            stop = LocalRuntime(assembly, Path(folder), watcher).run()
        others = [reason for reason, _ in watcher.lost if _HANGS not in reason]
        why = "; ".join([stop.reason, *(reason.splitlines()[0] for reason in others[:1])])
        require(not stop.failed, f"the run did not get over it: {why}")
        require(marker.exists(), "the first start of task 0 was never run")
        require(len(watcher.lost) == 1, f"members were lost for {[reason for reason, _ in watcher.lost]}")
        ((reason, lost_s),) = watcher.lost
        require(_HANGS in reason, f"the member was lost for another reason: {reason}")
        took_s, deadline_s = lost_s - marker.stat().st_mtime, subject.profile.deadline_s
        require(
            took_s <= deadline_s + _LATE_S, f"ended after {took_s:.1f} s; the deadline is {deadline_s:g} s"
        )


def _run(subject: Subject, step: int, marker: Path) -> Mapping[str, Any]:
    """A run of two updates over the adapter, whose first start hangs once."""
    fault = {"kind": "hang", "start_state": 0, "task": 0, "step": step, "marker": str(marker)}
    wrapped = {"kind": subject.kind, "options": subject.options, "faults": [fault]}
    # An env that steps with its batch cannot wait between two segments.
    length = (
        {"trajectory": "episode"} if subject.spec.steps_together else {"trajectory": "segment", "chunks": 2}
    )
    return {
        "simulator": {
            "kind": "rlvla3.simulators.faulty:Faulty",
            "options": wrapped,
            "members": 2,
            "envs": 2,
            "chunk": 3,
        },
        "policy": {"kind": "emulated", "options": {"base_ms": 1, "per_sample_ms": 0.1}},
        "learner": {"kind": "emulated", "options": {"ms_per_sample": 0.1}},
        "trainer": {"batch": 4, "micro_batch": 2, "updates": 2, **length},
        "health": {"step_timeout_s": subject.profile.deadline_s},
        "log": {"tensorboard": False},
    }
