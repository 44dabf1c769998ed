"""Real runs with env batches that step as a whole, on data that is verified row by row."""

from pathlib import Path
from typing import Any

import pytest
from echo import recorded
from live import Run, fault, faults, values

pytestmark = pytest.mark.live


def whole(folder: Path, *changes: dict[str, Any]) -> dict[str, Any]:
    """Two Simulators, each with an env batch of 6 envs in 3 slots; a batch holds one slot."""
    together = {
        "simulator": {"kind": "echo:EchoTogether", "envs": 6, "slots": 3, "lanes": 1},
        "generator": {"max_batch_size": 2},
        "learner": {"kind": "echo:Recording", "options": {"file": str(folder / "trained")}},
    }
    return values(together, *changes)


@pytest.mark.parametrize("mode", ["ss", "as", "aa_barrier", "aa"])
def test_every_mode_trains_verified_trajectories(mode: str, tmp_path: Path) -> None:
    run = Run(tmp_path, whole(tmp_path, {"schedule": {"mode": mode}})).go().trained(6)
    trained = [item for line in recorded(tmp_path / "trained") for item in line["trained"]]
    assert len({item["episode"] for item in trained}) == 48
    assert run.watcher.lost == []
    assert run.engine.settings.topology.together


def test_two_env_batches_take_turns(tmp_path: Path) -> None:
    changes = {"simulator": {"batches": 2, "lanes": 2}, "trainer": {"batch": 16}}
    run = Run(tmp_path, whole(tmp_path, changes)).go().trained(6)
    assert run.watcher.lost == []


def test_evaluation_among_rollouts(tmp_path: Path) -> None:
    evaluation = {"every_versions": 2, "episodes": 5, "max_envs": 3}
    run = Run(tmp_path, whole(tmp_path, {"evaluation": evaluation})).go().trained(6)
    assert [report.version for report in run.watcher.evaluations][-1] == 6
    for report in run.watcher.evaluations:
        assert [t.start.state for t in report.trajectories] == [0, 1, 2, 3, 4]
        assert all(t.sub_steps == 12 for t in report.trajectories)


@pytest.mark.parametrize("kind", ["exception", "crash", "hang"])
def test_one_bad_env_costs_its_simulator_once(kind: str, tmp_path: Path) -> None:
    scripted = faults(fault(kind, 5, tmp_path, step=4), step_timeout_s=1.0)
    run = Run(tmp_path, whole(tmp_path, scripted)).go().trained(6)
    assert len(run.watcher.lost) == 1
    if kind == "exception":
        assert "state=5" in run.watcher.lost[0][1]
