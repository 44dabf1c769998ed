"""``rlvla3 bench policy``."""

import os
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from rlvla3.benchmarks.policies import Figures, chosen, measure
from rlvla3.metrics import write_figures
from rlvla3.run_folder import check_writable, write_json


def command(only: str, json: Path | None, costs: Path | None) -> None:
    """Measure the presets for CPUs, or the one that is named.

    Raises:
        UserError: there is no such case, or ``costs`` cannot be written.
    """
    cases = chosen(only)
    if costs is not None:
        check_writable(costs / "costs.json")
    measured = []
    for case in cases:
        typer.echo(f"{case.name}: measuring", err=True)
        measured.append(measure(case))
    show(measured)
    if costs is not None:
        for figures in measured:
            write_json(costs / f"{figures.case.name}.json", figures.costs())
    if json is not None:
        write_figures(json, [row for figures in measured for row in figures.rows()])


def show(measured: Sequence[Figures]) -> None:
    """A row for each case and batch size."""
    table = Table(title="milliseconds of a batch, medians")
    for title in ("policy", "parameters", "batch", "prefix", "denoise step", "sample", "forward + backward"):
        table.add_column(title, justify="left" if title == "policy" else "right")
    for figures in measured:
        for timing in figures.timings:
            spent = (timing.prefix_s, timing.step_s, timing.sample_s, timing.update_s)
            table.add_row(
                figures.case.name,
                f"{figures.parameters / 1e6:.2f} M",
                str(timing.batch),
                *(f"{1000 * seconds:.1f}" if seconds else "" for seconds in spent),
            )
    Console().print(table)
    typer.echo("forward + backward: of what reinforcement learning trains, from a prefix that is kept")
    load = os.getloadavg()[0]
    typer.echo(f"load average of the last minute: {load:.2f} on {len(os.sched_getaffinity(0))} cores")
