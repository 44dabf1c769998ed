"""What follows of tasks, groups and learning, from the configuration and what the components say."""

import difflib
from collections.abc import Sequence

from rlvla3.algorithms.api import Groups, Needs
from rlvla3.config import Config
from rlvla3.core.settings import TaskSettings
from rlvla3.errors import UserError
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
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UserError(f"tasks.list: {name!r} is no task of this simulator; {hint}tasks: {', '.join(names)}")


def check_exact(field: str, value: object, exact_with: str) -> None:
    """Make sure that equal starts give equal episodes, where ``field`` needs it.

    Raises:
        UserError: they do not; ``exact_with``: with which option they would.
    """
    if exact_with:
        raise UserError(
            f"{field} = {value}: needs equal starts to give equal episodes, and these resets are not exact; "
            f"use simulator.options.{exact_with}"
        )


def check_groups(config: Config, groups: Groups) -> None:
    """Make sure that groups can be trained whole.

    Raises:
        UserError: they cannot, or what is trained would depend on the order of arrival.
    """
    if groups.size == 1:
        return
    trainer, wants = config.trainer, f"algorithm.kind = {config.algorithm.kind}"
    if trainer.trajectory == "segment":
        raise UserError(
            f"trainer.trajectory = segment: {wants} compares whole episodes in groups; "
            "use trainer.trajectory=episode"
        )
    for field, value in (("batch", trainer.batch), ("micro_batch", trainer.micro_batch)):
        if value % groups.size:
            low = value // groups.size * groups.size
            near = " or ".join(str(n) for n in (low, low + groups.size) if n)
            raise UserError(
                f"trainer.{field} = {value} must be a multiple of {groups.size}: {wants} trains whole groups "
                f"of so many trajectories; nearest: {near}"
            )
    if config.schedule.deterministic and groups.replacements:
        raise UserError(
            f"schedule.deterministic = true: {wants} replaces {groups.replacements} groups of a version with "
            "all scores equal, and which ones would depend on the order of arrival; use no replacements"
        )


def check_learning(config: Config, needs: Needs) -> None:
    """Make sure that what is learned is what the settings say, however the trajectories come.

    Raises:
        UserError: it is not, with the reason.
    """
    kind, segments = config.algorithm.kind, config.trainer.trajectory == "segment"
    if segments and not needs.values:
        raise UserError(
            f"trainer.trajectory = segment: algorithm.kind = {kind} has no values to stand for the rest "
            "of an episode; use trainer.trajectory=episode"
        )
    if needs.whole_batch and config.trainer.members > 1:
        raise UserError(
            f"trainer.members = {config.trainer.members}: algorithm.kind = {kind} estimates from the whole "
            "update, and each member has a part of it; use trainer.members=1"
        )
    if needs.whole_batch and config.trainer.micro_batch != config.trainer.batch:
        raise UserError(
            f"trainer.micro_batch = {config.trainer.micro_batch}: algorithm.kind = {kind} estimates from the "
            f"whole update, which must come in one piece; use trainer.micro_batch={config.trainer.batch}"
        )
    options = config.learner.options
    if isinstance(options, ReinforcementSettings):
        if segments and options.aggregate == "episode":
            raise UserError(
                "learner.options.aggregate = episode: a segment does not know how long its episode will be; "
                "use trainer.trajectory=episode, or aggregate=token"
            )
        _check_streaming(config, needs, options)


def check_together(config: Config, spec: SimulatorSpec) -> None:
    """Where env batches step as a whole, an episode is one trajectory.

    Raises:
        UserError: an episode would have to wait in the middle, for the credit of its next segment.
    """
    if not spec.steps_together:
        return
    whole = f"simulator.kind = {config.simulator.kind} steps its env batches as a whole, so no env can wait"
    if config.trainer.trajectory == "segment":
        raise UserError(
            f"trainer.trajectory = segment: {whole} between two segments; use trainer.trajectory: episode"
        )
    if not all(spec.step_limits):
        raise UserError(
            f"simulator.options.step_limits = 0: {whole} in mid-episode, where trainer.chunks would cut it; "
            "give a step limit"
        )


def _check_streaming(config: Config, needs: Needs, options: ReinforcementSettings) -> None:
    """A gradient is added up before the update is whole: nothing in it may depend on what is missing."""
    if not config.schedule.streams:
        return
    kind, mode = config.algorithm.kind, config.schedule.mode
    if needs.whole_batch:
        raise UserError(
            f"schedule.mode = {mode}: streaming computes gradients before an update is whole, and "
            f"algorithm.kind = {kind} estimates from the whole of it; use schedule.mode=as, or aa with "
            "schedule.streaming=false"
        )
    if options.streamed_statistics != "own" or not needs.normalised:
        return
    if not needs.linear and ":" in kind:
        raise UserError(
            f"learner.options.streamed_statistics = own: algorithm.kind = {kind} does not say that its loss "
            "is linear in the advantage (needs.linear), so it may not be normalised afterwards; use "
            "streamed_statistics=earlier"
        )
    if not needs.linear and config.schedule.lag:
        raise UserError(
            f"learner.options.streamed_statistics = own: with a lag the loss of algorithm.kind = {kind} with "
            "correction none is not linear in the advantage, so it cannot be normalised afterwards; use "
            "streamed_statistics=earlier, or another algorithm.options.correction"
        )
    if config.trainer.sharing == "weights" and config.trainer.members > 1:
        raise UserError(
            "learner.options.streamed_statistics = own: it takes three gradients of one pass, and shared "
            "weights are given back after the first; use streamed_statistics=earlier, or trainer.sharing=none"
        )
