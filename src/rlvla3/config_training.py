"""What follows of tasks, groups and learning, from the configuration and what the components say."""

from collections.abc import Iterator, Sequence

from rlvla3.algorithms.api import Groups, Needs
from rlvla3.config import Config
from rlvla3.core.settings import TaskSettings
from rlvla3.errors import UserError, near_names
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.simulators.api import SimulatorSpec


def task_settings(config: Config, names: Sequence[str]) -> TaskSettings:
    """How the tasks with these names take turns.

    Raises:
        UserError: weights or list do not fit the tasks.
    """
    tasks = config.tasks
    weights = tasks.weights or (1.0,) * len(names)
    if len(weights) != len(names) or min(weights) < 0 or sum(weights) <= 0:
        raise UserError(
            f"tasks.weights must be {len(names)} numbers >= 0, one for each task, "
            f"not all 0; got {list(weights)}"
        )
    if tasks.sampling == "list" and not tasks.list:
        raise UserError(
            "tasks.list is empty: tasks.sampling = list needs the names of tasks, in their order; "
            "set it, or use another tasks.sampling"
        )
    return TaskSettings(
        sampling=tasks.sampling,
        weights=weights,
        order=tuple(_index(name, names) for name in tasks.list),
        floor=tasks.floor,
        seed=config.seed,
        states=tasks.states,
    )


def _index(name: str, names: Sequence[str]) -> int:
    if name in names:
        return names.index(name)
    near = near_names(name, names, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UserError(f"tasks.list: {name!r} is no task of this simulator; {hint}tasks: {', '.join(names)}")


def refusals(config: Config, needs: Needs, spec: SimulatorSpec) -> Iterator[str]:
    """A line for each thing that this algorithm cannot be given, or whose outcome would not be what the
    settings say, however the trajectories come."""
    groups = needs.groups or Groups(size=1)
    yield from _segments(config, needs, spec)
    yield from _groups(config, groups)
    if groups.size > 1:
        yield from inexact("algorithm.kind", config.algorithm.kind, spec.exact_with)
    if config.schedule.deterministic:
        yield from inexact("schedule.deterministic", "true", spec.exact_with)
    yield from _whole_batch(config, needs)
    options = config.learner.options
    if isinstance(options, ReinforcementSettings):
        yield from _aggregate(config, options)
        yield from _streaming(config, needs, options)
    if spec.steps_together and not all(spec.step_limits):
        yield (
            f"simulator.options.step_limits = 0: {_whole(config)} in mid-episode, where trainer.chunks would "
            "cut it; give a step limit"
        )


def inexact(field: str, value: object, exact_with: str) -> Iterator[str]:
    """Equal starts do not give equal episodes, and ``field`` needs it; ``exact_with``: the option with which
    they would."""
    if exact_with:
        yield (
            f"{field} = {value}: needs equal starts to give equal episodes, and these resets are not exact; "
            f"use simulator.options.{exact_with}"
        )


def _whole(config: Config) -> str:
    return f"simulator.kind = {config.simulator.kind} steps its env batches as a whole, so no env can wait"


def _segments(config: Config, needs: Needs, spec: SimulatorSpec) -> Iterator[str]:
    """One line, whatever the number of reasons: the remedy is the same."""
    if config.trainer.trajectory != "segment":
        return
    kind, why = f"algorithm.kind = {config.algorithm.kind}", []
    if needs.groups is not None:
        why.append(f"{kind} compares whole episodes in groups")
    elif not needs.values:
        why.append(f"{kind} has no values to stand for the rest of an episode")
    if spec.steps_together:
        why.append(f"{_whole(config)} between two segments")
    if why:
        yield f"trainer.trajectory = segment: {', and '.join(why)}; use trainer.trajectory=episode"


def _groups(config: Config, groups: Groups) -> Iterator[str]:
    """Groups are trained whole, and which ones must not depend on the order of arrival."""
    if groups.size == 1:
        return
    trainer, wants = config.trainer, f"algorithm.kind = {config.algorithm.kind}"
    for field, value in (("batch", trainer.batch), ("micro_batch", trainer.micro_batch)):
        if value % groups.size:
            low = value // groups.size * groups.size
            near = " or ".join(str(n) for n in (low, low + groups.size) if n)
            yield (
                f"trainer.{field} = {value} must be a multiple of {groups.size}: {wants} trains whole groups "
                f"of so many trajectories; nearest: {near}"
            )
    if config.schedule.deterministic and groups.replacements:
        yield (
            f"schedule.deterministic = true: {wants} replaces {groups.replacements} groups of a version with "
            "all scores equal, and which ones would depend on the order of arrival; use no replacements"
        )


def _whole_batch(config: Config, needs: Needs) -> Iterator[str]:
    if not needs.whole_batch:
        return
    trainer, kind = config.trainer, config.algorithm.kind
    if trainer.members > 1:
        yield (
            f"trainer.members = {trainer.members}: algorithm.kind = {kind} estimates from the whole "
            "update, and each member has a part of it; use trainer.members=1"
        )
    if trainer.micro_batch != trainer.batch:
        yield (
            f"trainer.micro_batch = {trainer.micro_batch}: algorithm.kind = {kind} estimates from the "
            f"whole update, which must come in one piece; use trainer.micro_batch={trainer.batch}"
        )


def _aggregate(config: Config, options: ReinforcementSettings) -> Iterator[str]:
    if config.trainer.trajectory == "segment" and options.aggregate == "episode":
        yield (
            "learner.options.aggregate = episode: a segment does not know how long its episode will be; "
            "use trainer.trajectory=episode, or aggregate=token"
        )


def _streaming(config: Config, needs: Needs, options: ReinforcementSettings) -> Iterator[str]:
    """A gradient is added up before the update is whole: nothing in it may depend on what is missing."""
    if not config.schedule.streams:
        return
    kind, mode = config.algorithm.kind, config.schedule.mode
    if needs.whole_batch:
        yield (
            f"schedule.mode = {mode}: streaming computes gradients before an update is whole, and "
            f"algorithm.kind = {kind} estimates from the whole of it; use schedule.mode=as, or aa with "
            "schedule.streaming=false"
        )
    elif options.streamed_statistics == "own" and needs.normalised:
        yield from _normalised_afterwards(config, needs)


def _normalised_afterwards(config: Config, needs: Needs) -> Iterator[str]:
    kind, field = config.algorithm.kind, "learner.options.streamed_statistics = own"
    if not needs.linear and ":" in kind:
        yield (
            f"{field}: algorithm.kind = {kind} does not say that its loss "
            "is linear in the advantage (needs.linear), so it may not be normalised afterwards; use "
            "streamed_statistics=earlier"
        )
    elif not needs.linear and config.schedule.lag:
        yield (
            f"{field}: with a lag the loss of algorithm.kind = {kind} with "
            "correction none is not linear in the advantage, so it cannot be normalised afterwards; use "
            "streamed_statistics=earlier, or another algorithm.options.correction"
        )
    elif config.trainer.sharing == "weights" and config.trainer.members > 1:
        yield (
            f"{field}: it takes three gradients of one pass, and shared "
            "weights are given back after the first; use streamed_statistics=earlier, or trainer.sharing=none"
        )
