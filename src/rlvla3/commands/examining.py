"""``rlvla3 doctor``."""

from pathlib import Path

import typer

from rlvla3.doctor import render, report
from rlvla3.metrics import Row, write_figures


def command(python: str, json: Path | None) -> None:
    """Print the report; exit code 1 if something needs mending."""
    checks = report(Path("runs"), python)
    render(checks, typer.echo)
    if json is not None:
        rows = [Row(name=check.name, value=float(check.ok), unit="ok", bound=1.0) for check in checks]
        write_figures(json, rows)
    if not all(check.ok for check in checks):
        raise typer.Exit(1)
