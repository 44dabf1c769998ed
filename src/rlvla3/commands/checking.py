"""``rlvla3 check``."""

import dataclasses
import json as json_text
from collections.abc import Sequence
from pathlib import Path

import typer

from rlvla3.assembly import Assembly
from rlvla3.checking.derived import derived
from rlvla3.checking.findings import Derived, Finding
from rlvla3.checking.machine import lacking
from rlvla3.checking.settings_without_effect import findings
from rlvla3.commands.running import check_weights
from rlvla3.config import dropped_options, load_config
from rlvla3.costs import Costs
from rlvla3.doctor import usable_cores
from rlvla3.errors import UserError
from rlvla3.metrics import Row, write_figures
from rlvla3.prediction import predict

_PREDICTED_VERSIONS = 4


def command(recipe: str, overrides: Sequence[str], profile: Path | None, json: Path | None) -> None:
    """Print what follows from a recipe.

    Raises:
        UserError: it cannot run, or the profile cannot be read.
    """
    assembly = Assembly(load_config(recipe, list(overrides)))
    assembly.require_simulator()
    costs = None if profile is None else read_costs(profile)
    rows = derived(assembly)
    if costs is not None:
        rows += expected(assembly, costs)
    _ = assembly.algorithm
    check_weights(assembly)
    found = [*findings(assembly, usable_cores(), costs), *lacking(assembly.config, assembly.spec, rows)]
    show(rows, found, dropped_options(recipe, overrides))
    if json is not None:
        figures = [Row(name=row.name, value=float(row.value), unit=row.unit) for row in rows]
        write_figures(json, [*figures, Row(name="warnings", value=float(len(found)), unit="", bound=0.0)])


def read_costs(path: Path) -> Costs:
    """A profile: JSON with fields of ``Costs``.

    Raises:
        UserError: no such file, not JSON, or a field that is missing, unknown or no number.
    """
    known = {f.name: f for f in dataclasses.fields(Costs)}
    try:
        values = json_text.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}; give a JSON file with fields {', '.join(known)}"
        ) from error
    except ValueError as error:
        raise UserError(
            f"{path}: is not JSON ({error}); give an object with fields {', '.join(known)}"
        ) from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be an object with fields {', '.join(known)}")
    for name, value in values.items():
        if name not in known:
            raise UserError(f"{path}: {name} is no cost; known: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise UserError(f"{path}: {name} must be seconds (a number >= 0), got {value!r}")
    missing = [n for n, f in known.items() if f.default is dataclasses.MISSING and n not in values]
    if missing:
        raise UserError(f"{path}: {', '.join(missing)} must be given; known: {', '.join(known)}")
    return Costs(**values)


def expected(assembly: Assembly, costs: Costs) -> list[Derived]:
    """Speed and duration on a machine of these costs, in virtual time."""
    prediction = predict(assembly, costs, _PREDICTED_VERSIONS)
    hours = prediction.version_s * assembly.config.trainer.updates / 3600
    note = "virtual time, every episode to its limit, without evaluation"
    return [
        Derived(name="expected_steps_per_s", value=prediction.steps_per_s, unit="sub-steps/s", note=note),
        Derived(name="expected_version_s", value=prediction.version_s, unit="s"),
        Derived(name="expected_hours", value=hours, unit="h"),
    ]


def show(rows: Sequence[Derived], found: Sequence[Finding], notices: Sequence[str] = ()) -> None:
    """A line for each number, then one for each notice, then one for each warning."""
    name, unit = (max(len(getattr(row, part)) for row in rows) for part in ("name", "unit"))
    for row in rows:
        value = (
            f"{row.value:,.0f}" if row.value >= 1000 or row.value == int(row.value) else f"{row.value:.3g}"
        )
        typer.echo(f"{row.name:<{name}}  {value:>9} {row.unit:<{unit}}  {row.note}".rstrip())
    for notice in notices:
        typer.echo(f"notice: {notice}")
    for finding in found:
        typer.echo(f"warning: {finding.field}: {finding.text}")
    typer.echo(f"warnings: {len(found)}")
