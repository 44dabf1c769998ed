"""What the engine is told of evaluations, from the configuration and what the simulator says."""

from collections.abc import Iterator

from rlvla3.config import Config
from rlvla3.config_training import inexact
from rlvla3.core.settings import EvaluationSettings, EvaluationStart
from rlvla3.errors import refuse
from rlvla3.messages import Start
from rlvla3.simulators.api import SimulatorSpec


def evaluation_settings(
    config: Config, spec: SimulatorSpec, *, training: bool, videos: str
) -> EvaluationSettings:
    """Which held-out episodes are evaluated, and when.

    Args:
        config: the whole configuration.
        spec: of the simulator.
        training: False for a pure evaluation.
        videos: folder for the recorded episodes; empty: none are.

    Raises:
        UserError: one line for each reason why it cannot be.
    """
    evaluation, envs = config.evaluation, config.simulator.total_envs
    wanted = not training or bool(evaluation.every_versions) or evaluation.at_start
    refuse(_refusals(config, spec, wanted=wanted))
    limits = _limits(config, spec)
    starts = tuple(
        EvaluationStart(
            start=Start(task=task, split="held_out", state=state),
            step_limit=limits[task],
            video=f"{videos}/{name}-{state}.mp4" if state < evaluation.videos and videos else "",
        )
        for state in range(evaluation.episodes)
        for task, name in enumerate(spec.tasks)
    )
    most = envs if not training else evaluation.max_envs or max(envs // 2, 1)
    return EvaluationSettings(
        every_versions=evaluation.every_versions,
        at_start=evaluation.at_start,
        starts=starts if wanted else (),
        max_envs=min(most, envs),
    )


def _refusals(config: Config, spec: SimulatorSpec, *, wanted: bool) -> Iterator[str]:
    evaluation, limit = config.evaluation, config.evaluation.step_limit
    if wanted and spec.endless and (limit == "none" or not all(spec.step_limits)):
        yield (
            f"evaluation.step_limit = {limit}: these tasks have no end of their own; "
            "set simulator.options.step_limits and evaluation.step_limit: task"
        )
    if wanted:
        yield from inexact("evaluation.episodes", evaluation.episodes, spec.exact_with)
    if not isinstance(limit, str) and (len(limit) != len(spec.tasks) or min(limit) < 0):
        yield (
            f"evaluation.step_limit must be task, none, or {len(spec.tasks)} numbers >= 0, one for each "
            f"task; got {list(limit)}"
        )


def _limits(config: Config, spec: SimulatorSpec) -> tuple[int, ...]:
    """Step limit of each task's evaluation episodes; 0: the simulator's own."""
    wanted = config.evaluation.step_limit
    if wanted == "task":
        return spec.step_limits
    return (0,) * len(spec.tasks) if wanted == "none" else wanted
