"""Counters that the engine keeps for people; no decision depends on them."""

from dataclasses import dataclass, field

from rlvla3.messages import Trajectory


@dataclass(slots=True)
class Statistics:
    """Totals since the start of the run; a resume continues them."""

    started: int = 0
    """Training trajectories that took a credit."""
    finished: int = 0
    trained: int = 0
    trained_episodes: list[int] = field(default_factory=list)
    """Episodes of each task of which the beginning was trained."""
    equal_groups: int = 0
    """Groups whose members all had the same score."""
    replaced_groups: int = 0
    """Those of them that were dropped for fresh ones."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Training trajectories by the reason they were discarded for."""
    sub_steps: int = 0
    """Executed sub-steps of finished training trajectories."""
    evaluation_sub_steps: int = 0
    trained_sub_steps: int = 0
    trained_chunks: int = 0
    requests: int = 0
    cancelled: int = 0
    batches: int = 0
    samples: int = 0
    queue_delay_s: float = 0.0
    """Sum over requests of (batch start - arrival)."""
    queue_delay_max_s: float = 0.0
    turns: int = 0
    """Observations that came, with the time from a slot's actions (or start) to each."""
    turn_s: float = 0.0
    turn_max_s: float = 0.0
    lag_sum: int = 0
    lag_max: int = 0
    skipped_updates: int = 0
    given_up: int = 0
    """Episode starts, of training and of evaluation, that failed too often to be tried again."""
    replaced: dict[str, int] = field(default_factory=dict)
    """Members by the number of times they were replaced."""
    recycled: dict[str, int] = field(default_factory=dict)
    """Simulators by the number of times that a fresh process took over as planned."""
    successes: int = 0
    episodes: int = 0
    """Training episodes that ended, and how many of them succeeded; without those of ``solved_at_reset``."""
    solved_at_reset: int = 0
    """Training episodes that ended and had begun in a state that solves the task already."""

    def turn(self, seconds: float) -> None:
        """Count an observation that came after so long."""
        self.turns += 1
        self.turn_s += seconds
        if seconds > self.turn_max_s:
            self.turn_max_s = seconds

    def finish(self, trajectory: Trajectory) -> None:
        """Count a finished training trajectory."""
        self.finished += 1
        self.sub_steps += trajectory.sub_steps
        if trajectory.end == "segment":
            return
        if trajectory.solved_at_reset:
            self.solved_at_reset += 1
            return
        self.episodes += 1
        self.successes += trajectory.success

    def drop(self, reason: str, count: int = 1) -> None:
        """Count discarded trajectories."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count
