"""Runs whose Simulators are processes of another Python environment: the same rules hold for them."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from echo import recorded
from live import TESTS, Command, Run, alive, fault, faults, members_of, values, wait_for
from other_python import ADAPTER, imports, make_environment

from rlvla3.demonstrations import Plan, collect, differing
from rlvla3.errors import UserError

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("other") / "env")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


def there(python: Path, folder: Path) -> dict:
    """Changes for a run that simulates there and writes down what it trained."""
    return {
        "simulator": {"kind": ADAPTER, "python": str(python), "options": values()["simulator"]["options"]},
        "learner": {"kind": "echo:Recording", "options": {"file": str(folder / "trained")}},
    }


def interpreters() -> dict[str, str]:
    """The interpreter that each member was started with."""
    found = members_of(os.getpid())
    return {
        name: Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[0] for name, pid in found.items()
    }


def test_a_run_trains_and_only_simulators_are_elsewhere(python: Path, tmp_path: Path) -> None:
    before = len(imports(python))
    run = Run(tmp_path, values(there(python, tmp_path)))
    used: dict[str, str] = {}
    run.watcher.when(lambda engine: engine.intake.version >= 2, lambda: used.update(interpreters()))
    run.go().trained(6)
    assert used == {
        **dict.fromkeys(("simulator-0", "simulator-1"), str(python)),
        **dict.fromkeys(("generator-0", "trainer-0"), sys.executable),
    }
    assert len(imports(python)) == before + 3, "one question, two Simulators"
    states = [item["start"][1] for line in recorded(tmp_path / "trained") for item in line["trained"]]
    assert len(set(states)) == len(states) == 48
    assert "noise of a library" in (tmp_path / "logs" / "simulator-0.log").read_text()


def test_one_that_is_killed_is_replaced(python: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, values(there(python, tmp_path), {"trainer": {"updates": 8}}))
    before: dict[str, int] = {}

    def strike() -> None:
        before.update(members_of(os.getpid()))
        os.kill(before["simulator-1"], signal.SIGKILL)

    run.watcher.when(lambda engine: engine.intake.version >= 2, strike)
    run.go().trained(8)
    ((member, reason, _),) = run.watcher.lost
    assert (member, reason) == ("simulator-1", "killed by SIGKILL")
    assert not alive(before["simulator-1"])
    assert run.engine.statistics.replaced == {"simulator-1": 1}


def test_one_that_hangs_shows_where(python: Path, tmp_path: Path) -> None:
    scripted = faults(fault("hang", 9, tmp_path, step=4), step_timeout_s=1.5)
    run = Run(tmp_path, values(there(python, tmp_path), scripted)).go().trained(6)
    ((_, reason, log),) = run.watcher.lost
    assert "has been stepping for 1.5 s" in reason and "in _strike" in log


def test_an_environment_that_vanishes_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env")
    run = Run(tmp_path, values(there(python, tmp_path), {"simulator": {"members": 1}}))

    def vanish() -> None:
        python.unlink()
        os.kill(members_of(os.getpid())["simulator-0"], signal.SIGKILL)

    run.watcher.when(lambda engine: engine.intake.version >= 1, vanish)
    run.go()
    assert run.stop.failed
    assert "its process cannot be started: No such file or directory" in run.watcher.lost[-1][1]


RECIPE = """
extends: schedule-benchmark
simulator:
  kind: {kind}
  python: {python}
  options: {{task: delay, mean_ms: 5, step_limits: 40}}
  members: 2
  envs: 4
  slots: 1
  lanes: 1
trainer: {{updates: 100000, batch: 8, micro_batch: 8}}
"""


def test_they_die_with_a_controller_that_is_killed(python: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(kind=ADAPTER, python=python))
    command = Command(tmp_path, "train", "recipe.yaml", "--folder", "run")
    try:
        trains = (tmp_path / "run" / "metrics.jsonl").exists
        wait_for(lambda: trains() and len(members_of(command.pid)) == 4, what=f"a run: {command.text}")
        members = members_of(command.pid)
        os.kill(command.pid, signal.SIGKILL)
        wait_for(lambda: not any(map(alive, members.values())), 10.0, "the end of the members")
    finally:
        command.close()


PLAN = {
    "kind": "synthetic",
    "settings": {"task": "reach"},
    "tasks": (0, 2),
    "per_task": 4,
    "speed": (0.5, 0.9),
    "noise": 0.1,
    "stride": 3,
    "chunk": 5,
    "seed": 1,
}


@pytest.mark.parametrize("workers", [0, 2])
def test_demonstrations_from_there_are_those_from_here(workers: int, python: Path) -> None:
    here = collect(Plan(**PLAN), 0)
    plan = Plan(**PLAN, python=str(python))
    elsewhere = collect(plan, workers)
    for name, array in here.observation.items():
        np.testing.assert_array_equal(elsewhere.observation[name], array)
    np.testing.assert_array_equal(elsewhere.actions, here.actions)
    np.testing.assert_array_equal(elsewhere.valid, here.valid)
    assert elsewhere.header == here.header and not differing(here, plan)


def test_demonstrations_that_fail_there_say_why(python: Path) -> None:
    changed = {**PLAN, "settings": {"task": "reach", "episode_length": 2}, "per_task": 2000}
    with pytest.raises(UserError, match="5 initial states in a row"):
        collect(Plan(**changed, python=str(python)), 2)
    left = [line for line in Path("/proc").glob("[0-9]*/stat") if _is_child(line)]
    assert left == []


def _is_child(stat: Path) -> bool:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
        command = stat.with_name("cmdline").read_bytes()
    except OSError:
        return False
    return int(fields[1]) == os.getpid() and b"rlvla3.demonstrations.working" in command
