"""``rlvla3 sft``."""

from collections.abc import Sequence
from pathlib import Path

import typer

from rlvla3.commands import imitate
from rlvla3.config import dropped_options, load_config
from rlvla3.config_loading import dump
from rlvla3.errors import UserError
from rlvla3.learner.checkpoint import Kept
from rlvla3.metrics import Row, write_figures
from rlvla3.run_folder import RunFolder


def command(recipe: str, overrides: Sequence[str], folder: Path | None, json: Path | None) -> None:
    """Collect demonstrations (kept in the run folder) and fit the policy.

    A folder that holds nothing but an attempt of its own that did not end is gone on with.

    Raises:
        UserError: the folder holds a clone or another run, or there are no demonstrations to be had.
    """
    config = load_config(recipe, list(overrides))
    path = folder or Path("runs") / f"{config.name}-sft"
    losses: list[float] = []

    def report(step: int, steps: int, loss: float) -> None:
        losses.append(loss)
        if step % max(steps // 10, 1) == 0:
            typer.echo(f"warm start {step}/{steps}: loss {sum(losses[-20:]) / len(losses[-20:]):.4f}")

    with RunFolder.claim(path) as run:
        _refuse_other_runs(run)
        dataset = imitate.collect(config, run.path, tell=typer.echo)
        for notice in dropped_options(recipe, overrides):
            typer.echo(f"notice: {notice}", err=True)
        run.describe(dump(config))  # only now: a refused start leaves the folder free for the next one
        typer.echo(f"{len(dataset.lengths)} demonstrations, {len(dataset.task)} samples")
        weights = imitate.fit(config, dataset, run.path, report=report)
    typer.echo(f"weights in {weights}")
    if json is not None:
        rows = [
            Row(name="demonstrations", value=float(len(dataset.lengths)), unit="episodes", bound=None),
            Row(name="samples", value=float(len(dataset.task)), unit="", bound=None),
            Row(name="loss", value=sum(losses[-20:]) / len(losses[-20:]), unit="", bound=None),
        ]
        write_figures(json, rows)


def _refuse_other_runs(run: RunFolder) -> None:
    kept = Kept(run.checkpoints, 1)
    if run.metrics.exists() or kept.newest():
        raise UserError(f"{run.path}: already holds a run; choose another --folder")
    if kept.best():
        raise UserError(
            f"{run.path}: already holds a clone; use it (weights={run.path}) or choose another --folder"
        )
