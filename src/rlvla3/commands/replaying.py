"""``rlvla3 replay``."""

from collections.abc import Sequence
from pathlib import Path

import typer

from rlvla3.algorithms.registry import algorithm_class
from rlvla3.assembly import Assembly
from rlvla3.commands.evaluating import stored_config
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.registry import LearnerContext, learner_class
from rlvla3.metrics import Row, write_figures

_SHOWN = 10


def command(folder: Path, overrides: Sequence[str], allow_code: bool, json: Path | None) -> None:
    """Show what is not finite in a rejected batch, and run its update again; exit code 1: it failed again."""
    if not (folder / checkpoint.MANIFEST).is_file():
        raise UserError(f"{folder}: holds no rejected batch; give a folder below RUN/{checkpoint.REJECTED}")
    checkpoint.verify(folder)
    config = stored_config(folder, overrides, allow_code=allow_code)
    assembly = Assembly(config)
    if config.learner.kind != "reinforcement":
        raise UserError(f"{folder}: learner.kind = {config.learner.kind!r} has no batches to replay")
    context = LearnerContext(
        policy=assembly.policy,
        algorithm=algorithm_class(config.algorithm.kind)(config.algorithm.options),
        device="cpu",
        seed=config.seed,
        streaming=config.schedule.streams,
        final_values=config.trainer.bootstrap == "trainer",
        weights="",
        model=config.policy,
        rank=0,
        ranks=1,
        sharing=False,
        store="",
    )
    learner = learner_class(config.learner.kind).build(config.learner.options, context)
    from rlvla3.learner import rejected

    # First: where the weights do not fit, nothing that is said of the batch would be true.
    learner.load(folder)
    samples, reason = rejected.read(folder, learner.model)  # type: ignore[attr-defined]
    typer.echo(f"version {checkpoint.describe(folder).version}, {len(samples)} chunks, rejected as {reason}")
    found = list(rejected.findings(samples))
    for one in found[:_SHOWN]:
        typer.echo(f"episode {one.episode}, chunk {one.chunk}: {one.field} is {one.value}")
    if len(found) > _SHOWN:
        typer.echo(f"… and {len(found) - _SHOWN} more")
    if not found:
        typer.echo("every number in the batch is finite: the update itself made one that is not")
    report = learner.replay(folder)
    for name, value in sorted(report.metrics.items()):
        typer.echo(f"{name} {value:.6g}")
    cured = "finite now: the settings that you changed cure it" if overrides else "finite this time"
    typer.echo("not finite again" if report.skipped else cured)
    if json is not None:
        rows = [Row(name=f"train/{name}", value=value, unit="") for name, value in report.metrics.items()]
        write_figures(json, [*rows, Row(name="not_finite_chunks", value=float(len(found)), unit="")])
    if report.skipped:
        raise typer.Exit(1)
