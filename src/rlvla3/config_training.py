"""What the engine is told of tasks and groups, from the configuration and what the components say."""

import difflib
from collections.abc import Sequence

from rlvla3.algorithms.api import Groups
from rlvla3.config import Config
from rlvla3.core.settings import TaskSettings
from rlvla3.errors import UserError


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
