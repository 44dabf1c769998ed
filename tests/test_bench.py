"""The scheduling benchmark: its settings, its arithmetic, and that it runs."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlvla3.assembly import Assembly
from rlvla3.benchmarks.processor_time import WakeUp, processor_time_s, waits, wake_up
from rlvla3.benchmarks.schedule import CASES, RECIPE, Case, Result, measure
from rlvla3.cli import main
from rlvla3.commands import benching
from rlvla3.config import load_config
from rlvla3.schedule_benchmark import schedule_settings


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


def result(**changes: Any) -> Result:
    values = {
        "case": case("aa"),
        "window_s": 20.0,
        "steps": 8680,
        "executed": 9000,
        "cpu_s": 0.9,
        "waits": 18_000,
        "predicted": 434.0,
    }
    return Result(**(values | changes))


@pytest.mark.parametrize("name", [c.name for c in CASES])
def test_the_recipe_has_the_settings_of_the_virtual_benchmark(name: str) -> None:
    config = load_config(RECIPE, [*case(name).overrides, "trainer.updates=12"])
    real, virtual = Assembly(config).settings, schedule_settings(case(name).name)
    for part in ("max_batch_size", "batch_timeout_s", "linger_s", "lockstep"):
        assert getattr(real.batching, part) == getattr(virtual.engine.batching, part)
    for part in ("batch", "max_lag", "micro_batch", "bootstrap", "updates", "step_limits", "on_stale"):
        assert getattr(real.training, part) == getattr(virtual.engine.training, part)
    assert [len(s.envs) for s in real.topology.slots] == [len(s.envs) for s in virtual.engine.topology.slots]
    assert len(real.topology.generators) == len(virtual.engine.topology.generators)
    device, env = config.policy.options, config.simulator.options
    assert device.base_ms == pytest.approx(1000 * virtual.costs.inference_s)
    assert device.per_sample_ms == pytest.approx(1000 * virtual.costs.inference_per_sample_s)
    assert (env.mean_ms, env.cv) == (1000 * virtual.costs.sub_step_s, virtual.costs.sub_step_cv)
    assert config.learner.options.ms_per_sample == pytest.approx(1000 * virtual.costs.train_per_chunk_s)
    assert case(name).trains == bool(virtual.costs.train_per_chunk_s)


def test_rows_are_computed_from_the_window() -> None:
    rows = {row.name: row for row in result().rows()}
    assert rows["aa/steps_s"].value == 434.0
    assert (rows["aa/ratio"].value, rows["aa/ratio"].bound) == (1.0, 0.95)
    assert (rows["aa/cpu_s_per_1k"].value, rows["aa/cpu_s_per_1k"].bound) == (pytest.approx(0.1), 0.2)
    assert rows["aa/window_s"].value == 20.0
    assert rows["aa/waits_per_step"].value == 2.0


def test_a_missed_bound_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "wake_up", lambda: WakeUp(bare_s=1e-5, hot_s=1e-6, cold_s=1e-5))
    for changes, code in (({}, None), ({"steps": 8000}, 1), ({"cpu_s": 2.0}, 1)):
        monkeypatch.setattr(benching, "measure", lambda case, updates, c=changes: result(case=case, **c))
        if code is None:
            benching.command("schedule", "aa", None, None)
        else:
            with pytest.raises(SystemExit) as end:
                main(["bench", "schedule", "--only", "aa"])
            assert end.value.code == code


def of(pid: int) -> float:
    own_s = processor_time_s([os.getpid()])  # first: it goes on meanwhile
    return processor_time_s([pid]) - own_s


def test_processor_time_is_that_of_this_and_other_processes() -> None:
    spin = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\ninput()\n"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as child:
        deadline_s = time.monotonic() + 30
        while of(child.pid) < 0.2 and time.monotonic() < deadline_s:
            pass
        assert 0.2 <= of(child.pid) < 5
        child.communicate(b"\n")
    with pytest.raises(ProcessLookupError):
        processor_time_s([child.pid])


def test_waking_up_costs_something() -> None:
    before = waits([os.getpid()])
    found = wake_up(times=3, pause_s=0.001)
    assert waits([os.getpid()]) - before >= 6, "three bare waits and three pauses"
    assert 0 < found.bare_s < 0.1
    assert 0 < found.hot_s < 0.1
    assert 0 < found.cold_s < 0.1


@pytest.mark.live
def test_a_short_run_measures_something_sensible(tmp_path: Path) -> None:
    found = measure(case("aa"), updates=1)
    assert found.steps == 1600
    assert found.executed > 800, "rollouts go on in the last version of the window"
    # Sleeps bound it from above; a busy machine may be slower.
    assert 0.3 < found.ratio < 1.1
    assert 0 < found.cpu_s_per_1k < 5
    assert 0.1 < found.waits_per_step < 10


def accept() -> Any:
    """``benchmarks/accept.py``, which is no module of the package."""
    place = Path(__file__).parent.parent / "benchmarks" / "accept.py"
    spec = importlib.util.spec_from_file_location("accept", place)
    assert spec is not None and spec.loader is not None
    module = sys.modules["accept"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def figure(name: str, value: float, bound: float | None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "", "bound": bound}


def test_acceptance_holds_the_worst_seed_against_the_bound() -> None:
    module = accept()
    runs = [
        [figure("gain", v, 15.0), figure("gain/p", p, 0.01), figure("rate", v, None)]
        for v, p in ((20.0, 0.001), (10.0, 0.03))
    ]
    rows = {row["name"]: row for row in module.summary(runs, {"gain": 35.0})}
    assert rows["median/gain"]["value"] == 15.0 and module.missed(rows["median/gain"])
    assert rows["median/rate"]["bound"] is None
    assert rows["worst/gain"]["value"] == 10.0 and module.missed(rows["worst/gain"])
    assert rows["worst/gain/p"]["value"] == 0.03 and module.missed(rows["worst/gain/p"])
    assert "worst/rate" not in rows and not module.missed(rows["median/rate"])


def test_acceptance_runs_a_line_again_when_what_it_exercises_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = accept()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    runs: list[int] = []

    def measure() -> list[dict[str, Any]]:
        runs.append(1)
        return [figure("seconds", 70.0, 60.0)]

    line = module.Line(name="one", command="one", measure=measure, exercises=("src",))
    for name, value in (("ROOT", tmp_path), ("RESULTS", tmp_path / "results"), ("LINES", (line,))):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(sys, "argv", ["accept.py"])
    assert module.main() == 1  # the bound is missed
    assert module.main() == 1 and len(runs) == 1  # recorded: not run again
    assert "| `one` | seconds | 70 | <= 60 | no |" in (tmp_path / "results" / "ACCEPTANCE.md").read_text()
    (tmp_path / "src" / "b.py").write_text("2")
    module.main()
    assert len(runs) == 2
    assert "missed: one: seconds" in capsys.readouterr().out
