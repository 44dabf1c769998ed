"""``rlvla3 train``."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import typer

from rlvla3.commands.evaluating import given
from rlvla3.commands.running import Outcome, train
from rlvla3.config import Config, dropped_options, load_config
from rlvla3.errors import EndedBySignal, UserError
from rlvla3.metrics import Row, write_figures
from rlvla3.plugins import distrust
from rlvla3.run_folder import CONFIG, RunFolder


def command(
    recipe: str,
    overrides: Sequence[str],
    folder: Path | None,
    resume: bool,
    json: Path | None,
    allow_code: bool,
) -> None:
    """Train; with ``resume`` the run folder's own configuration is what overrides apply to.

    ``recipe`` may then be the run folder itself, whose code runs only with ``allow_code``: who names
    a recipe vouches for it, but a run folder may come from anybody.
    """
    trust: AbstractContextManager[None] = nullcontext()
    if (Path(recipe) / CONFIG).is_file():
        if not resume:
            raise UserError(
                f"{recipe}: is a run folder; add --resume to go on with it, or give a recipe for a new run"
            )
        if not allow_code:
            trust = distrust(recipe, given(overrides))
        folder, recipe = folder or Path(recipe), str(Path(recipe) / CONFIG)
    with trust:
        _train(recipe, overrides, folder, resume, json, allow_code)


def _train(
    recipe: str,
    overrides: Sequence[str],
    folder: Path | None,
    resume: bool,
    json: Path | None,
    allow_code: bool,
) -> None:
    try:
        config = load_config(recipe, list(overrides))
    except UserError as error:
        if resume and "no such" in str(error):
            raise UserError(f"{error}; to resume, give a run folder (it has a {CONFIG})") from None
        raise
    path = folder or Path("runs") / config.name
    with RunFolder.open(path) if resume else RunFolder.create(path) as run:
        if resume:
            config = _continued(run, config, overrides, allow_code)
        notices = dropped_options(run.config if resume else recipe, overrides)
        outcome = train(config, run, resume=resume, record=True, notices=notices)
        rows = figures(config, outcome)
        run.write_summary({row.name: row.value for row in rows})
    if json is not None:
        write_figures(json, rows)
    if outcome.signal:
        raise EndedBySignal(outcome.signal, _farewell(outcome, path))
    typer.echo(_farewell(outcome, path))


def _continued(run: RunFolder, recipe: Config, overrides: Sequence[str], allow_code: bool) -> Config:
    """The run folder's own configuration, with overrides; it may name the code that the recipe names."""
    known = [*given(overrides), *_code_names(recipe.model_dump(mode="json")), recipe.simulator.python]
    with nullcontext() if allow_code else distrust(str(run.config), known):
        config = load_config(str(run.config), list(overrides))
    if not any(run.checkpoints.glob("checkpoint-*")) and run.metrics.exists():
        typer.echo(f"{run.path}: there is no checkpoint to go on from; the run begins anew", err=True)
    return config


def _code_names(value: object) -> list[str]:
    """Every text in a configuration that may be ``module:attribute``."""
    if isinstance(value, dict):
        return [name for inner in value.values() for name in _code_names(inner)]
    if isinstance(value, list):
        return [name for inner in value for name in _code_names(inner)]
    return [value] if isinstance(value, str) and ":" in value else []


def _farewell(outcome: Outcome, path: Path) -> str:
    """How it ended, how well it did, and what to type next."""
    version = outcome.engine.intake.version
    if outcome.signal:
        return (
            f"ended by {outcome.stop.reason} at version {version}; go on with: rlvla3 train {path} --resume"
        )
    statistics, first = outcome.engine.statistics, outcome.monitor.first
    episodes = statistics.episodes - first.episodes
    rate = (statistics.successes - first.successes) / episodes if episodes else 0.0
    return (
        f"{outcome.stop.reason}; {episodes} training episodes, {rate:.0%} of them successful; "
        f"evaluate with: rlvla3 eval {path}"
    )


def figures(config: Config, outcome: Outcome) -> list[Row]:
    """What a training run is judged by."""
    statistics, monitor = outcome.engine.statistics, outcome.monitor
    seconds = max(monitor.seconds, 1e-9)
    steps = statistics.sub_steps - monitor.first.sub_steps
    trained = statistics.trained_sub_steps - monitor.first.trained_sub_steps
    rows = [
        Row(name="versions", value=float(outcome.engine.intake.version), unit="", bound=None),
        Row(name="seconds", value=seconds, unit="s", bound=None),
        Row(name="env_steps", value=float(statistics.sub_steps), unit="sub-steps", bound=None),
        Row(name="steps_per_s", value=steps / seconds, unit="sub-steps/s", bound=None),
        Row(
            name="trained_steps_per_s",
            value=trained / seconds,
            unit="sub-steps/s",
            bound=None,
        ),
        Row(
            name="lag_max", value=float(statistics.lag_max), unit="versions", bound=float(config.schedule.lag)
        ),
    ]
    if monitor.results:
        last = monitor.results[-1]
        rows.append(Row(name="success_rate", value=last.rate, unit="", bound=None))
    return rows
