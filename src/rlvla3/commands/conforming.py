"""``rlvla3 check-simulator``."""

from collections.abc import Sequence

import typer

from rlvla3.config_groups import SimulatorConfig
from rlvla3.config_loading import build, override, parse
from rlvla3.config_loading.trees import Branch
from rlvla3.conformance import Outcome, Profile, Subject, run
from rlvla3.conformance.subject import require_gl
from rlvla3.errors import UserError
from rlvla3.simulators.registry import simulator_class

_MARKS = {"ok": "ok", "failed": "FAILED", "skipped": "skipped"}


def command(kind: str, settings: Sequence[str], profile: Profile, only: Sequence[str]) -> None:
    """Run the checks over an adapter; one line each as they end.

    Raises:
        UserError: there is no such adapter or check, or a setting does not fit.
    """
    subject = Subject(kind, options(kind, settings), profile)
    _require_installed(subject)
    require_gl(subject)
    wanted, given = subject.spec.action_dim, len(profile.lift)
    if given not in (0, wanted):
        raise UserError(f"--lift: {given} numbers; an action of {kind} has {wanted}, give so many")
    outcomes = []
    for outcome in run(subject, tuple(only)):
        outcomes.append(outcome)
        show(outcome)
    counts = [sum(o.result == result for o in outcomes) for result in _MARKS]
    typer.echo(f"{counts[0]} kept, {counts[1]} broken, {counts[2]} not checked")
    if counts[1]:
        raise typer.Exit(1)


def _require_installed(subject: Subject) -> None:
    """What is in another environment cannot be checked from here."""
    try:
        _ = subject.spec
    except UserError as error:
        if "simulator.python" in str(error):
            raise UserError(
                f"{error}; check-simulator looks into its own environment only: run it with one that has both"
            ) from error
        raise


def options(kind: str, settings: Sequence[str]) -> dict[str, object]:
    """An adapter's settings from ``key=value`` texts, read by their types.

    Raises:
        UserError: one line for each fault.
    """
    simulator_class(kind)
    tree = parse(f"kind: {kind!r}", "check-simulator")
    assert isinstance(tree, Branch)
    given = [f"options.{text}" for text in settings]
    try:
        read = build(SimulatorConfig, override(tree, given), "check-simulator", {})
    except UserError as error:
        # Named as they were typed.
        raise UserError(str(error).replace(": options.", ": ").replace(": options:", ":")) from error
    found: dict[str, object] = read.options.model_dump(mode="json")
    return found


def numbers(text: str) -> tuple[float, ...]:
    """An action from ``0,0,1``.

    Raises:
        UserError: it is none.
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UserError(
            f"--lift: {text!r} must be numbers such as 0,0,1, one for each action dimension"
        ) from None


def show(outcome: Outcome) -> None:
    """One line."""
    text = " ".join(outcome.text.split())
    typer.echo(f"{_MARKS[outcome.result]:<7}  {outcome.name:<42}  {outcome.seconds:5.1f} s  {text}".rstrip())
