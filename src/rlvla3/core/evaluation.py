"""Evaluation episodes with a pinned version, each exactly once, among the rollouts."""

from collections import deque

from rlvla3.core.groups import NO_UNIT
from rlvla3.core.settings import EvaluationSettings, EvaluationStart
from rlvla3.messages import Episode, Row, Start, Trajectory, Version

FIRST_EPISODE = 1 << 40
"""Evaluation episode i has the number FIRST_EPISODE + i, whoever runs it and however often: its
noise, and so its outcome, does not depend on the number of envs, on the order or on crashes."""


class Planned:
    """One episode of an evaluation."""

    __slots__ = ("attempts", "index", "settings")

    def __init__(self, index: int, settings: EvaluationStart) -> None:
        self.index = index
        self.settings = settings
        self.attempts = 0

    @property
    def episode(self) -> Episode:
        """The number that keys its noise."""
        return Episode(FIRST_EPISODE + self.index)

    @property
    def start(self) -> Start:
        """Task and initial state."""
        return self.settings.start


class Evaluation:
    """One evaluation at a time; its episodes are handed out like credits."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self.version: Version | None = None
        """The pinned version, while an evaluation is going on."""
        self._pending: deque[Planned] = deque()
        self._running: dict[Row, Planned] = {}
        self._done: dict[int, Trajectory] = {}
        self._postponed: Version | None = None
        self.reported: Version | None = None
        """The last version that was evaluated to the end."""
        self.skipped = 0
        """Evaluations that were due while another one was still going on."""

    def due(self, version: Version) -> bool:
        """Whether ``version`` should be evaluated."""
        if not self._settings.starts or version == self.reported:
            return False
        if version == 0:
            return self._settings.at_start
        every = self._settings.every_versions
        return every > 0 and version % every == 0

    def begin(self, version: Version) -> bool:
        """Pin ``version``; False (and counted) while another evaluation is going on."""
        if self.version is not None:
            self._postponed = version
            self.skipped += 1
            return False
        self.version = version
        self._pending = deque(Planned(i, start) for i, start in enumerate(self._settings.starts))
        self._done = {}
        return True

    def resume_postponed(self, version: Version) -> bool:
        """Begin the evaluation that had to be skipped if ``version`` is still the newest."""
        if self.version is not None or self._postponed != version:
            return False
        self._postponed = None
        self.skipped -= 1
        return self.begin(version)

    def next(self) -> Planned | None:
        """The next episode, while fewer than ``max_envs`` are running."""
        if not self._pending or len(self._running) >= self._settings.max_envs:
            return None
        return self._pending.popleft()

    @property
    def waiting(self) -> bool:
        """Whether an episode could start if there were an env for it."""
        return bool(self._pending) and len(self._running) < self._settings.max_envs

    def started(self, row: Row, planned: Planned) -> None:
        """The episode runs in ``row``."""
        self._running[row] = planned

    def lost(self, row: Row, attempts: int) -> bool:
        """The episode's Simulator is gone: run the same start again, at most ``attempts`` times.

        It goes to the end of the line, so that it meets other episodes than those it was lost with.
        Returns whether it was given up; then it counts as a failure, so that as many episodes are
        reported as were asked for.
        """
        planned = self._running.pop(row)
        planned.attempts += 1
        if planned.attempts < attempts:
            self._pending.append(planned)
            return False
        assert self.version is not None
        self._done[planned.index] = Trajectory(
            row=row,
            episode=planned.episode,
            group=NO_UNIT,
            start=planned.start,
            first_chunk=0,
            chunks=0,
            sub_steps=0,
            end="truncated",
            success=False,
            solved_at_reset=False,
            total_reward=0.0,
            oldest_version=self.version,
        )
        return True

    def finished(self, trajectory: Trajectory) -> None:
        """Record an episode."""
        self._done[self._running.pop(trajectory.row).index] = trajectory

    def report(self) -> tuple[Trajectory, ...]:
        """All episodes in start order once the last one ended (the evaluation is over then)."""
        if self.version is None or len(self._done) < len(self._settings.starts):
            return ()
        self.reported, self.version = self.version, None
        return tuple(self._done[i] for i in range(len(self._done)))
