"""``benchmarks/off_policy.py``: lags are numbers, and the committed tables are of the committed figures."""

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "off_policy.py"))


def cell(lag: int, correction: str, seed: int) -> dict[str, Any]:
    learned = dict.fromkeys(("lag_mean", "lag_max", "ess", "clip_fraction", "kl", "weight_mean"), 0.5)
    numbers = {"success_rate": 0.5, "seconds": 1.0, "env_steps": 100, "skipped": 0}
    curve = [[25.0 * n, float(n), 0.5] for n in range(1, 5)]
    return {"lag": lag, "correction": correction, "seed": seed, "curve": curve} | numbers | learned


def first_columns(table: str) -> list[str]:
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]


def test_rows_of_figures_and_tables_are_in_the_order_of_their_lags(benchmark: dict[str, Any]) -> None:
    found = [cell(lag, "none", seed) for seed in (2, 1) for lag in (16, 4, 0, 1)]
    rows = benchmark["figures"](found, [0.5, 0.5])
    assert list(dict.fromkeys(row.name.split("/")[0] for row in rows)) == [
        *("before", "lag_0", "lag_1", "lag_4", "lag_16")
    ]
    lags = ["0", "1", "4", "16"]
    assert first_columns(benchmark["tables"](rows, found)) == ["max_lag", *lags, "max_lag", *lags]


@pytest.mark.parametrize("name", ["off-policy-reach", "off-policy-metaworld"])
def test_the_committed_tables_are_made_of_the_committed_figures(
    name: str, benchmark: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ending in (".json", "-curves.json"):
        shutil.copy(RESULTS / f"{name}{ending}", tmp_path)
    figures = tmp_path / f"{name}.json"
    before = figures.read_bytes()
    monkeypatch.setattr(sys, "argv", ["off_policy.py", "--tables", "--json", str(figures)])
    benchmark["main"]()
    assert (tmp_path / f"{name}.md").read_text() == (RESULTS / f"{name}.md").read_text()
    assert figures.read_bytes() == before
