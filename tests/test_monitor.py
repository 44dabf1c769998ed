"""The monitor: figures of each version, evaluations, lost members; a dead terminal costs nothing."""

import io
import math
import signal
from pathlib import Path

import pytest
from live import Run, values
from rich.console import Console

from rlvla3.assembly import Assembly
from rlvla3.config import Config
from rlvla3.evaluation_result import EvaluationResult
from rlvla3.messages import Member
from rlvla3.metrics import JsonLines, Metrics, read_json_lines
from rlvla3.monitor import Monitor, Usages
from rlvla3.progress import Display
from rlvla3.runtime.local.transport import Telemetry


def usage(member: str, **seconds: float) -> Telemetry:
    values = {f"{section}/{kind}": s for section, s in seconds.items() for kind in ("wall_s", "cpu_s")}
    return Telemetry(member=Member(member), source="usage", values=values)


def test_usage_is_counted_from_the_mark() -> None:
    usages = Usages()
    usages.take(usage("simulator-0", simulate=3.0))
    usages.take(usage("simulator-1", simulate=1.0))
    usages.mark()
    usages.take(usage("simulator-0", simulate=5.0, render=0.5))
    usages.take(usage("generator-0", infer=7.0))
    assert usages.spent("simulator")["simulate/wall_s"] == 2.0
    assert usages.spent("simulator")["render/wall_s"] == 0.5
    assert usages.spent("generator")["infer/cpu_s"] == 7.0
    assert usages.useful_cpu_s() == 9.5


def test_a_replaced_member_counts_from_zero() -> None:
    usages = Usages()
    usages.take(usage("simulator-0", simulate=3.0))
    usages.mark()
    usages.take(usage("simulator-0", simulate=0.25))
    assert usages.spent("simulator")["simulate/wall_s"] == 0.25


def test_an_evaluation_by_task() -> None:
    result = EvaluationResult(
        version=3,
        tasks=("a", "b"),
        success=(True, False, True, True),
        task_of=(0, 1, 0, 1),
        sub_steps=(1,) * 4,
        solved_at_reset=(False,) * 4,
    )
    assert result.rate == 0.75
    assert (result.of_task(0), result.of_task(1)) == ((True, True), (False, True))
    assert result.interval[0] < 0.75 < result.interval[1]


def test_episodes_that_began_solved_are_told_apart() -> None:
    result = EvaluationResult(
        version=3,
        tasks=("a", "b"),
        success=(True, False, True, True),
        task_of=(0, 0, 0, 1),
        sub_steps=(1,) * 4,
        solved_at_reset=(True, False, False, True),
    )
    assert (result.rate, result.counted) == (0.5, (False, True))
    assert (result.of_task(0), result.of_task(1)) == ((False, True), ())
    assert (result.rate_of_task(0), result.rate_of_task(1)) == (0.5, 0.0)
    assert "2 more began in a state that solves the task already" in result.apart


def test_where_every_episode_began_solved_nothing_is_known() -> None:
    result = EvaluationResult(
        version=0, tasks=("a",), success=(True,), task_of=(0,), sub_steps=(1,), solved_at_reset=(True,)
    )
    assert (result.rate, result.interval) == (0.0, (0.0, 1.0))


class Watched(Run):
    """A run watched by the real monitor."""

    def __init__(self, folder: Path, config: dict, display: Display) -> None:
        super().__init__(folder, config)
        assembly = Assembly(Config.model_validate(config))
        folder.mkdir(exist_ok=True)
        self.metrics = Metrics([JsonLines(folder / "metrics.jsonl")])
        self.monitor = Monitor(assembly, self.metrics, display, "train")
        self.runtime._observer = self.monitor


@pytest.mark.live
def test_every_version_has_its_figures(tmp_path: Path) -> None:
    text = io.StringIO()
    changes = {
        "evaluation": {"every_versions": 2, "episodes": 4},
        "simulator": {"options": {"mean_ms": 8}},
        "trainer": {"updates": 4},
        "health": {"heartbeat_timeout_s": 5},
    }
    run = Watched(tmp_path, values(changes), Display(Console(file=text, width=500), every_s=0.0))
    seen = run.monitor.on_event

    def strike(event, engine, now_s) -> None:
        seen(event, engine, now_s)
        if engine.intake.version == 1 and not run.engine.statistics.replaced:
            run.send("simulator-1", signal.SIGKILL)()
            run.monitor.on_event = seen

    run.monitor.on_event = strike
    run.go().trained(4)
    run.metrics.close()
    history = run.monitor.history
    assert [row["version"] for row in history] == [1, 2, 3, 4]
    for row in history:
        assert all(math.isfinite(value) for value in row.values()), row
        assert 0 <= row["lag_mean"] <= row["lag_max"] <= 1
        assert all(0 <= row[f"busy/{role}"] <= 1 for role in ("simulator", "generator", "trainer"))
        parts = ("in_flight", "given_up", "in_group", "queued", "in_update", "trained", "dropped")
        assert row["accounting/started"] == sum(row[f"accounting/{part}"] for part in parts)
        assert row["train/trajectories"] == 8
        assert 0 < row["turn_ms"] <= row["turn_max_ms"]
        assert row["queue_delay_ms"] <= row["queue_delay_max_ms"]
    assert [result.version for result in run.monitor.results] == [2, 4]
    assert all(len(result.success) == 4 for result in run.monitor.results)
    assert [member for member, _ in run.monitor.lost] == ["simulator-1"]
    assert "simulator-1 was lost: killed by SIGKILL" in text.getvalue()
    assert "version 4: success_rate 0.0% [" in text.getvalue()
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 6


@pytest.mark.live
def test_shares_of_tasks_and_groups_of_each_version(tmp_path: Path) -> None:
    """Two tasks in turn, in groups of two that nothing tells apart: one of each version is replaced."""
    changes = {
        "simulator": {"options": {"mean_ms": [1, 4], "step_limits": [12, 6]}},
        "tasks": {"weights": [1, 3]},
        "algorithm": {"kind": "echo:Grouped", "options": {"size": 2, "replacements": 1}},
        "schedule": {"mode": "as"},
        "trainer": {"batch": 16, "updates": 3},
    }
    run = Watched(tmp_path, values(changes), Display(Console(file=io.StringIO()), every_s=0.0))
    run.go().trained(3)
    first, second = run.engine.settings.training.tasks.weights, run.monitor._assembly.spec.tasks
    assert (first, len(second)) == ((1, 3), 2)
    for row in run.monitor.history:
        assert (row["groups/equal"], row["groups/replaced"]) == (9, 1)
        assert [row[f"started_share/{task}"] for task in second] == [0.25, 0.75]
        shares = [row[f"trained_share/{task}"] for task in second]
        assert sum(shares) == pytest.approx(1)
        assert shares[0] == pytest.approx(0.25, abs=2 / 8)


class Gone(io.StringIO):
    """A terminal whose window was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


@pytest.mark.live
def test_a_closed_terminal_does_not_end_the_run(tmp_path: Path) -> None:
    run = Watched(tmp_path, values(), Display(Console(file=Gone(), width=80), every_s=0.0))
    run.runtime._timers.after(0.0, lambda: run.monitor.on_lost(Member("nobody"), "a note", ""))
    run.go().trained(6)
