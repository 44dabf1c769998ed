"""What all commands share that start a run: sinks, display, the runtime, the outcome."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from rlvla3.assembly import Assembly
from rlvla3.checking.machine import simulator_device
from rlvla3.config import Config
from rlvla3.config_loading import dump
from rlvla3.core.engine import Engine
from rlvla3.elsewhere import interpreter
from rlvla3.errors import EndedBySignal, UserError, refuse
from rlvla3.evaluation_result import EvaluationResult
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description
from rlvla3.messages import Stop
from rlvla3.metrics import JsonLines, Metrics, Sink, TensorBoard, WeightsAndBiases
from rlvla3.monitor import Monitor
from rlvla3.progress import Display
from rlvla3.run_folder import RunFolder
from rlvla3.runtime.local.runtime import LocalRuntime
from rlvla3.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that ended."""

    stop: Stop
    monitor: Monitor
    engine: Engine
    signal: int
    """Number of the signal that ended it; 0: the configuration did."""


def sinks(config: Config, folder: RunFolder) -> Metrics:
    """Where the run's figures go."""
    found: list[Sink] = []
    if config.log.wandb != "off":
        found.append(WeightsAndBiases(folder.path, config.name, config.log.wandb, config.model_dump()))
    found.append(JsonLines(folder.metrics))
    if config.log.tensorboard:
        found.append(TensorBoard(folder.tensorboard))
    return Metrics(found)


def require_simulator(assembly: Assembly) -> None:
    """Refuse a run whose Simulators could build no env, before any process starts.

    Raises:
        UserError: a package, a folder or a device that they need is not here, with the remedy.
    """
    assembly.require_simulator()
    refuse(f"{found.field}: {found.text}" for found in simulator_device(assembly.config, assembly.spec))


def require_gl(assembly: Assembly) -> None:
    """Refuse a run whose Simulators could render nothing, before any process starts.

    Raises:
        UserError: no GL back-end works, with the packages to install.
    """
    if assembly.spec.needs_gl:
        from rlvla3.simulators.mujoco_rendering import require_backend

        require_backend(assembly.config.simulator.python)


def require_videos(assembly: Assembly) -> None:
    """Refuse a run that could not record its videos: Simulators write them, wherever they run.

    Raises:
        UserError: another Python environment, where the Simulators run, lacks what writes videos.
    """
    python = assembly.config.simulator.python
    if python and any(start.video for start in assembly.settings.evaluation.starts):
        interpreter.check(python, videos=True)


def check_weights(assembly: Assembly) -> None:
    """Make sure that training can begin from the weights that the configuration names.

    Raises:
        UserError: there are none, or they are damaged or of another set-up.
    """
    if assembly.config.weights:
        path = checkpoint.find(Path(assembly.config.weights))
        checkpoint.verify(path)
        checkpoint.check_fingerprint(path, checkpoint.describe(path).fingerprint, assembly.fingerprint())


def train(
    config: Config,
    folder: RunFolder,
    *,
    resume: bool,
    phase: str = "train",
    record: bool = False,
    notices: Sequence[str] = (),
) -> Outcome:
    """Train in a locked run folder.

    ``record``: write the configuration into it, once everything that can be refused was looked at:
    a refused start must leave the folder as it was. ``notices``: told then, a line each. A run that is
    resumed before its first checkpoint starts again.

    Raises:
        UserError: the checkpoint to resume from cannot be used, or a member failed for good.
    """
    assembly = Assembly(config)
    require_simulator(assembly)
    start = None
    kept = checkpoint.Kept(folder.checkpoints, config.checkpoint.keep)
    if resume and (kept.newest() or kept.best()):
        path = checkpoint.find(folder.path, resume=True)
        kept.verify(path)
        description = checkpoint.describe(path)
        checkpoint.check_fingerprint(path, description.fingerprint, assembly.fingerprint())
        _check_same_weights(config, description)
        start = (path, _engine_state(path))
        if start[1]["version"] >= config.trainer.updates:
            raise UserError(
                f"{folder.path}: {start[1]['version']} versions are trained already; to go on, give "
                f"trainer.updates above {start[1]['version']} (it is {config.trainer.updates})"
            )
    else:
        check_weights(assembly)
    require_gl(assembly)
    require_videos(assembly)
    _ = assembly.settings, assembly.layout  # all that follows from the configuration: its faults show now
    for notice in notices:
        typer.echo(f"notice: {notice}", err=True)
    with ExitStack() as stack:
        metrics = stack.enter_context(sinks(config, folder))
        if record and start is None:
            folder.describe(dump(config))
        display = stack.enter_context(Display())
        best = kept.best() if resume else None
        score = checkpoint.describe(best).score if best is not None else None
        monitor = Monitor(assembly, metrics, display, phase, float("-inf") if score is None else score)
        if record and start is not None:
            # A resume that cannot work must not change what the next one starts from.
            monitor.on_ready = lambda: folder.describe(dump(config))
        timeline = Timeline() if config.log.trace else None
        if timeline is not None:
            stack.callback(timeline.write, folder.trace)
        runtime = LocalRuntime(assembly, folder.path, monitor, resume=start, timeline=timeline)
        try:
            return _finish(runtime, monitor)
        except UserError as error:
            raise UserError(f"{error}{_remedies(folder, kept)}" if record else str(error)) from error
        except EndedBySignal as end:
            raise EndedBySignal(end.number, f"{end.line}{_remedies(folder, kept)}") from end


def _remedies(folder: RunFolder, kept: checkpoint.Kept) -> str:
    """What to do after a run that ended early."""
    found = []
    if rejected := sorted((folder.path / checkpoint.REJECTED).glob("update-*")):
        found.append(f"see what was not finite with: rlvla3 replay {rejected[0]}")
    if kept.newest() is not None:
        found.append(f"go on with: rlvla3 train {folder.path} --resume")
    return "".join(f"; {remedy}" for remedy in found)


def _engine_state(path: Path) -> dict[str, Any]:
    """The engine's part of a checkpoint.

    Raises:
        UserError: it is damaged.
    """
    file = path / checkpoint.ENGINE
    try:
        state: dict[str, Any] = json.loads(checkpoint.engine_state(path))
        missing = {"incarnation", "version", "evaluated", "flights", "statistics"} - state.keys()
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); use another checkpoint") from error
    if missing:
        raise UserError(f"{file}: lacks {', '.join(sorted(missing))}; use another checkpoint")
    return state


def _check_same_weights(config: Config, description: Description) -> None:
    began = json.loads(description.config).get("weights", "")
    if config.weights != began:
        raise UserError(
            f"weights = {config.weights!r}: a run that is resumed goes on from its checkpoint (it began from "
            f"{began or 'fresh weights'}); leave weights out, or start a new run from them"
        )


def evaluate(
    config: Config,
    weights: Path,
    folder: Path,
    *,
    averaged: bool = True,
    videos: str = "",
    phase: str = "eval",
) -> EvaluationResult:
    """Evaluate a policy on the configured held-out states, each episode once.

    Raises:
        UserError: the policy was made for another set-up, or the run failed.
        EndedBySignal: a signal came before the last episode's end.
    """
    assembly = Assembly(config, training=False, videos=videos)
    require_simulator(assembly)
    source = checkpoint.find(weights)
    checkpoint.verify(source)
    description = checkpoint.describe(source)
    checkpoint.check_fingerprint(source, description.fingerprint, assembly.fingerprint())
    require_gl(assembly)
    require_videos(assembly)
    with Display() as display:
        monitor = Monitor(assembly, Metrics([]), display, phase, version=description.version)
        runtime = LocalRuntime(assembly, folder, monitor, weights=str(source), averaged=averaged)
        outcome = _finish(runtime, monitor)
    if outcome.signal and not monitor.results:
        line = f"ended by {outcome.stop.reason} before all episodes had ended: no result; run it again"
        raise EndedBySignal(outcome.signal, line)
    if not monitor.results:
        raise UserError("the evaluation ended before all its episodes; run it again")
    return monitor.results[0]


def _finish(runtime: LocalRuntime, monitor: Monitor) -> Outcome:
    stop = runtime.run()
    assert runtime.engine is not None
    if stop.failed and runtime.signal:
        raise EndedBySignal(runtime.signal, f"the run ended early: {stop.reason}")
    if stop.failed:
        raise UserError(f"the run ended early: {stop.reason}")
    return Outcome(stop=stop, monitor=monitor, engine=runtime.engine, signal=runtime.signal)
