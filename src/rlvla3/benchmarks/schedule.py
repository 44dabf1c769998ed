"""The scheduling benchmark through the local runtime: real processes, messages and slabs.

The same settings as ``rlvla3.schedule_benchmark`` has in virtual time. The 32 slots wait in one
lane of one Simulator process: on a small machine this costs less than half the CPU time of four processes
of eight, because fewer processes wake up and a batch is answered with one message.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rlvla3.assembly import Assembly
from rlvla3.benchmarks.processor_time import processor_time_s, waits
from rlvla3.config import load_config
from rlvla3.core.engine import Engine
from rlvla3.errors import UserError
from rlvla3.messages import Event, Member, ReportEvaluation, UpdateDone
from rlvla3.metrics import Row
from rlvla3.runtime.local.runtime import LocalRuntime
from rlvla3.runtime.local.transport import Telemetry
from rlvla3.schedule_benchmark import REFERENCE_STEPS_S, Mode, predicted_steps_s

RECIPE = "schedule-benchmark"
_BEYOND = 2
"""Versions after the window: as many as rollouts may be ahead."""
MOST_CPU_S = 0.2
"""CPU seconds of all processes for 1000 steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the benchmark."""

    name: Mode
    required: float
    """Least ratio to the reference."""
    overrides: tuple[str, ...]
    trains: bool
    """Whether the Trainer costs time, and trained steps are what counts."""
    skip: int
    """Versions before the window: the pipeline fills."""
    updates: int
    """Versions in the window: about 22 s."""

    @property
    def reference(self) -> float:
        """Steps per second of a perfect implementation."""
        return REFERENCE_STEPS_S[self.name]


CASES = (
    Case(
        name="ss",
        required=0.95,
        overrides=("schedule.mode=ss",),
        trains=True,
        skip=1,
        updates=3,
    ),
    Case(
        name="rollout_only",
        required=0.94,
        overrides=("learner.options.ms_per_sample=0", "simulator.round_ms=1"),
        trains=False,
        skip=1,
        updates=7,
    ),
    Case(name="aa", required=0.95, overrides=(), trains=True, skip=2, updates=6),
    Case(
        name="aa_2gen",
        required=0.90,
        overrides=(
            "learner.options.ms_per_sample=0",
            "generator.members=2",
            "generator.max_batch_size=16",
            "generator.linger_ms=9",
            "generator.routing=any",
        ),
        trains=False,
        skip=1,
        updates=10,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A measured case."""

    case: Case
    window_s: float
    steps: int
    """Steps of the window: trained ones where the case trains, else executed ones."""
    executed: int
    cpu_s: float
    """CPU seconds of the controller and all members in the window."""
    waits: int
    """How often they waited for something in the window: so often they had to wake up."""
    predicted: float
    """Steps/s of the same settings in virtual time."""

    @property
    def steps_per_s(self) -> float:
        """What is held against the reference."""
        return self.steps / self.window_s

    @property
    def ratio(self) -> float:
        """Steps/s over the reference."""
        return self.steps_per_s / self.case.reference

    @property
    def cpu_s_per_1k(self) -> float:
        """CPU seconds for 1000 executed steps."""
        return 1000 * self.cpu_s / self.executed

    @property
    def waits_per_step(self) -> float:
        """Waits for each executed step, of all processes."""
        return self.waits / self.executed

    def rows(self) -> list[Row]:
        """The figures, with what is required of them."""
        name = self.case.name
        return [
            Row(name=f"{name}/ratio", value=self.ratio, unit="", bound=self.case.required),
            Row(name=f"{name}/steps_s", value=self.steps_per_s, unit="steps/s"),
            Row(name=f"{name}/cpu_s_per_1k", value=self.cpu_s_per_1k, unit="s", bound=MOST_CPU_S),
            Row(name=f"{name}/waits_per_step", value=self.waits_per_step, unit=""),
            Row(name=f"{name}/window_s", value=self.window_s, unit="s"),
            Row(name=f"{name}/predicted_steps_s", value=self.predicted, unit="steps/s"),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    now_s: float
    executed: int
    trained: int
    cpu_s: float
    waits: int


class _Window:
    """An observer that takes a mark at the first and the last version of the window, and ends the run."""

    def __init__(self, first: int, last: int, pids: Callable[[], list[int]], end: Callable[[], None]) -> None:
        self._first, self._last = first, last
        self._pids = pids
        self._end = end
        self.marks: list[_Mark] = []
        self.lost = ""

    def on_event(self, event: Event, engine: Engine, now_s: float) -> None:
        """Take the marks."""
        if isinstance(event, UpdateDone) and engine.intake.version in (self._first, self._last):
            statistics = engine.statistics
            mark = _Mark(
                now_s=now_s,
                executed=statistics.sub_steps,
                trained=statistics.trained_sub_steps,
                cpu_s=processor_time_s(self._pids()),
                waits=waits([os.getpid(), *self._pids()]),
            )
            self.marks.append(mark)
            if engine.intake.version == self._last:
                self._end()

    def on_telemetry(self, telemetry: Telemetry, now_s: float) -> None:
        """Nothing to do."""

    def on_evaluation(self, report: ReportEvaluation, now_s: float) -> float | None:
        """There is none."""

    def on_lost(self, member: Member, reason: str, log: str) -> None:
        """A lost member spoils the measurement."""
        self.lost = f"{member}: {reason}"

    def on_watch(self, engine: Engine, now_s: float) -> None:
        """Nothing to do."""

    def on_stood_still(self, seconds: float) -> None:
        """Time that is left out spoils the measurement."""
        self.lost = f"everything stood still for {seconds:.1f} s"


def measure(case: Case, updates: int | None = None) -> Result:
    """Run one case; ``updates``: versions in the window, if not the case's own.

    Raises:
        UserError: a member was lost.
    """
    versions = updates or case.updates
    last = case.skip + versions
    # The last versions of a run start no more trajectories: they are not part of the steady state.
    config = load_config(RECIPE, [*case.overrides, f"trainer.updates={last + _BEYOND}"])
    assembly = Assembly(config)
    # Both are called long after the runtime was made.
    window = _Window(case.skip, last, lambda: runtime.pids(), lambda: runtime.request_stop("measured"))
    with TemporaryDirectory(prefix="rlvla3-bench-") as folder:
        runtime = LocalRuntime(assembly, Path(folder), window)
        stop = runtime.run()
    if window.lost or stop.failed or len(window.marks) != 2:
        raise UserError(
            f"{case.name}: {window.lost or stop.reason}; its figures would mean nothing, run it again"
        )
    first, end = window.marks
    executed = end.executed - first.executed
    return Result(
        case=case,
        window_s=end.now_s - first.now_s,
        steps=end.trained - first.trained if case.trains else executed,
        executed=executed,
        cpu_s=end.cpu_s - first.cpu_s,
        waits=end.waits - first.waits,
        predicted=predicted_steps_s(case.name),
    )
