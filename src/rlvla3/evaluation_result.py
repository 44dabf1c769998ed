"""What an evaluation found."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlvla3.messages import Trajectory, Version
from rlvla3.metrics import wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One evaluation: success of each episode, in start order.

    Episodes whose initial state solved the task already are told apart: they are in no rate.
    """

    version: Version
    tasks: tuple[str, ...]
    success: tuple[bool, ...]
    task_of: tuple[int, ...]
    sub_steps: tuple[int, ...]
    solved_at_reset: tuple[bool, ...]

    @property
    def counted(self) -> tuple[bool, ...]:
        """Success of the episodes that had something to solve."""
        return tuple(s for s, solved in zip(self.success, self.solved_at_reset, strict=True) if not solved)

    @property
    def rate(self) -> float:
        """Successes / episodes; 0 where every episode began solved."""
        return _share(sum(self.counted), len(self.counted))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the rate; all of [0, 1] where every episode began solved."""
        return wilson(sum(self.counted), len(self.counted)) if self.counted else (0.0, 1.0)

    @property
    def apart(self) -> str:
        """What to add to the rate: the episodes that are not in it."""
        solved = sum(self.solved_at_reset)
        return (
            f" ({solved} more began in a state that solves the task already: not counted)" if solved else ""
        )

    def of_task(self, task: int) -> tuple[bool, ...]:
        """Success of one task's episodes that had something to solve."""
        rows = zip(self.success, self.task_of, self.solved_at_reset, strict=True)
        return tuple(success for success, t, solved in rows if t == task and not solved)

    def rate_of_task(self, task: int) -> float:
        """Success rate of one task."""
        return _share(sum(self.of_task(task)), len(self.of_task(task)))

    @classmethod
    def of(
        cls, version: Version, trajectories: Sequence[Trajectory], tasks: tuple[str, ...]
    ) -> "EvaluationResult":
        """From the engine's report."""
        return cls(
            version=version,
            tasks=tasks,
            success=tuple(t.success for t in trajectories),
            task_of=tuple(t.start.task for t in trajectories),
            sub_steps=tuple(t.sub_steps for t in trajectories),
            solved_at_reset=tuple(t.solved_at_reset for t in trajectories),
        )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
