"""``rlvla3 eval``."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from rich.console import Console
from rich.table import Table

from rlvla3.commands.protocols import follow
from rlvla3.commands.running import evaluate
from rlvla3.config import Config
from rlvla3.config_loading import Branch, build, override, parse
from rlvla3.errors import UserError
from rlvla3.evaluation_result import EvaluationResult
from rlvla3.learner import checkpoint
from rlvla3.metrics import Row, wilson, write_figures
from rlvla3.plugins import distrust
from rlvla3.run_folder import make_folder


def command(
    weights: Path,
    overrides: Sequence[str],
    videos: Path | None,
    averaged: bool,
    json: Path | None,
    allow_code: bool,
    protocol: str = "",
) -> None:
    """Evaluate with the configuration that the weights were saved with, or what a protocol makes of it."""
    config = saved_config(weights, overrides, allow_code=allow_code)
    words = ""
    if protocol:
        config, words = follow(config, protocol, overrides)
    asked = any(text.replace(" ", "").startswith("evaluation.videos=") for text in overrides)
    if videos is None and asked and config.evaluation.videos:
        raise UserError("evaluation.videos: give the folder to write them to as well, --videos FOLDER")
    if videos is not None:
        if not config.evaluation.videos:
            raise UserError(
                "--videos: evaluation.videos is 0; give how many of each task, such as evaluation.videos=2"
            )
        make_folder(videos)
    with TemporaryDirectory(prefix="rlvla3-eval-") as folder:
        result = evaluate(
            config, weights, Path(folder), averaged=averaged, videos=str(videos) if videos else ""
        )
    show(result, words)
    if json is not None:
        write_figures(json, figures(result))


def saved_config(weights: Path, overrides: Sequence[str], *, allow_code: bool) -> Config:
    """The configuration stored with a policy, with overrides.

    Raises:
        UserError: the policy is damaged or names code, which is not allowed; or one line for each fault.
    """
    source = checkpoint.find(weights)
    checkpoint.verify(source)
    return stored_config(source, overrides, allow_code=allow_code)


def stored_config(source: Path, overrides: Sequence[str], *, allow_code: bool) -> Config:
    """The configuration in a checkpoint's folder, with overrides.

    Raises:
        UserError: it names code, which is not allowed; or one line for each fault.
    """
    path = source / checkpoint.CONFIG
    text = checkpoint.describe(source).config
    # JSON is YAML, so the stored text goes through the same reader as a recipe. It stands for itself:
    # a recipe that it extended would be another file of this machine's.
    tree = parse(text, str(path))
    if not isinstance(tree, Branch) or "extends" in tree.entries:
        raise UserError(f"{path}: is no resolved configuration; the checkpoint is damaged, use another one")
    with nullcontext() if allow_code else distrust(str(source), given(overrides)):
        return build(Config, override(tree, list(overrides)), str(path), {})


def given(overrides: Sequence[str]) -> list[str]:
    """The values that the user typed."""
    return [text.partition("=")[2] for text in overrides]


def figures(result: EvaluationResult) -> list[Row]:
    """The headline, its interval, and each task."""
    low, high = result.interval
    rows = [
        Row(name="success_rate", value=result.rate, unit="", bound=None),
        Row(name="success_rate/low", value=low, unit="", bound=None),
        Row(name="success_rate/high", value=high, unit="", bound=None),
        Row(name="episodes", value=float(len(result.counted)), unit="", bound=None),
        Row(name="solved_at_reset", value=float(sum(result.solved_at_reset)), unit="", bound=None),
    ]
    for task, name in enumerate(result.tasks):
        rows.append(Row(name=f"success_rate/{name}", value=result.rate_of_task(task), unit="", bound=None))
    return rows


def show(result: EvaluationResult, protocol: str = "") -> None:
    """A table for each task, then the one headline, with the protocol that it was measured by."""
    table = Table()
    for title in ("task", "success", "95 % interval", "episodes", "mean sub-steps"):
        table.add_column(title, justify="left" if title == "task" else "right")
    for task, name in enumerate(result.tasks):
        outcomes = result.of_task(task)
        low, high = wilson(sum(outcomes), len(outcomes)) if outcomes else (0.0, 1.0)
        steps = [n for n, t in zip(result.sub_steps, result.task_of, strict=True) if t == task]
        rate = result.rate_of_task(task)
        table.add_row(
            name,
            f"{rate:.1%}",
            f"{low:.1%} - {high:.1%}",
            str(len(outcomes)),
            f"{sum(steps) / len(steps):.1f}",
        )
    Console().print(table)
    low, high = result.interval
    typer.echo(
        f"success_rate {result.rate:.1%}, n = {len(result.counted)}, 95 % interval {low:.1%} - {high:.1%}"
        + result.apart
        + (f", {protocol}" if protocol else "")
    )
