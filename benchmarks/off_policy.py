"""What lag costs, and what each correction gives back: success against env steps and wall time.

For each seed one warm start is trained and measured; from it every cell (max_lag, correction) trains for
the same number of versions of equally many trajectories, and is evaluated on the same held-out initial
states. ``max_lag`` 0 is mode ``as``, others are ``aa``. Cells are kept in ``--folder`` and not repeated.

Beside the figures come the curves (``-curves.json``, a cell in each line) and both as tables (``.md``).

    python benchmarks/off_policy.py --json off-policy.json --folder runs/off-policy [--recipe reach-grpo]
        [--seeds 1 2 3] [--versions 60] [--lags 0 1 4 16] [key=value ...]

``--tables`` trains nothing: it writes the tables anew from the figures and curves of an earlier run.

    python benchmarks/off_policy.py --tables --json off-policy.json
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from rlvla3.algorithms.registry import algorithm_class
from rlvla3.commands import imitate
from rlvla3.commands.running import evaluate, train
from rlvla3.config import Config, load_config
from rlvla3.learner import checkpoint
from rlvla3.metrics import Row, over_seeds, write_figures
from rlvla3.run_folder import RunFolder, write_json

LEARNED = ("lag_mean", "lag_max", "ess", "clip_fraction", "kl", "weight_mean")
"""Figures of the updates that are kept, as means over the versions."""

Cell = dict[str, Any]


def corrections(config: Config) -> list[str]:
    """The corrections that the recipe's algorithm knows."""
    field = algorithm_class(config.algorithm.kind).Settings.model_fields["correction"]
    return list(get_args(field.annotation))


def cells(lags: Sequence[int], known: Sequence[str]) -> list[tuple[int, str]]:
    """Every lag with every correction; without lag ``decoupled`` is ``none``, bit by bit."""
    return [(lag, name) for lag in lags for name in known if lag or name != "decoupled"]


def warm_start(config: Config, folder: Path) -> tuple[Path, float]:
    """The seed's clone, and its success rate."""
    kept = folder / "clone.json"
    if not kept.exists():
        clone = imitate.fit(config, imitate.collect(config, folder), folder / "clone")
        result = evaluate(config, clone, folder / "before", phase="clone")
        write_json(kept, {"clone": str(clone), "success_rate": result.rate})
    found = _read(kept)
    return Path(found["clone"]), float(found["success_rate"])


def run_cell(config: Config, lag: int, correction: str, clone: Path, folder: Path) -> Cell:
    """Train one cell from the warm start and evaluate it; or what was found before."""
    kept = folder.with_suffix(".json")
    if kept.exists():
        return _read(kept)
    schedule = config.schedule.model_copy(
        update={"mode": "aa", "max_lag": lag} if lag else {"mode": "as", "max_lag": 1}
    )
    options = config.algorithm.options.model_copy(update={"correction": correction})
    algorithm = config.algorithm.model_copy(update={"options": options})
    changed = config.model_copy(update={"weights": str(clone), "schedule": schedule, "algorithm": algorithm})
    with RunFolder.claim(folder) as run:
        for old in run.path.glob("metrics.jsonl"):  # of a cell that was interrupted
            old.unlink()
        outcome = train(changed, run, resume=False, phase=f"lag {lag}, {correction}", record=True)
    result = evaluate(config, checkpoint.find(folder, resume=True), folder / "evaluation")
    history = list(outcome.monitor.history)
    cell: Cell = {
        "lag": lag,
        "correction": correction,
        "seed": config.seed,
        "success_rate": result.rate,
        "seconds": outcome.monitor.seconds,
        "env_steps": outcome.engine.statistics.sub_steps,
        "skipped": outcome.engine.statistics.skipped_updates,
        "curve": [[h["env_steps"], round(h["time_s"], 1), _rounded(h["success_rate"])] for h in history],
    }
    for name in LEARNED:
        values = [h[f"train/{name}"] for h in history if f"train/{name}" in h]
        cell[name] = mean(values) if values else None
    write_json(kept, cell)
    return cell


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def figures(found: Sequence[Cell], before: Sequence[float]) -> list[Row]:
    """Rows of each (lag, correction): success, gain over the warm start, and difference from no lag and no
    correction, each a mean over the seeds with its interval."""
    by_seed = {(c["lag"], c["correction"], c["seed"]): c for c in found}
    seeds = sorted({c["seed"] for c in found})
    rows = [Row(name="before/success_rate", value=mean(before), unit="")]
    for lag, correction in _kinds(found):
        mine = [by_seed[lag, correction, seed] for seed in seeds]
        base = [by_seed[0, "none", seed] for seed in seeds] if (0, "none", seeds[0]) in by_seed else mine
        name = f"lag_{lag}/{correction}"
        measured = {
            "success_rate": [c["success_rate"] for c in mine],
            "gain": [c["success_rate"] - b for c, b in zip(mine, before, strict=True)],
            "minus_no_lag": [c["success_rate"] - b["success_rate"] for c, b in zip(mine, base, strict=True)],
        }
        for what, values in measured.items():
            middle, low, high = over_seeds(values)
            rows += [
                Row(name=f"{name}/{what}", value=middle, unit=""),
                Row(name=f"{name}/{what}/low", value=low, unit=""),
                Row(name=f"{name}/{what}/high", value=high, unit=""),
            ]
        for what in ("seconds", "env_steps", "skipped", *LEARNED):
            values = [float(c[what]) for c in mine if c[what] is not None]
            if values:
                rows.append(Row(name=f"{name}/{what}", value=mean(values), unit=""))
    return rows


def _kinds(found: Sequence[Cell]) -> list[tuple[int, str]]:
    """(lag, correction) of all seeds' cells, by lag."""
    return sorted({(c["lag"], c["correction"]) for c in found})


def tables(rows: Sequence[Row], found: Sequence[Cell]) -> str:
    """Markdown: the outcome of every cell, and how training went without a correction."""
    value = {row.name: row.value for row in rows}
    seeds = sorted({c["seed"] for c in found})
    lines = [
        f"Means over seeds {', '.join(map(str, seeds))} with 95 % intervals; all cells of a seed begin at "
        "one warm start and train on equally many trajectories. Success before: "
        f"{_percent(value['before/success_rate'])} %.",
        "",
        "| max_lag | correction | success, % | minus no lag, points | lag, mean | env steps | seconds | "
        "effective sample size | clipped |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for lag, correction in _kinds(found):
        name = f"lag_{lag}/{correction}"
        lines.append(
            f"| {lag} | `{correction}` | {_with_interval(value, f'{name}/success_rate')} | "
            f"{_with_interval(value, f'{name}/minus_no_lag')} | {value[f'{name}/lag_mean']:.1f} | "
            f"{value[f'{name}/env_steps']:,.0f} | {value[f'{name}/seconds']:.0f} | "
            f"{value[f'{name}/ess']:.2f} | {_percent(value[f'{name}/clip_fraction'])} % |"
        )
    lines += [
        "",
        "Training without a correction: success of the episodes of each quarter (with exploration noise), "
        "and env steps and seconds at its end.",
        "",
        "| max_lag | " + " | ".join(f"quarter {n}" for n in range(1, 5)) + " |",
        "|---|---|---|---|---|",
    ]
    for lag in sorted({c["lag"] for c in found}):
        curves = [c["curve"] for c in found if c["lag"] == lag and c["correction"] == "none"]
        lines.append(f"| {lag} | " + " | ".join(_quarter(curves, n) for n in range(4)) + " |")
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _with_interval(value: dict[str, float], name: str) -> str:
    low, high = value[f"{name}/low"], value[f"{name}/high"]
    return f"{_percent(value[name])} [{_percent(low)}, {_percent(high)}]"


def _quarter(curves: Sequence[Any], number: int) -> str:
    """Mean success, env steps and seconds of a quarter of the versions, over seeds."""
    shares, steps, seconds = [], [], []
    for curve in curves:
        part = curve[number * len(curve) // 4 : (number + 1) * len(curve) // 4]
        known = [success for _, _, success in part if success is not None]
        shares.append(mean(known))
        steps.append(part[-1][0])
        seconds.append(part[-1][1])
    return f"{_percent(mean(shares))} % ({mean(steps):,.0f} steps, {mean(seconds):.0f} s)"


def stored(figures_path: Path) -> tuple[list[Row], list[Cell]]:
    """Figures and cells that an earlier run wrote."""
    rows = [Row(**row) for row in _read(figures_path)["rows"]]
    return rows, [json.loads(line) for line in _curves(figures_path).read_text().splitlines()]


def _curves(figures_path: Path) -> Path:
    return figures_path.with_name(f"{figures_path.stem}-curves.json")


def main() -> None:
    """Run every cell that is missing; write the figures, and curves and tables beside them."""
    parser = argparse.ArgumentParser(description="Lag and its corrections on one recipe.")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--recipe", default="reach-grpo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 4, 16])
    parser.add_argument("--versions", type=int, default=60)
    parser.add_argument("--folder", type=Path, help="where warm starts and cells are kept")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tables", action="store_true", help="only write the tables anew")
    arguments = parser.parse_args()
    if not arguments.tables:
        if arguments.folder is None:
            parser.error("--folder must be given: warm starts and cells are kept there")
        measure(arguments)
    arguments.json.with_suffix(".md").write_text(tables(*stored(arguments.json)))


def measure(arguments: argparse.Namespace) -> None:
    """Run every cell that is missing; write figures and curves."""
    equal = [f"trainer.updates={arguments.versions}", "budget_s=0", "learner.options.schedule_s=0"]
    equal += [f"learner.options.schedule_versions={arguments.versions}"]
    found: list[Cell] = []
    before = []
    for seed in sorted(arguments.seeds):
        config = load_config(arguments.recipe, [*equal, *arguments.overrides, f"seed={seed}"])
        place = arguments.folder / f"seed-{seed}"
        clone, rate = warm_start(config, place)
        before.append(rate)
        for lag, correction in cells(arguments.lags, corrections(config)):
            found.append(run_cell(config, lag, correction, clone, place / f"lag-{lag}-{correction}"))
    rows = figures(found, before)
    write_figures(arguments.json, rows)
    _curves(arguments.json).write_text("\n".join(json.dumps(cell) for cell in found) + "\n")


if __name__ == "__main__":
    main()
