"""Simulators that are replaced as planned in a real run, and episodes that begin solved."""

import os
from pathlib import Path

import pytest
from echo import recorded
from live import Run, fault, faults, members_of, values

from rlvla3.assembly import Assembly
from rlvla3.commands.evaluating import figures
from rlvla3.config import Config
from rlvla3.errors import UserError
from rlvla3.evaluation_result import EvaluationResult


def recycling(after: int | str, **more: object) -> dict:
    return {"simulator": {"recycle_after": after, **more}}


def recording(folder: Path) -> dict:
    return {"learner": {"kind": "echo:Recording", "options": {"file": str(folder / "trained")}}}


@pytest.mark.live
@pytest.mark.parametrize("members", [1, 2])
def test_processes_are_renewed_and_no_episode_is_lost_or_run_twice(members: int, tmp_path: Path) -> None:
    changes = {"trainer": {"updates": 6}, "health": {"restarts": 0}}
    run = Run(tmp_path, values(recording(tmp_path), recycling(6, members=members), changes)).go().trained(6)
    statistics = run.engine.statistics
    # While one of two starts anew, the other may do all that is left.
    assert sum(statistics.recycled.values()) >= (2 if members == 1 else 1)
    assert not run.watcher.lost and statistics.replaced == {} and statistics.dropped == {}
    states = sorted(item["start"][1] for line in recorded(tmp_path / "trained") for item in line["trained"])
    assert len(set(states)) == 48
    assert max(states) < 48 + 8 * run.engine.settings.training.max_lag + 8


@pytest.mark.live
def test_each_time_it_is_another_process_that_ended_by_itself(tmp_path: Path) -> None:
    pids = set()
    run = Run(tmp_path, values(recycling(4, members=1), {"trainer": {"updates": 4}}))
    again = run.watcher.when

    def look() -> None:
        pids.add(members_of(os.getpid()).get("simulator-0", 0))
        count = sum(run.engine.statistics.recycled.values())
        again(lambda engine: sum(engine.statistics.recycled.values()) > count, look)

    again(lambda engine: engine.intake.version >= 0, look)
    run.go().trained(4)
    assert len(pids) >= 3
    assert "Traceback" not in (tmp_path / "logs" / "simulator-0.log").read_text()


@pytest.mark.live
def test_a_fault_between_two_renewals_is_still_one(tmp_path: Path) -> None:
    hang = faults(fault("hang", 9, tmp_path, step=4), step_timeout_s=1.5)
    # Long enough that something is left to do when the one that hung is back.
    longer = {"trainer": {"updates": 40}}
    run = Run(tmp_path, values(recording(tmp_path), hang, recycling(6), longer)).go().trained(40)
    assert sum(run.engine.statistics.replaced.values()) == len(run.watcher.lost) == 1
    assert run.engine.statistics.recycled


@pytest.mark.live
def test_an_evaluation_runs_every_episode_once_over_renewals_and_tells_solved_starts_apart(
    tmp_path: Path,
) -> None:
    solved = {"simulator": {"options": {"solved_states": [1, 3], "success_at": 0}}}
    changes = {
        "evaluation": {"episodes": 12, "at_start": True, "every_versions": 3},
        "trainer": {"updates": 3},
    }
    run = Run(tmp_path, values(recycling(4, members=1), solved, changes)).go().trained(3)
    assert run.engine.statistics.recycled
    for report in run.watcher.evaluations:
        result = EvaluationResult.of(report.version, report.trajectories, ("delay-0",))
        assert result.success == tuple(state in (1, 3) for state in range(12))
        assert result.solved_at_reset == result.success
        assert (result.rate, len(result.counted)) == (0.0, 10)
        found = {row.name: row.value for row in figures(result)}
        assert (found["success_rate"], found["episodes"], found["solved_at_reset"]) == (0.0, 10, 2)
    statistics = run.engine.statistics
    assert statistics.solved_at_reset == 2, "training states 1 and 3"
    assert (statistics.successes, statistics.episodes) == (0, statistics.finished - 2)


def assembled(*changes: dict) -> Assembly:
    return Assembly(Config.model_validate(values(*changes)))


def test_the_adapter_may_ask_for_it_and_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaky(asked: int, *changes: dict) -> int:
        assembly = assembled(*changes)
        object.__setattr__(assembly.spec, "recycle_after", asked)
        return assembly.settings.health.recycle_after

    assert leaky(0) == 0
    assert leaky(50) == 50
    assert leaky(2) == 4, "an episode for each of the 4 envs of a process"
    assert leaky(50, recycling(0)) == 0
    assert leaky(50, recycling(7)) == 7


@pytest.mark.parametrize("after", [-1, 3])
def test_too_few_episodes_for_the_envs_are_refused(after: int) -> None:
    with pytest.raises(ValueError, match=rf"recycle_after must be auto, 0, or at least 4.*it is {after}"):
        Config.model_validate(values(recycling(after)))


def test_envs_with_a_quota_cannot_wait_for_each_other() -> None:
    changes = {
        "schedule": {"mode": "as", "deterministic": True},
        "trainer": {"trajectory": "segment", "chunks": 2},
    }
    assert assembled(changes).settings.health.recycle_after == 0
    with pytest.raises(UserError, match=r"simulator.recycle_after = 8 .*recycle_after: 0"):
        _ = assembled(changes, recycling(8)).settings
