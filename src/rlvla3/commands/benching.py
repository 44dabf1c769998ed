"""``rlvla3 bench``."""

import os
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from rlvla3.benchmarks.processor_time import WakeUp, wake_up
from rlvla3.benchmarks.schedule import CASES, MOST_CPU_S, Result, measure
from rlvla3.commands import bench_policies, bench_simulators
from rlvla3.config_loading import did_you_mean
from rlvla3.errors import UserError
from rlvla3.metrics import Row, write_figures

BENCHMARKS = ("schedule", "simulators", "policy")
_NOT_OF = {
    "schedule": ("--costs", "--repeats"),
    "simulators": ("--updates",),
    "policy": ("--updates", "--repeats"),
}
"""Options that a benchmark has no use for."""


def command(
    what: str,
    only: str,
    updates: int | None,
    json: Path | None,
    costs: Path | None = None,
    repeats: int | None = None,
) -> None:
    """Run a benchmark and print its table; exit code 1 if a bound is missed.

    Raises:
        UserError: there is no such benchmark or case, an option belongs to another one, a member was lost, or
            the one case that was asked for cannot be measured here.
    """
    if what not in BENCHMARKS:
        raise UserError(f"bench: there is no benchmark {what!r}; {did_you_mean(what, BENCHMARKS)}")
    given = {"--updates": updates, "--costs": costs, "--repeats": repeats}
    for option in _NOT_OF[what]:
        if given[option] is not None:
            raise UserError(f"{option}: has no meaning for bench {what}; leave it out")
    if what == "simulators":
        bench_simulators.command(only, repeats, json, costs)
    elif what == "policy":
        bench_policies.command(only, json, costs)
    else:
        _schedule(only, updates, json)


def _schedule(only: str, updates: int | None, json: Path | None) -> None:
    names = [case.name for case in CASES]
    if only and only not in names:
        raise UserError(f"--only: there is no case {only!r}; {did_you_mean(only, names)}")
    results = []
    for case in CASES:
        if only in ("", case.name):
            typer.echo(f"{case.name}: measuring", err=True)
            results.append(measure(case, updates))
    machine = wake_up()
    show(results, machine)
    if json is not None:
        rows = [
            Row(name="machine/wake_up_us", value=1e6 * machine.bare_s, unit="us"),
            Row(name="machine/work_us", value=1e6 * machine.hot_s, unit="us"),
            Row(name="machine/work_after_a_pause_us", value=1e6 * machine.cold_s, unit="us"),
        ]
        write_figures(json, [*rows, *(row for result in results for row in result.rows())])
    if not all(holds(result) for result in results):
        raise typer.Exit(1)


def holds(result: Result) -> bool:
    """Whether a case keeps its bounds."""
    return result.ratio >= result.case.required and result.cpu_s_per_1k <= MOST_CPU_S


def show(results: list[Result], machine: WakeUp) -> None:
    """A row for each case, and what the machine charges for waking up."""
    table = Table(title="scheduling benchmark, steady state")
    figures = ("steps/s", "of", "ratio", "required", "virtual", "CPU s / 1000", "waits / step", "window")
    for title in ("case", *figures):
        table.add_column(title, justify="left" if title == "case" else "right")
    for result in results:
        case = result.case
        table.add_row(
            case.name,
            f"{result.steps_per_s:.1f}",
            f"{case.reference:.0f}",
            f"{result.ratio:.3f}",
            f">= {case.required:.2f}",
            f"{result.predicted:.1f}",
            f"{result.cpu_s_per_1k:.3f} (<= {MOST_CPU_S})",
            f"{result.waits_per_step:.2f}",
            f"{result.window_s:.1f} s after version {case.skip}",
        )
    Console().print(table)
    load = os.getloadavg()[0]
    typer.echo(f"load average of the last minute: {load:.2f} on {len(os.sched_getaffinity(0))} cores")
    typer.echo(
        f"waking up costs {1e6 * machine.bare_s:.0f} us of CPU; decoding a batch of 32 requests "
        f"{1e6 * machine.hot_s:.0f} us at once, {1e6 * machine.cold_s:.0f} us after a pause of 20 ms"
    )
