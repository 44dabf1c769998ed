"""What a configuration would do on a machine of known costs: its own engine in virtual time."""

import dataclasses
from dataclasses import dataclass

from rlvla3.assembly import Assembly
from rlvla3.core.engine import Engine
from rlvla3.core.settings import EngineSettings
from rlvla3.costs import Costs
from rlvla3.runtime.virtual import VirtualRuntime, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Figures of the versions after the first; the first one fills the pipeline."""

    steps_per_s: float
    """Executed sub-steps per second."""
    trained_steps_per_s: float
    """Trained sub-steps per second."""
    version_s: float
    """Seconds of one version."""
    engine: Engine
    """The engine as it was at the end."""


def predict(assembly: Assembly, costs: Costs, versions: int, seed: int = 0) -> Prediction:
    """Run ``versions`` versions and one more (the first) in virtual time.

    Every episode is taken to run to its step limit, so a policy that succeeds early is faster.
    Evaluation is left out.

    Raises:
        UserError: the configuration has no longest trajectory.
        RuntimeError: nothing could happen any more: these settings would hang.
    """
    first = _run(assembly, costs, 1, seed)
    last = _run(assembly, costs, versions + 1, seed)
    seconds = max(last.report.seconds - first.report.seconds, 1e-12)
    before, after = first.engine.statistics, last.engine.statistics
    return Prediction(
        steps_per_s=(after.sub_steps - before.sub_steps) / seconds,
        trained_steps_per_s=(after.trained_sub_steps - before.trained_sub_steps) / seconds,
        version_s=seconds / versions,
        engine=last.engine,
    )


def _run(assembly: Assembly, costs: Costs, updates: int, seed: int) -> VirtualRuntime:
    config = assembly.config
    workload = Workload(
        chunk=config.simulator.chunk,
        max_chunks=assembly.chunks,
        episode_chunks=lambda task, episode: _episode_chunks(assembly, task),
        # Of each two episodes one, so that groups have members to compare.
        success=lambda task, episode: episode % 2 == 0,
        lanes=assembly.slots_at_once,
        streaming=config.schedule.streams,
    )
    runtime = VirtualRuntime(_settings(assembly, updates), costs, workload, seed=seed)
    runtime.run()
    return runtime


def _settings(assembly: Assembly, updates: int) -> EngineSettings:
    settings = assembly.settings
    return dataclasses.replace(
        settings,
        training=dataclasses.replace(settings.training, updates=updates),
        evaluation=dataclasses.replace(settings.evaluation, starts=(), every_versions=0, at_start=False),
    )


def _episode_chunks(assembly: Assembly, task: int) -> int:
    limit = assembly.spec.step_limits[task]
    # Without a limit an episode outlives any prediction.
    return -(-limit // assembly.config.simulator.chunk) if limit else 1 << 40
