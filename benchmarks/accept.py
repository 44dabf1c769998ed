"""Acceptance: re-run every figure that is not recorded yet for the present sources.

    python benchmarks/accept.py [--only NAME] [--again]

Each line runs a command that writes its own figures. They are kept in ``docs/results/NAME.json`` with the
commit and a hash of the files that the line exercises; a line runs again when one of these
changed. ``docs/results/ACCEPTANCE.md`` is the table of all of them. Exit code 1: a bound is missed.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rlvla3.metrics import over_seeds
from rlvla3.run_folder import versions, write_json, write_text

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
RUNS = ROOT / "runs" / "accept"
COMMAND = str(Path(sys.executable).with_name("rlvla3"))
DEMO_SEEDS = (2301, 2302, 2303, 2304, 2305)
"""Seeds that no setting was chosen on; each has initial states of its own too."""
CAMERA_SEEDS = (3201, 3202, 3203)
GRPO_SEEDS = (4401, 4402, 4403)
PICKCUBE_SEEDS = (5501, 5502, 5503)
SIX_SEEDS = (5601, 5602, 5603)
PUSHT_SEEDS = (5701, 5702, 5703)
METAWORLD_SEEDS = "benchmark_seeds={train: SEED1, held_out: SEED2, demonstration: SEED3}"
OWN_SEED = "seed=SEED"
"""What gives a run initial states of its own."""
AT_MOST = ("cpu_s_per_1k", "seconds", "p", "high", "lag_max")
"""Last parts of the names of figures whose bound is an upper one; all others have lower ones."""

Figures = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the acceptance table."""

    name: str
    command: str
    """What a reader would type."""
    measure: Callable[[], Figures]
    exercises: tuple[str, ...]
    """Files and folders that the result depends on."""


def schedule() -> Figures:
    """The scheduling benchmark."""
    return _figures([COMMAND, "bench", "schedule"])


def simulators() -> Figures:
    """Steps/s of every simulator that is installed."""
    return _figures([COMMAND, "bench", "simulators"])


def demo() -> Figures:
    """The demonstration with fresh seeds and states: median and worst of every figure."""
    return summary(_demonstrations("demo", DEMO_SEEDS), {"gain": 35.0})


def ppo() -> Figures:
    """The demonstration with three of its seeds, held against what a recipe must gain in twelve minutes."""
    return _learned("demo", DEMO_SEEDS[:3])


def grpo() -> Figures:
    """The same tasks with GRPO."""
    return _learned("grpo", GRPO_SEEDS)


def pickcube() -> Figures:
    """PickCube by PPO; the environment has to have ManiSkill."""
    return _improved("pickcube", PICKCUBE_SEEDS, OWN_SEED)


def six() -> Figures:
    """Six Meta-World tasks at once by PPO."""
    return _improved("six-tasks", SIX_SEEDS, METAWORLD_SEEDS)


def pusht() -> Figures:
    """gym-pusht by PPO from pixels; the environment has to have it."""
    return _improved("pusht", PUSHT_SEEDS, OWN_SEED)


def _improved(recipe: str, seeds: Sequence[int], states: str) -> Figures:
    """What training gained with each seed, and the mean gain with its interval over seeds (Student's t)."""
    wanted = ("gain", "gain/low", "gain/high", "gain_unlimited", "seconds", "steps_per_s")
    rows = []
    runs = _demonstrations(recipe, seeds, states)
    for seed, figures in zip(seeds, runs, strict=True):
        rows += [
            row | {"name": f"{seed}/{row['name']}", "bound": None}
            for row in figures
            if row["name"] in wanted or row["name"].startswith("success_rate/")
        ]
    found = [row["value"] for figures in runs for row in figures if row["name"] == "gain"]
    middle, low, high = over_seeds(found)
    points = {"unit": "points", "bound": None}
    mean = {"name": "mean/gain", "value": middle, **points}
    ends = [{"name": "mean/gain/low", "value": low, **points, "bound": 0.0}]
    return [mean, *ends, {"name": "mean/gain/high", "value": high, **points}, *rows]


def cycle(recipe: str) -> Callable[[], Figures]:
    """Warm start, training, evaluation, resume, evaluation of a recipe: at most five minutes."""
    return lambda: _figures([sys.executable, str(ROOT / "benchmarks" / "cycle.py"), recipe])


def _learned(recipe: str, seeds: Sequence[int]) -> Figures:
    bounds = {"gain": 25.0, "seconds": 720.0}
    runs = _demonstrations(recipe, seeds)
    names = (*bounds, "gain/p", "steps_per_s", "gain_unlimited")
    chosen = [
        [
            row | {"bound": bounds.get(row["name"])}
            for row in figures
            if row["name"] in names or row["name"].startswith("success_rate/")
        ]
        for figures in runs
    ]
    return summary(chosen, {"gain": 25.0})


def moved_camera() -> Figures:
    """The recipe that raises success without a step limit."""
    runs = _demonstrations("moved-camera", CAMERA_SEEDS)
    bounds = {"gain_unlimited": 15.0, "gain_unlimited/p": 0.01, "seconds": 900.0}
    names = (
        *bounds,
        "success_rate/before_unlimited",
        "success_rate/after_unlimited",
        "success_rate/more_cloning",
    )
    chosen = [
        [row | {"bound": bounds.get(row["name"])} for row in figures if row["name"] in names]
        for figures in runs
    ]
    return summary(chosen, bounds)


def _demonstrations(recipe: str, seeds: Sequence[int], states: str = METAWORLD_SEEDS) -> list[Figures]:
    """``rlvla3 demo RECIPE`` for each seed; with more cloning, as long as PPO takes, for the first.

    Runs stay in ``runs/accept``, and those made from the present sources are not repeated.
    """
    runs = []
    for seed in seeds:
        folder = RUNS / f"{recipe}-{seed}"
        kept, present = folder.with_suffix(".json"), sources(("src",))
        found = json.loads(kept.read_text()) if kept.exists() else {}
        if found.get("sources") != present:
            chosen = states.replace("SEED", str(seed))
            longer = seed == seeds[0] and recipe not in ("grpo", "six-tasks", "pusht")
            cloning = "--more-cloning" if longer else "--no-more-cloning"
            command = [COMMAND, "demo", recipe, f"seed={seed}", f"simulator.options.{chosen}"]
            found = {"sources": present, "rows": _figures([*command, cloning, "--folder", str(folder)])}
            write_json(kept, found)
        runs.append(found["rows"])
    return runs


def summary(runs: Sequence[Figures], median_bounds: Mapping[str, float]) -> Figures:
    """Of each figure the median over the runs that have it, and the worst where it has a bound."""
    rows = []
    for row in runs[0]:
        name = row["name"]
        values = [r["value"] for figures in runs for r in figures if r["name"] == name]
        middle = {"name": f"median/{name}", "value": median(values), "bound": median_bounds.get(name)}
        rows.append(row | middle)
        if row["bound"] is not None:
            worst = max(values) if _at_most(name) else min(values)
            rows.append(row | {"name": f"worst/{name}", "value": worst})
    return rows


def modes() -> Figures:
    """The four modes, from the demonstration's warm starts where these are there; the curves are kept too."""
    command = [sys.executable, str(ROOT / "benchmarks" / "modes.py")]
    for seed in DEMO_SEEDS[:3]:
        clone = RUNS / f"demo-{seed}" / "clone"
        command += ["--clone", str(clone)] if clone.exists() else []
    return _figures(command, RESULTS / "modes-figures.json")


def timed(target: str, bound_s: float | None) -> Callable[[], Figures]:
    """Seconds of a make target, which must succeed."""

    def run() -> Figures:
        start_s = time.monotonic()
        subprocess.run(["make", target], cwd=ROOT, check=True)
        return [{"name": "seconds", "value": time.monotonic() - start_s, "unit": "s", "bound": bound_s}]

    return run


LINES = (
    Line(name="unit", command="make test-unit", measure=timed("test-unit", 60.0), exercises=("src", "tests")),
    Line(name="schedule", command="rlvla3 bench schedule", measure=schedule, exercises=("src",)),
    Line(name="simulators", command="rlvla3 bench simulators", measure=simulators, exercises=("src",)),
    Line(
        name="test", command="make test", measure=timed("test", 900.0), exercises=("src", "tests", "Makefile")
    ),
    Line(name="demo", command="rlvla3 demo, five seeds", measure=demo, exercises=("src",)),
    Line(name="ppo", command="rlvla3 demo, three seeds", measure=ppo, exercises=("src",)),
    Line(name="grpo", command="rlvla3 demo grpo, three seeds", measure=grpo, exercises=("src",)),
    Line(
        name="moved-camera",
        command="rlvla3 demo moved-camera, three seeds",
        measure=moved_camera,
        exercises=("src",),
    ),
    Line(
        name="pickcube",
        command="rlvla3 demo pickcube, three seeds",
        measure=pickcube,
        exercises=("src",),
    ),
    Line(
        name="six-tasks",
        command="rlvla3 demo six-tasks, three seeds",
        measure=six,
        exercises=("src",),
    ),
    Line(name="pusht", command="rlvla3 demo pusht, three seeds", measure=pusht, exercises=("src",)),
    *(
        Line(
            name=f"cycle-{recipe}",
            command=f"python benchmarks/cycle.py {recipe}",
            measure=cycle(recipe),
            exercises=("src", "benchmarks/cycle.py"),
        )
        for recipe in ("libero", "maniskill", "pusht")
    ),
    Line(
        name="modes",
        command="python benchmarks/modes.py",
        measure=modes,
        exercises=("src", "benchmarks/modes.py"),
    ),
)


def _figures(command: list[str], kept: Path | None = None) -> Figures:
    with TemporaryDirectory(prefix="rlvla3-accept-") as folder:
        file = kept or Path(folder) / "figures.json"
        # A missed bound is exit code 1, and its figures are there all the same.
        done = subprocess.run([*command, "--json", str(file)], cwd=ROOT, check=False)
        if done.returncode not in (0, 1) or not file.exists():
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
        found: Figures = json.loads(file.read_text())["rows"]
        return found


def sources(exercises: Sequence[str]) -> str:
    """A hash of the tracked and new files below ``exercises``, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *exercises],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    digest = hashlib.sha256()
    for name in sorted(set(listed.splitlines())):
        file = ROOT / name
        if file.is_file():
            digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def evidence(line: Line) -> dict[str, Any]:
    """What is recorded of a line; empty if nothing is."""
    file = RESULTS / f"{line.name}.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def record(line: Line) -> None:
    """Measure a line and keep the result."""
    before = sources(line.exercises)
    rows = line.measure()
    if sources(line.exercises) != before:
        raise SystemExit(f"{line.name}: its sources changed while it ran; run it again")
    write_json(
        RESULTS / f"{line.name}.json",
        {
            "command": line.command,
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "sources": before,
            "rows": rows,
            "versions": versions(),
        },
    )


def missed(row: Mapping[str, Any]) -> bool:
    """Whether a figure misses its bound."""
    if row["bound"] is None:
        return False
    if row["value"] is None:
        return True
    over = row["value"] > row["bound"] if _at_most(row["name"]) else row["value"] < row["bound"]
    return bool(over)


def _at_most(name: str) -> bool:
    return name.rpartition("/")[2] in AT_MOST


def table() -> str:
    """All evidence as Markdown."""
    rows = ["# Acceptance figures", "", "| line | figure | value | bound | kept | commit | date |"]
    rows.append("|---|---|---|---|---|---|---|")
    for line in LINES:
        found = evidence(line)
        for row in found.get("rows", ()):
            sign = "<=" if _at_most(row["name"]) else ">="
            bound = "" if row["bound"] is None else f"{sign} {row['bound']:g}"
            kept = "" if row["bound"] is None else "no" if missed(row) else "yes"
            value = "" if row["value"] is None else f"{row['value']:.4g} {row['unit']}".rstrip()
            rows.append(
                f"| `{line.command}` | {row['name']} | {value} | {bound} | {kept} "
                f"| {found['versions']['commit'][:10]} | {found['date']} |"
            )
        if not found:
            rows.append(f"| `{line.command}` | not measured yet | | | | | |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run what is missing; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=[line.name for line in LINES])
    parser.add_argument("--again", action="store_true", help="also what is recorded already")
    arguments = parser.parse_args()
    chosen = [line for line in LINES if arguments.only in (None, line.name)]
    for line in chosen:
        found = evidence(line)
        if arguments.again or found.get("sources") != sources(line.exercises):
            record(line)
            write_text(RESULTS / "ACCEPTANCE.md", table())
    failed = [
        f"{line.name}: {row['name']}" for line in chosen for row in evidence(line)["rows"] if missed(row)
    ]
    sys.stdout.write(table())
    sys.stdout.writelines(f"missed: {text}\n" for text in failed)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
