"""``rlvla3 check-simulator``."""

import contextlib
import json
import math
from collections.abc import Iterator, Sequence

import typer

from rlvla3.config_groups import SimulatorConfig
from rlvla3.config_loading import build, override, parse
from rlvla3.config_loading.trees import Branch
from rlvla3.conformance import Outcome, Profile
from rlvla3.conformance.reporting import checked, checked_elsewhere
from rlvla3.elsewhere import adapter_class
from rlvla3.elsewhere.interpreter import located
from rlvla3.errors import UserError

_MARKS = {"ok": "ok", "failed": "FAILED", "skipped": "skipped"}


def command(
    kind: str, settings: Sequence[str], profile: Profile, only: Sequence[str], python: str = ""
) -> None:
    """Run the checks over an adapter; one line each as they end.

    Args:
        python: interpreter of the environment that has the simulator; empty: this one.

    Raises:
        UserError: there is no such adapter or check, or a setting does not fit.
    """
    outcomes = []
    with _as_typed(python):
        path = _located(python)
        given = options(kind, settings, path)
        found = (
            checked_elsewhere(path, kind, given, profile, only)
            if path
            else checked(kind, given, profile, only)
        )
        for outcome in found:
            outcomes.append(outcome)
            show(outcome)
    counts = [sum(o.result == result for o in outcomes) for result in _MARKS]
    typer.echo(f"{counts[0]} kept, {counts[1]} broken, {counts[2]} not checked")
    if counts[1]:
        raise typer.Exit(1)


def _located(python: str) -> str:
    try:
        return located(python) if python else ""
    except ValueError as error:
        raise UserError(f"simulator.python: {error}") from error


@contextlib.contextmanager
def _as_typed(python: str) -> Iterator[None]:
    """Name in refusals what was typed: settings without a path, and ``simulator.python`` as ``--python``."""
    try:
        yield
    except UserError as error:
        text = str(error).replace(": options.", ": ").replace(": options:", ":")
        if python:
            text = text.replace("simulator.python", "--python")
        elif "simulator.python" in text:
            text += "; check-simulator takes that interpreter as --python"
        raise UserError(text) from error


def options(kind: str, settings: Sequence[str], python: str = "") -> dict[str, object]:
    """An adapter's settings from ``key=value`` texts, read by their types.

    Args:
        python: where it can be read; empty: here.

    Raises:
        UserError: one line for each fault.
    """
    adapter_class(kind, python)
    tree = parse(json.dumps({"kind": kind, "python": python}), "check-simulator")
    assert isinstance(tree, Branch)
    given = [f"options.{text}" for text in settings]
    read = build(SimulatorConfig, override(tree, given), "check-simulator", {})
    found: dict[str, object] = read.options.model_dump(mode="json")
    return found


def numbers(text: str) -> tuple[float, ...]:
    """An action from ``0,0,1``.

    Raises:
        UserError: it is none.
    """
    try:
        found = tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        found = (math.nan,)
    if all(map(math.isfinite, found)):
        return found
    raise UserError(f"--lift: {text!r} must be numbers such as 0,0,1, one for each action dimension")


def show(outcome: Outcome) -> None:
    """One line."""
    text = " ".join(outcome.text.split())
    typer.echo(f"{_MARKS[outcome.result]:<7}  {outcome.name:<42}  {outcome.seconds:5.1f} s  {text}".rstrip())
