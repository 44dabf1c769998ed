"""Watches a run: metrics for each version, live progress, evaluations, replaced members."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy

from rlvla3.assembly import Assembly
from rlvla3.core.engine import Engine
from rlvla3.core.health import Up
from rlvla3.core.statistics import Statistics
from rlvla3.evaluation_result import EvaluationResult
from rlvla3.messages import (
    Event,
    Member,
    MemberReady,
    MemberReaped,
    ReportEvaluation,
    StopRequested,
    TrajectoryReady,
    UpdateDone,
    Version,
)
from rlvla3.metrics import Metrics
from rlvla3.progress import Display, Progress, RoleLoad
from rlvla3.runtime.local.transport import Telemetry

_USEFUL = ("simulate", "render", "infer", "train")
"""Sections that do the run's work; the rest is overhead or waiting."""
_PROGRESS_S = 1.0
_KEPT = 1000
_SHORT_S = 2.0
"""A window shorter than this says little about speed."""


class Usages:
    """Time accounts of all members: newest totals, and marks to measure windows from."""

    def __init__(self) -> None:
        self._newest: dict[Member, Mapping[str, float]] = {}
        self._before: dict[Member, dict[str, float]] = {}
        """To subtract from the newest totals: what was spent before the mark, less what earlier
        lives of the member spent after it."""

    def take(self, telemetry: Telemetry) -> None:
        """A member's totals since its start; a replaced member counts from zero again."""
        member, values = telemetry.member, telemetry.values
        old = self._newest.get(member, {})
        if any(values.get(name, 0.0) < value for name, value in old.items()):
            before = self._before.get(member, {})
            self._before[member] = {name: before.get(name, 0.0) - value for name, value in old.items()}
        self._newest[member] = values

    def mark(self) -> None:
        """Measure from now on."""
        self._before = {member: dict(values) for member, values in self._newest.items()}

    def spent(self, role: str) -> dict[str, float]:
        """Totals of a role's members since the mark: ``simulate/wall_s``, ``simulate/cpu_s`` …"""
        totals: dict[str, float] = {}
        for member, values in self._newest.items():
            if member.startswith(f"{role}-"):
                before = self._before.get(member, {})
                for name in values.keys() | before.keys():
                    spent = values.get(name, 0.0) - before.get(name, 0.0)
                    totals[name] = totals.get(name, 0.0) + spent
        return totals

    def useful_cpu_s(self) -> float:
        """CPU seconds of simulation, rendering, inference and updates since the mark."""
        return sum(
            self.spent(role).get(f"{section}/cpu_s", 0.0)
            for role in ("simulator", "generator", "trainer")
            for section in _USEFUL
        )


class Monitor:
    """The observer of a local run. ``metrics`` and ``display`` may do nothing."""

    def __init__(
        self,
        assembly: Assembly,
        metrics: Metrics,
        display: Display,
        phase: str,
        best: float = float("-inf"),
        version: int = 0,
    ) -> None:
        """Watch a run.

        Args:
            assembly: what runs.
            metrics: where figures go.
            display: what people see.
            phase: what the display calls it.
            best: score of the best weights kept so far, in a resumed run.
            version: what a pure evaluation evaluates.
        """
        self._version = version
        self._assembly = assembly
        self._metrics = metrics
        self._display = display
        self._phase = phase
        self._start_s: float | None = None
        self._window_s = 0.0
        self._before = Statistics()
        self._first_version = Version(0)
        self._update: dict[str, float] = {}
        self._attempt = 0
        self._progress_due_s = 0.0
        self._best = best
        self._evaluated = [0, 0]
        """Successes and episodes of the evaluation under way."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called once, when every member is ready."""
        self.first = Statistics()
        """Counters when every member was ready: those of before, in a resumed run."""
        self.usages = Usages()
        self.results: list[EvaluationResult] = []
        self.history: deque[dict[str, float]] = deque(maxlen=_KEPT)
        """Figures of the newest versions; the sinks have all of them."""
        self.lost: list[tuple[Member, str]] = []
        self.finished_s = 0.0

    @property
    def seconds(self) -> float:
        """From the moment every member was ready to the last event."""
        return self.finished_s - (self._start_s if self._start_s is not None else self.finished_s)

    # --- the runtime's observer ----------------------------------------------------------------

    def on_event(self, event: Event, engine: Engine, now_s: float) -> None:
        """Start the clock when all are ready; log every version."""
        self.finished_s = now_s
        if isinstance(event, MemberReady | MemberReaped) and self._start_s is None:
            if all(state in (Up.UP, Up.GONE) for state in engine.health.state.values()):
                self._start_s = self._window_s = now_s
                self.first = self._before = deepcopy(engine.statistics)
                self._first_version = engine.intake.version
                self.usages.mark()
                self.on_ready()
        elif isinstance(event, UpdateDone) and engine.intake.attempt != self._attempt:
            # The last of the Trainer's members ended it.
            self._attempt = engine.intake.attempt
            self._log(engine, now_s)
        elif isinstance(event, TrajectoryReady) and not self._assembly.training and not event.solved_at_reset:
            self._evaluated[0] += event.success
            self._evaluated[1] += 1
        elif isinstance(event, StopRequested):
            first = "; saving a checkpoint first" if engine.ending.saves else ""
            self._note(f"ending: {event.reason}{first}")

    def on_telemetry(self, telemetry: Telemetry, now_s: float) -> None:
        """Keep time accounts and the update's figures."""
        if telemetry.source == "usage":
            self.usages.take(telemetry)
        else:
            self._update = {f"train/{name}": value for name, value in telemetry.values.items()}

    def on_evaluation(self, report: ReportEvaluation, now_s: float) -> float | None:
        """Record an evaluation; its score is the lower bound of its interval."""
        result = EvaluationResult.of(report.version, report.trajectories, self._assembly.spec.tasks)
        self.results.append(result)
        low, high = result.interval
        values = {"eval/success_rate": result.rate, "eval/low": low, "eval/high": high}
        values["eval/solved_at_reset"] = float(sum(result.solved_at_reset))
        for task, name in enumerate(result.tasks):
            values[f"eval/{name}"] = result.rate_of_task(task)
        self._record(report.version, values, now_s)
        self._note(
            f"version {report.version}: success_rate {result.rate:.1%} "
            f"[{low:.1%}, {high:.1%}] of {len(result.counted)} held-out episodes{result.apart}"
        )
        if low <= self._best:
            return None
        self._best = low
        return low

    def on_lost(self, member: Member, reason: str, log: str) -> None:
        """Show what happened to a member: its error first, then where it was."""
        self.lost.append((member, reason))
        self._note(f"{member} was lost: {reason}")
        if log and "Traceback" not in reason:
            self._note(f"the end of {member}'s log:\n{log}")

    def on_watch(self, engine: Engine, now_s: float) -> None:
        """Update the display about once a second."""
        if now_s >= self._progress_due_s and self._start_s is not None:
            self._progress_due_s = now_s + _PROGRESS_S
            with suppress(OSError):
                self._display.update(self._progress(engine, now_s))

    def on_stood_still(self, seconds: float) -> None:
        """Say so: nobody was at fault, and speeds are measured without that time."""
        self._note(f"everything stood still for {seconds:.1f} s (machine asleep or stopped); not counted")

    def _note(self, text: str) -> None:
        """Show a line; a terminal that has gone away is no reason to end."""
        with suppress(OSError):
            self._display.note(text)

    # --- figures -------------------------------------------------------------------------------

    def _elapsed_s(self, now_s: float) -> float:
        return now_s - self._start_s if self._start_s is not None else 0.0

    def _log(self, engine: Engine, now_s: float) -> None:
        now, before = engine.statistics, self._before
        seconds = max(now_s - self._window_s, 1e-9)
        values = {
            "env_steps": float(now.sub_steps),
            "steps_per_s": (now.sub_steps - before.sub_steps) / seconds,
            "trained_steps_per_s": (now.trained_sub_steps - before.trained_sub_steps) / seconds,
            "window_s": seconds,
            "lag_mean": _ratio(now.lag_sum - before.lag_sum, now.trained - before.trained),
            "lag_max": float(now.lag_max),
            "queue_delay_ms": 1000
            * _ratio(now.queue_delay_s - before.queue_delay_s, now.requests - before.requests),
            "queue_delay_max_ms": 1000 * now.queue_delay_max_s,
            "turn_ms": 1000 * _ratio(now.turn_s - before.turn_s, now.turns - before.turns),
            "turn_max_ms": 1000 * now.turn_max_s,
            "batch_size": _ratio(now.samples - before.samples, now.batches - before.batches),
            "success_rate": _ratio(now.successes - before.successes, now.episodes - before.episodes),
            "episodes": float(now.episodes - before.episodes),
            "solved_at_reset": float(now.solved_at_reset - before.solved_at_reset),
            "dropped": float(sum(now.dropped.values())),
            **{f"dropped/{reason}": float(count) for reason, count in now.dropped.items()},
            "starts_given_up": float(now.given_up),
            "members_replaced": float(sum(now.replaced.values())),
            "members_recycled": float(sum(now.recycled.values())),
            "requests_cancelled": float(now.cancelled),
            **{f"accounting/{name}": float(n) for name, n in engine.accounting().items()},
            **self._shares(engine),
            **self._groups(now),
            **self._loads(now_s),
            **self._update,
        }
        self.history.append(
            {"version": float(engine.intake.version), "time_s": self._elapsed_s(now_s), **values}
        )
        self._record(engine.intake.version, values, now_s)
        self._before = deepcopy(now)
        self._window_s = now_s

    def _shares(self, engine: Engine) -> dict[str, float]:
        """Of each task: its part of the episodes trained since the start, and of the starts to come."""
        trained = engine.statistics.trained_episodes
        values = {}
        for task, name in enumerate(self._assembly.spec.tasks):
            values[f"trained_share/{name}"] = _ratio(trained[task], sum(trained))
            values[f"started_share/{name}"] = engine.flights.shares[task]
        return values

    def _groups(self, now: Statistics) -> dict[str, float]:
        """Groups of this version whose scores were all equal, and those of them that were replaced."""
        if self._assembly.groups.size == 1:
            return {}
        return {
            "groups/equal": float(now.equal_groups - self._before.equal_groups),
            "groups/replaced": float(now.replaced_groups - self._before.replaced_groups),
        }

    def _record(self, version: Version, values: Mapping[str, float], now_s: float) -> None:
        """Log, and show a sink that fails; the run goes on without it."""
        known = len(self._metrics.faults)
        self._metrics.log(version, values, self._elapsed_s(now_s))
        for fault in self._metrics.faults[known:]:
            self._note(fault)

    def _loads(self, now_s: float) -> dict[str, float]:
        """Busy share of each role's members since the start."""
        return {f"busy/{load.role}": load.busy for load in self.role_loads(now_s)}

    def role_loads(self, now_s: float) -> tuple[RoleLoad, ...]:
        """Busy and waiting parts of each role's time since the start."""
        topology = self._assembly.topology
        wall_s = max(self._elapsed_s(now_s), 1e-9)
        loads = []
        for role, members in (
            ("simulator", self._lanes()),
            ("generator", len(topology.generators)),
            ("trainer", len(topology.trainers)),
        ):
            if members:
                spent = self.usages.spent(role)
                busy = sum(
                    v for name, v in spent.items() if name.endswith("/wall_s") and not name.startswith("wait")
                )
                share = min(busy / (wall_s * members), 1.0)
                loads.append(RoleLoad(role=role, busy=share, waiting=1.0 - share))
        return tuple(loads)

    def _lanes(self) -> int:
        """Lanes of all Simulators that have slots."""
        return self._assembly.config.simulator.members * self._assembly.lanes

    def _progress(self, engine: Engine, now_s: float) -> Progress:
        now, before = engine.statistics, self._before
        last = self.history[-1] if self.history else {}
        seconds = max(now_s - self._window_s, 1e-9)
        steps = now.sub_steps - before.sub_steps + now.evaluation_sub_steps - before.evaluation_sub_steps
        successes, episodes = now.successes - before.successes, now.episodes - before.episodes
        if not self._assembly.training:
            successes, episodes = self._evaluated
        elif not episodes and last:
            episodes = round(last["episodes"])
            successes = round(last["success_rate"] * episodes)
        return Progress(
            phase=self._phase,
            elapsed_s=self._elapsed_s(now_s),
            left_s=self._left_s(engine, now_s),
            version=engine.intake.version if self._assembly.training else self._version,
            versions=self._assembly.config.trainer.updates if self._assembly.training else 0,
            env_steps=now.sub_steps + now.evaluation_sub_steps,
            steps_per_s=last["steps_per_s"] if last and seconds < _SHORT_S else steps / seconds,
            trained_steps_per_s=last.get("trained_steps_per_s", 0.0),
            successes=successes,
            episodes=episodes,
            lag=last.get("lag_mean", 0.0),
            max_lag=now.lag_max,
            queue_delay_ms=1000 * _ratio(now.queue_delay_s, now.requests),
            batch_fill=_ratio(now.samples, now.batches) / self._assembly.config.generator.max_batch_size,
            loads=self.role_loads(now_s),
        )

    def _left_s(self, engine: Engine, now_s: float) -> float:
        elapsed_s, config = self._elapsed_s(now_s), self._assembly.config
        if not self._assembly.training:
            done = self._evaluated[1]
            every = len(self._assembly.settings.evaluation.starts)
            return elapsed_s / done * (every - done) if done else -1.0
        done = engine.intake.version - self._first_version
        left = elapsed_s / done * (config.trainer.updates - engine.intake.version) if done else -1.0
        if config.budget_s:
            budget = max(config.budget_s - elapsed_s, 0.0)
            left = min(left, budget) if left >= 0 else budget
        return left


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
