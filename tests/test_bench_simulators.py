"""``rlvla3 bench simulators``: its arithmetic, what it skips, and that it measures."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlvla3.benchmarks import simulators
from rlvla3.benchmarks.simulators import CASES, CHUNK, Case, Figures, Stepper, lacking, measure
from rlvla3.cli import main
from rlvla3.commands import bench_simulators
from rlvla3.commands.checking import read_costs
from rlvla3.errors import UserError
from rlvla3.simulators.api import Step
from rlvla3.simulators.chunking import SerialBatch
from rlvla3.simulators.packages import ENVIRONMENTS, PACKAGES, Package


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)


def figures(**changes: Any) -> Figures:
    values = {
        "case": case("metaworld/84px"),
        "state": (4000.0, 5000.0, 3000.0),
        "image": (400.0, 800.0, 600.0),
        "stock": (20.0, 20.0, 20.0),
        "sub_step_s": (0.001, 0.003),
        "observe_s": (0.004, 0.006),
        "reset_s": (0.01,),
    }
    return Figures(**(values | changes))


def test_rows_are_computed_turn_by_turn() -> None:
    rows = {row.name.removeprefix("metaworld/84px/"): row for row in figures().rows()}
    assert (rows["speedup"].value, rows["speedup"].bound) == (30.0, 15.0)
    assert rows["speedup_least"].value == 20.0
    assert (rows["state_steps_s"].value, rows["image_steps_s"].value) == (4000.0, 600.0)
    assert rows["image_steps_s_p05"].value == pytest.approx(420.0)
    assert rows["sub_step_ms_median"].value == pytest.approx(2.0)
    assert rows["observe_ms_p95"].value == pytest.approx(5.9)
    assert rows["costs/sub_step_cv"].value == pytest.approx(0.5)
    uneven = figures(image=(400.0, 100.0, 600.0), stock=(20.0, 1.0, 60.0))
    assert uneven.speedup == 20.0, "the ratio of each turn, not of the medians"


def test_a_cost_model_is_a_profile_of_check(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(simulators.measured_costs(figures().costs())))
    costs = read_costs(file)
    assert costs.sub_step_s == pytest.approx(0.002)
    assert costs.observe_s == pytest.approx(0.005)
    assert (costs.reset_s, costs.inference_s) == (0.01, 0.0)


def test_what_is_missing_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lacking(case("reach/32px")) == ""
    assert lacking(Case(name="a", kind="isaac", options={})) == "this version has no simulator isaac"
    absent = Package(extra="x", module="no_such_package")
    remedy = f"no_such_package is not installed; {sys.executable} -m pip install 'rlvla3[x]'"
    monkeypatch.setitem(PACKAGES, "metaworld", absent)
    assert lacking(case("metaworld/84px")) == remedy
    monkeypatch.setitem(ENVIRONMENTS, "pusht", absent)
    assert lacking(case("pusht/84px")) == remedy, "Gymnasium alone is not enough"


def run(monkeypatch: pytest.MonkeyPatch, found: dict[str, Figures], *arguments: str) -> int | None:
    """The command where these figures are measured and all other cases lack something."""
    absent = {c.name: "" if c.name in found else "it is not here; install it" for c in CASES}
    monkeypatch.setattr(bench_simulators, "lacking", lambda c: absent[c.name])
    monkeypatch.setattr(bench_simulators, "measure", lambda c, repeats: found[c.name])
    with pytest.raises(SystemExit) as end:
        main(["bench", "simulators", *arguments])
    code: int | None = end.value.code  # type: ignore[assignment]
    return code


def test_skipped_cases_are_listed_and_a_missed_bound_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name, file, folder = "metaworld/84px", tmp_path / "figures.json", tmp_path / "costs"
    assert run(monkeypatch, {name: figures()}, "--json", str(file), "--costs", str(folder)) == 0
    shown = capsys.readouterr().out
    assert "libero/84px: skipped: it is not here; install it" in shown
    rows = {row["name"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows[f"{name}/speedup"]["bound"] == 15.0 and rows["libero/84px/skipped"]["value"] == 1.0
    assert read_costs(folder / "metaworld-84px.json").sub_step_s == pytest.approx(0.002)
    assert run(monkeypatch, {name: figures(stock=(50.0, 50.0, 50.0))}) == 1
    assert run(monkeypatch, {}, "--only", "libero/84px") == 2
    assert "--only libero/84px: it is not here; install it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["simulator"], "there is no benchmark 'simulator'; did you mean"),
        (["simulators", "--only", "metaworld"], "--only: there is no case 'metaworld'"),
        (["simulators", "--updates", "2"], "--updates: has no meaning for bench simulators; leave it out"),
        (["schedule", "--repeats", "2"], "--repeats: has no meaning for bench schedule; leave it out"),
        (["schedule", "--costs", "x"], "--costs: has no meaning for bench schedule; leave it out"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *arguments])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


class Counted:
    """An env that ends after seven sub-steps and counts what it is asked."""

    def __init__(self) -> None:
        self.steps, self.looks, self.resets = 0, 0, 0

    def reset(self, start: Any, step_limit: int) -> None:
        self.resets += 1
        self.left = 7

    def step(self, action: np.ndarray) -> Step:
        assert action.shape == (3,) and np.abs(action).max() <= 1
        self.steps, self.left = self.steps + 1, self.left - 1
        return Step(reward=0.0, terminated=self.left == 0, truncated=False, success=False)

    def observe(self) -> dict[str, Any]:
        self.looks += 1
        return {}


def test_looks_are_taken_where_they_should_be_and_nothing_after_an_end_counts() -> None:
    env = Counted()
    stepper = Stepper(SerialBatch([env]), 3)  # type: ignore[list-item]
    assert (env.resets, len(stepper.reset_s)) == (1, 1)
    assert stepper.chunk(looks=False, every=False)[0] == CHUNK
    assert (env.steps, env.looks, env.resets) == (5, 0, 1)
    assert stepper.chunk(looks=True, every=False)[0] == 2, "the episode ends in this chunk"
    assert (env.steps, env.looks, env.resets) == (7, 1, 2)
    stepper.chunk(looks=True, every=True)
    assert (env.steps, env.looks) == (12, 6)
    assert (len(stepper.sub_step_s), len(stepper.observe_s), len(stepper.reset_s)) == (12, 6, 2)
    stepper.warm_up()
    assert (stepper.sub_step_s, stepper.observe_s, len(stepper.reset_s)) == ([], [], 1)


def test_a_simulator_without_another_package_is_measured() -> None:
    found = measure(case("reach/32px"), repeats=2, block_s=0.02)
    assert len(found.state) == len(found.image) == len(found.stock) == 2
    assert found.costs().observe_s > 0
    assert all(row.value >= 0 and np.isfinite(row.value) for row in found.rows())


def test_settings_that_an_adapter_does_not_know_are_one_line() -> None:
    wrong = Case(name="a", kind="synthetic", options={"task": "fly"})
    with pytest.raises(UserError, match="a: 1 validation error") as refused:
        measure(wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.metaworld
def test_metaworld_is_many_times_faster_when_rendered_only_for_use() -> None:
    found = measure(case("metaworld/84px"), repeats=1, block_s=0.3)
    assert found.speedup > 5, "the bound of the benchmark is 15, on a quiet machine"
    assert 0 < found.costs().observe_s < 1
