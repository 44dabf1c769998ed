"""``rlvla3 demo``: from nothing to a trained policy, with honest baselines beside it.

Collect slow demonstrations, clone them, train the clone asynchronously, and evaluate all of
it on held-out initial states, episode by episode on the same states:

* the clone, within the step budget and without a limit, before and after training;
* the clone with all its motions scaled by the best of several constants (speed without learning);
* the clone after as many more seconds of cloning as training took.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from rlvla3.commands import imitate
from rlvla3.commands.running import Outcome, evaluate, train
from rlvla3.config import Config, load_config
from rlvla3.config_loading import dump
from rlvla3.demonstrations import Dataset
from rlvla3.doctor import usable_cores
from rlvla3.errors import EndedBySignal, UserError
from rlvla3.evaluation_result import EvaluationResult
from rlvla3.learner import checkpoint
from rlvla3.metrics import Row, bootstrap_paired, write_figures
from rlvla3.run_folder import RunFolder

SCALES = (1.3, 1.6, 1.9, 2.2)
"""Constants that the clone's motions are multiplied by; the best one is reported."""


@dataclass(slots=True)
class Demonstration:
    """What is measured, as it comes."""

    before: EvaluationResult
    before_unlimited: EvaluationResult
    after: EvaluationResult
    after_unlimited: EvaluationResult
    scaled: dict[float, EvaluationResult]
    more_cloning: EvaluationResult | None


class _Stage:
    """Says what is going on and how long it took."""

    def __init__(self) -> None:
        self.start_s = time.monotonic()
        self.seconds: dict[str, float] = {}
        self._last_s = self.start_s

    def done(self, name: str, text: str) -> None:
        now_s = time.monotonic()
        self.seconds[name] = now_s - self._last_s
        typer.echo(f"[{now_s - self.start_s:5.0f} s] {name} took {self.seconds[name]:.0f} s: {text}")
        self._last_s = now_s

    @property
    def total_s(self) -> float:
        return time.monotonic() - self.start_s


def command(
    recipe: str, overrides: Sequence[str], folder: Path, more_cloning: bool, json: Path | None
) -> None:
    """Run everything in one folder; what an earlier demonstration left there is moved aside."""
    config = load_config(recipe, list(overrides))
    stage = _Stage()
    with RunFolder.create(_free(folder)) as run:
        run.describe(dump(config))
        dataset = imitate.collect(config, run.path)
        stage.done("demonstrations", f"{len(dataset.lengths)} episodes, {len(dataset.task)} samples")
        clone = imitate.fit(config, dataset, run.path / "clone", report=_echo)
        stage.done("cloning", f"weights in {clone}")
        before = _evaluate(config, clone, run, "before", videos=True)
        before_unlimited = _unlimited(config, clone, run, before, "before-unlimited")
        stage.done(
            "evaluation before", f"{_text(before)} in budget, {_text(before_unlimited)} without a limit"
        )
        outcome = train(
            config.model_copy(update={"weights": str(clone)}), run, resume=False, phase="training"
        )
        stage.done("training", outcome.stop.reason)
        if outcome.signal:
            line = f"{folder}: the demonstration was interrupted; what there is so far stays there"
            raise EndedBySignal(outcome.signal, line)
        trained = checkpoint.find(run.path, resume=True)
        after = _evaluate(config, trained, run, "after", videos=True)
        after_unlimited = _unlimited(config, trained, run, after, "after-unlimited")
        stage.done("evaluation after", f"{_text(after)} in budget, {_text(after_unlimited)} without a limit")
        result = Demonstration(
            before=before,
            before_unlimited=before_unlimited,
            after=after,
            after_unlimited=after_unlimited,
            scaled={},
            more_cloning=None,
        )
        _scaled_clone(config, clone, run, result, stage)
        if more_cloning:
            _more_cloning(config, clone, run, result, stage, dataset, outcome.monitor.seconds)
        summary = summarise(config, result, outcome, stage)
        run.write_summary(summary)
    show(result, summary)
    typer.echo(f"summary in {folder / 'summary.json'}, videos in {folder / 'videos'}")
    if json is not None:
        write_figures(json, figures(summary))


def _free(folder: Path) -> Path:
    """The folder itself; a demonstration of before that lies there is moved aside, never deleted.

    Raises:
        UserError: something else is there.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return folder
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: holds something else than a demonstration; choose another --folder")
    with RunFolder.open(folder):
        number = 1
        while (aside := folder.absolute().with_name(f"{folder.absolute().name}-{number}")).exists():
            number += 1
        folder.rename(aside)
    typer.echo(f"{folder}: the demonstration of before is now in {aside}")
    return folder


def _echo(step: int, steps: int, loss: float) -> None:
    if step % max(steps // 5, 1) == 0:
        typer.echo(f"cloning {step}/{steps}: loss {loss:.3f}")


def _text(result: EvaluationResult) -> str:
    low, high = result.interval
    return f"{result.rate:.1%} [{low:.1%}, {high:.1%}]"


def _evaluate(
    config: Config, weights: Path, run: RunFolder, name: str, *overrides: str, videos: bool = False
) -> EvaluationResult:
    folder = run.path / "evaluations" / name
    target = ""
    if videos:
        target = str(run.videos / name)
        Path(target).mkdir(parents=True, exist_ok=True)
    changed = load_config(str(run.config), list(overrides)) if overrides else config
    return evaluate(changed, weights, folder, videos=target, phase=f"eval {name}")


def _unlimited(
    config: Config, weights: Path, run: RunFolder, budgeted: EvaluationResult, name: str
) -> EvaluationResult:
    """Success without a step limit; that of the budget where the recipe's budget is none."""
    if config.evaluation.step_limit == "none":
        return budgeted
    return _evaluate(config, weights, run, name, "evaluation.step_limit=none")


def _scaled_clone(config: Config, clone: Path, run: RunFolder, result: Demonstration, stage: _Stage) -> None:
    for scale in SCALES:
        result.scaled[scale] = _evaluate(
            config, clone, run, f"scaled-{scale}", f"policy.options.action_scale={scale}"
        )
    stage.done("scaled clone", ", ".join(f"x{s}: {r.rate:.1%}" for s, r in result.scaled.items()))


def _more_cloning(
    config: Config,
    clone: Path,
    run: RunFolder,
    result: Demonstration,
    stage: _Stage,
    dataset: Dataset,
    seconds: float,
) -> None:
    longer = load_config(
        str(run.config), [f"imitation.options.budget_s={seconds:.0f}", "imitation.options.steps=1000000"]
    )
    more = imitate.fit(longer, dataset, run.path / "more-cloning", weights=str(clone))
    result.more_cloning = _evaluate(config, more, run, "more-cloning")
    stage.done("more cloning", f"{_text(result.more_cloning)} after {seconds:.0f} s more")


def summarise(config: Config, result: Demonstration, outcome: Outcome, stage: _Stage) -> dict[str, Any]:
    """The whole result as JSON values."""
    monitor, statistics = outcome.monitor, outcome.engine.statistics
    cores = usable_cores()
    summary: dict[str, Any] = {
        "seed": config.seed,
        "before": _entry(result.before),
        "after": _entry(result.after),
        "before_unlimited": _entry(result.before_unlimited),
        "after_unlimited": _entry(result.after_unlimited),
        "gain": _gain(result.before, result.after, config.seed),
        "gain_unlimited": _gain(result.before_unlimited, result.after_unlimited, config.seed),
        "seconds": stage.total_s,
        "stages_s": stage.seconds,
        "algorithm": config.algorithm.kind,
        "training_s": monitor.seconds,
        "env_steps": statistics.sub_steps,
        "steps_per_s": statistics.sub_steps / monitor.seconds,
        "trained_steps_per_s": statistics.trained_sub_steps / monitor.seconds,
        "shares": {load.role: load.busy for load in monitor.role_loads(monitor.finished_s)},
        "cores": cores,
        "useful_cpu": monitor.usages.useful_cpu_s() / (cores * monitor.seconds),
        "accounting": outcome.engine.accounting(),
        "lag_max": statistics.lag_max,
    }
    best = max(result.scaled, key=lambda scale: result.scaled[scale].rate)
    summary["scaled_clone"] = {
        "scale": best,
        **_entry(result.scaled[best]),
        "all": {str(scale): r.rate for scale, r in result.scaled.items()},
    }
    summary["gain_over_scaled_clone"] = _gain(result.scaled[best], result.after, config.seed)
    if result.more_cloning is not None:
        summary["more_cloning"] = _entry(result.more_cloning)
    return summary


def _gain(before: EvaluationResult, after: EvaluationResult, seed: int) -> dict[str, Any]:
    """Difference of success, episode by episode on the same initial states that had something to solve."""
    solved = [b or a for b, a in zip(before.solved_at_reset, after.solved_at_reset, strict=True)]
    first, second = (
        [success for success, left_out in zip(result.success, solved, strict=True) if not left_out]
        for result in (before, after)
    )
    gain = bootstrap_paired(first, second, seed)
    return {"points": 100 * gain.gain, "ci95": [100 * gain.low, 100 * gain.high], "p": gain.p}


def _entry(result: EvaluationResult) -> dict[str, Any]:
    per_task = {name: result.rate_of_task(task) for task, name in enumerate(result.tasks)}
    return {
        "success_rate": result.rate,
        "ci95": list(result.interval),
        "episodes": len(result.counted),
        "per_task": per_task,
    }


def show(result: Demonstration, summary: dict[str, Any]) -> None:
    """The table that the demonstration ends with."""
    table = Table(title="success on held-out initial states")
    table.add_column("policy")
    for name in result.before.tasks:
        table.add_column(name, justify="right")
    for name in ("all tasks", "95 % interval"):
        table.add_column(name, justify="right")
    rows = {
        "clone, step budget (before)": result.before,
        "after training, step budget": result.after,
        "clone, no step limit": result.before_unlimited,
        "after training, no step limit": result.after_unlimited,
    }
    best = summary["scaled_clone"]["scale"]
    rows[f"clone with motions x {best}, step budget"] = result.scaled[best]
    if result.more_cloning is not None:
        rows["more cloning instead, step budget"] = result.more_cloning
    for label, outcome in rows.items():
        low, high = outcome.interval
        rates = [f"{outcome.rate_of_task(task):.0%}" for task in range(len(outcome.tasks))]
        table.add_row(label, *rates, f"{outcome.rate:.1%}", f"{low:.1%} - {high:.1%}")
    Console(width=140).print(table)
    for name, where in (("gain", "within the step budget"), ("gain_unlimited", "without a step limit")):
        gain, (low, high) = summary[name]["points"], summary[name]["ci95"]
        typer.echo(
            f"gain {where} {gain:+.1f} points [{low:+.1f}, {high:+.1f}], "
            f"paired bootstrap p = {summary[name]['p']:.4f}"
        )
    typer.echo(
        f"{summary['algorithm']}: {summary['env_steps']} env steps in {summary['training_s']:.0f} s = "
        f"{summary['steps_per_s']:.0f} steps/s, {summary['useful_cpu']:.0%} of the cores' time useful; "
        f"everything took {summary['seconds']:.0f} s"
    )


def figures(summary: dict[str, Any]) -> list[Row]:
    """The figures file's rows, with what is required of them."""
    low, high = summary["gain"]["ci95"]
    rows = [
        Row(name="gain", value=summary["gain"]["points"], unit="points", bound=15.0),
        Row(name="gain/low", value=low, unit="points", bound=None),
        Row(name="gain/high", value=high, unit="points", bound=None),
        Row(name="gain/p", value=summary["gain"]["p"], unit="", bound=0.01),
        Row(name="seconds", value=summary["seconds"], unit="s", bound=900.0),
        Row(name="steps_per_s", value=summary["steps_per_s"], unit="sub-steps/s", bound=None),
        Row(name="useful_cpu", value=summary["useful_cpu"], unit="", bound=0.85),
    ]
    for name in ("before", "after", "before_unlimited", "after_unlimited", "scaled_clone", "more_cloning"):
        if name in summary:
            rows.append(
                Row(name=f"success_rate/{name}", value=summary[name]["success_rate"], unit="", bound=None)
            )
    beyond, unlimited = summary["gain_over_scaled_clone"], summary["gain_unlimited"]
    return [
        *rows,
        Row(name="gain_over_scaled_clone", value=beyond["points"], unit="points", bound=10.0),
        Row(name="gain_unlimited", value=unlimited["points"], unit="points", bound=None),
        Row(name="gain_unlimited/p", value=unlimited["p"], unit="", bound=None),
    ]
