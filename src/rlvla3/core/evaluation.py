"""Evaluation episodes with a pinned version, each exactly once, among the rollouts."""

from collections import deque

from rlvla3.core.settings import EvaluationSettings, EvaluationStart
from rlvla3.messages import Row, Trajectory, Version


class Evaluation:
    """One evaluation at a time; its episodes are handed out like credits."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self.version: Version | None = None
        """The pinned version, while an evaluation is going on."""
        self._pending: deque[tuple[int, EvaluationStart]] = deque()
        self._running: dict[Row, tuple[int, EvaluationStart]] = {}
        self._done: dict[int, Trajectory] = {}
        self.skipped = 0
        """Evaluations that were due while another one was still going on."""

    def due(self, version: Version) -> bool:
        """Whether ``version`` should be evaluated."""
        if not self._settings.starts:
            return False
        if version == 0:
            return self._settings.at_start
        every = self._settings.every_versions
        return every > 0 and version % every == 0

    def begin(self, version: Version) -> bool:
        """Pin ``version``; False (and counted) while another evaluation is going on."""
        if self.version is not None:
            self.skipped += 1
            return False
        self.version = version
        self._pending = deque(enumerate(self._settings.starts))
        self._done = {}
        return True

    def next(self) -> tuple[int, EvaluationStart] | None:
        """The next episode, while fewer than ``max_envs`` are running."""
        if not self._pending or len(self._running) >= self._settings.max_envs:
            return None
        return self._pending.popleft()

    def started(self, row: Row, episode: tuple[int, EvaluationStart]) -> None:
        """The episode runs in ``row``."""
        self._running[row] = episode

    def lost(self, row: Row) -> None:
        """The episode's Simulator is gone: run the same start again."""
        self._pending.appendleft(self._running.pop(row))

    def finished(self, trajectory: Trajectory) -> tuple[Trajectory, ...]:
        """Record an episode; when it was the last one, all of them in start order."""
        index, _ = self._running.pop(trajectory.row)
        self._done[index] = trajectory
        if len(self._done) < len(self._settings.starts):
            return ()
        self.version = None
        return tuple(self._done[i] for i in range(len(self._done)))
