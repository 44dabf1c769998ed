"""The four modes on one recipe: speed, who works and waits, success against env steps and wall time.

For each seed one warm start is trained (or given); every mode goes on from it for the same number of
versions (of equally many trajectories, so of about equally many env steps; no time budget), and is
evaluated on the same held-out initial states. ``ss`` and ``aa`` are compared episode by episode: they
count as equivalent where the 95 % interval of the difference (two-sided, paired bootstrap) lies
within +-10 points.

    python benchmarks/modes.py --json modes.json [--seeds 3] [--versions 60] [--recipe demo] [key=value ...]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rlvla3.commands import imitate
from rlvla3.commands.running import evaluate, train
from rlvla3.config import Config, load_config
from rlvla3.learner import checkpoint
from rlvla3.metrics import Row, bootstrap_paired, write_figures
from rlvla3.run_folder import RunFolder, write_json

MODES = ("ss", "as", "aa_barrier", "aa")
EQUIVALENT = 0.10
"""Largest difference in success rate that counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One mode with one seed."""

    mode: str
    seed: int
    seconds: float
    env_steps: int
    steps_per_s: float
    trained_steps_per_s: float
    busy: dict[str, float]
    """Share of each role's time at work."""
    success: tuple[bool, ...]
    """Of each evaluation episode after training."""
    curve: list[tuple[float, float, float]]
    """(env steps, seconds, success rate of the rollouts) of each version."""


def run_mode(config: Config, mode: str, clone: Path, folder: Path) -> Run:
    """Train from the warm start in one mode, then evaluate."""
    overrides = {
        "weights": str(clone),
        "schedule": config.schedule.model_copy(update={"mode": mode}),
    }
    with RunFolder.create(folder) as run:
        outcome = train(config.model_copy(update=overrides), run, resume=False, phase=mode, record=True)
    monitor, statistics = outcome.monitor, outcome.engine.statistics
    result = evaluate(config, checkpoint.find(folder, resume=True), folder / "evaluation")
    last = monitor.history[-1]
    return Run(
        mode=mode,
        seed=config.seed,
        seconds=monitor.seconds,
        env_steps=statistics.sub_steps,
        steps_per_s=statistics.sub_steps / monitor.seconds,
        trained_steps_per_s=statistics.trained_sub_steps / monitor.seconds,
        busy={name: value for name, value in last.items() if name.startswith("busy/")},
        success=result.success,
        curve=[(h["env_steps"], h["time_s"], h["success_rate"]) for h in monitor.history],
    )


def run_all(
    recipe: str,
    overrides: Sequence[str],
    *,
    seeds: int,
    versions: int,
    clones: Sequence[Path],
    folder: Path,
) -> list[Run]:
    """Every mode with every seed, each for ``versions`` versions; from ``clones`` where given."""
    equal = [f"trainer.updates={versions}", f"learner.options.schedule_versions={versions}"]
    equal += ["budget_s=0", "learner.options.schedule_s=0"]
    runs = []
    for seed in range(1, seeds + 1):
        config = load_config(recipe, [*equal, *overrides, f"seed={seed}"])
        place = folder / f"seed-{seed}"
        if clones:
            clone = clones[(seed - 1) % len(clones)]
        else:
            clone = imitate.fit(config, imitate.collect(config, place), place / "clone")
        runs += [run_mode(config, mode, clone, place / mode) for mode in MODES]
    return runs


def figures(runs: Sequence[Run]) -> list[Row]:
    """Means over the seeds of each mode, and the comparison of ss and aa."""
    rows = []
    for mode in MODES:
        of_mode = [run for run in runs if run.mode == mode]
        values = {
            "steps_per_s": [run.steps_per_s for run in of_mode],
            "trained_steps_per_s": [run.trained_steps_per_s for run in of_mode],
            "seconds": [run.seconds for run in of_mode],
            "env_steps": [float(run.env_steps) for run in of_mode],
            "success_rate": [sum(run.success) / len(run.success) for run in of_mode],
        } | {name: [run.busy[name] for run in of_mode] for name in of_mode[0].busy}
        rows += [Row(name=f"{mode}/{n}", value=sum(v) / len(v), unit=_unit(n)) for n, v in values.items()]
    return [*rows, *comparison(runs)]


def comparison(runs: Sequence[Run]) -> list[Row]:
    """aa against ss: speed, and success on the same initial states."""
    ss, aa = ([run for run in runs if run.mode == mode] for mode in ("ss", "aa"))
    before = [float(s) for run in ss for s in run.success]
    after = [float(s) for run in aa for s in run.success]
    gain = bootstrap_paired(before, after, seed=0)
    equivalent = gain.low >= -EQUIVALENT and gain.high <= EQUIVALENT
    faster = sum(run.steps_per_s for run in aa) / sum(run.steps_per_s for run in ss)
    return [
        Row(name="aa_over_ss/steps_per_s", value=faster, unit="times"),
        Row(name="aa_minus_ss/success_rate", value=gain.gain, unit=""),
        Row(name="aa_minus_ss/low", value=gain.low, unit="", bound=-EQUIVALENT),
        Row(name="aa_minus_ss/high", value=gain.high, unit="", bound=EQUIVALENT),
        Row(name="aa_minus_ss/p", value=gain.p, unit=""),
        Row(name="equivalent", value=float(equivalent), unit="", bound=1.0),
    ]


def _unit(name: str) -> str:
    return {"seconds": "s", "env_steps": "sub-steps"}.get(name, "sub-steps/s" if "steps" in name else "")


def main() -> None:
    """Run and write the figures, and the curves beside them."""
    parser = argparse.ArgumentParser(description="The four modes on one recipe.")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--versions", type=int, default=60)
    parser.add_argument(
        "--clone", type=Path, action="append", default=[], help="a warm start; one for each seed, in turn"
    )
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="rlvla3-modes-") as folder:
        runs = run_all(
            arguments.recipe,
            arguments.overrides,
            seeds=arguments.seeds,
            versions=arguments.versions,
            clones=arguments.clone,
            folder=Path(folder),
        )
    write_figures(arguments.json, figures(runs))
    curves = [{"mode": run.mode, "seed": run.seed, "curve": run.curve} for run in runs]
    write_json(arguments.json.with_name(f"{arguments.json.stem}-curves.json"), curves)


if __name__ == "__main__":
    main()
