"""``rlvla3 bench simulators``."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from rlvla3.benchmarks.simulators import CASES, CHUNK, REPEATS, Figures, lacking, measure, measured_costs
from rlvla3.config_loading import did_you_mean
from rlvla3.errors import UserError
from rlvla3.metrics import Row, write_figures
from rlvla3.run_folder import check_writable, write_json


def command(only: str, repeats: int | None, json: Path | None, costs: Path | None) -> None:
    """Measure every simulator that is installed, or one; exit code 1 if a bound is missed.

    Raises:
        UserError: there is no such case, it cannot be measured here, or ``costs`` cannot be written.
    """
    names = [case.name for case in CASES]
    if only and only not in names:
        raise UserError(f"--only: there is no case {only!r}; {did_you_mean(only, names)}")
    if costs is not None:
        check_writable(costs / "costs.json")
    measured, skipped = _measure(only, repeats or REPEATS)
    show(measured, skipped)
    for figures in measured:
        if costs is not None:
            file = costs / f"{figures.case.name.replace('/', '-')}.json"
            write_json(file, measured_costs(figures.costs()))
    if json is not None:
        rows = [Row(name=f"{name}/skipped", value=1.0, unit="") for name in skipped]
        write_figures(json, [*(row for figures in measured for row in figures.rows()), *rows])
    if not all(holds(figures) for figures in measured):
        raise typer.Exit(1)


def _measure(only: str, repeats: int) -> tuple[list[Figures], dict[str, str]]:
    """What could be measured, and why the rest could not."""
    measured: list[Figures] = []
    skipped: dict[str, str] = {}
    for case in CASES:
        if only not in ("", case.name):
            continue
        reason = lacking(case)
        if not reason:
            typer.echo(f"{case.name}: measuring", err=True)
            try:
                measured.append(measure(case, repeats))
            except UserError as error:
                reason = str(error)
        if reason and only:
            raise UserError(f"--only {only}: {reason}")
        if reason:
            skipped[case.name] = reason
    return measured, skipped


def holds(figures: Figures) -> bool:
    """Whether a case keeps its bound."""
    return figures.case.required is None or figures.speedup >= figures.case.required


def show(measured: Sequence[Figures], skipped: Mapping[str, str]) -> None:
    """A row for each case, speeds first, then times; a line for each that was skipped."""
    speeds, times = (
        Table(title=f"one env, {CHUNK} sub-steps for each look: steps/s"),
        Table(title="milliseconds"),
    )
    for table, titles in (
        (speeds, ("state", "image", "stock", "speed-up", "least", "required")),
        (times, ("sub-step", "p95", "look", "p95", "reset", "p95")),
    ):
        for title in ("simulator", *titles):
            table.add_column(title, justify="left" if title == "simulator" else "right")
    for figures in measured:
        name, required = figures.case.name, figures.case.required
        rows = {row.name.removeprefix(f"{name}/"): row.value for row in figures.rows()}
        ways = [f"{rows[f'{way}_steps_s']:.1f}" for way in ("state", "image", "stock")]
        bound = "" if required is None else f">= {required:g}"
        speeds.add_row(name, *ways, f"{figures.speedup:.1f}", f"{rows['speedup_least']:.1f}", bound)
        events = ("sub_step", "observe", "reset")
        times.add_row(
            name, *(f"{rows[f'{what}_ms_{label}']:.2f}" for what in events for label in ("median", "p95"))
        )
    for table in (speeds, times) if measured else ():
        Console().print(table)
    for name, reason in skipped.items():
        typer.echo(f"{name}: skipped: {reason}")
    typer.echo("state: no look; image: one look for each chunk; stock: a look for each sub-step, as is usual")
    load = os.getloadavg()[0]
    typer.echo(f"load average of the last minute: {load:.2f} on {len(os.sched_getaffinity(0))} cores")
