"""Trajectories in flight: who runs what in which row, and who gets the next credit."""

from collections import deque
from collections.abc import Iterator

from rlvla3.core.evaluation import Evaluation
from rlvla3.core.settings import EngineSettings
from rlvla3.core.staleness import Staleness
from rlvla3.core.starts import Starts
from rlvla3.core.statistics import Statistics
from rlvla3.messages import (
    Channel,
    Env,
    Episode,
    Member,
    Row,
    Start,
    TrajectoryReady,
    TrajectoryStart,
    Version,
)


class Flight:
    """One trajectory from its start until it is queued, dropped or reported."""

    __slots__ = (
        "attempts",
        "channel",
        "ended",
        "env",
        "episode",
        "first_chunk",
        "member",
        "oldest_version",
        "row",
        "start",
        "step_limit",
    )

    def __init__(self, credit: TrajectoryStart, member: Member, attempts: int) -> None:
        self.row = credit.row
        self.env = credit.env
        self.member = member
        self.episode = credit.episode
        self.start = credit.start
        self.channel: Channel = credit.channel
        self.first_chunk = credit.first_chunk
        self.step_limit = credit.step_limit
        self.attempts = attempts
        self.oldest_version: Version | None = None
        self.ended: TrajectoryReady | None = None
        """How it ended, while the value of its last observation is still being computed."""


class _Going:
    """An episode that goes on after a segment."""

    __slots__ = ("attempts", "episode", "next_chunk", "start", "step_limit")

    def __init__(self, flight: Flight, chunks: int) -> None:
        self.episode = flight.episode
        self.start = flight.start
        self.attempts = flight.attempts
        self.next_chunk = flight.first_chunk + chunks
        self.step_limit = flight.step_limit


class Flights:
    """Rows, waiting envs and flights. Evaluation episodes go first but never take a credit."""

    def __init__(
        self, settings: EngineSettings, staleness: Staleness, evaluation: Evaluation, statistics: Statistics
    ) -> None:
        self._settings = settings.training
        self._attempts = settings.health.start_attempts
        self._staleness = staleness
        self._evaluation = evaluation
        self._statistics = statistics
        self.starts = Starts(settings.training.task_weights, settings.training.states)
        self.next_episode = 0
        self._free: deque[Row] = deque(Row(r) for r in range(settings.rows))
        self._flights: dict[Row, Flight] = {}
        self._waiting: deque[Env] = deque()
        self._going: dict[Env, _Going] = {}
        self._member: dict[Env, Member] = {e: s.member for s in settings.topology.slots for e in s.envs}
        self._used: dict[Env, int] = {}
        self._window = -1

    def __getitem__(self, row: Row) -> Flight:
        return self._flights[row]

    def __contains__(self, row: Row) -> bool:
        return row in self._flights

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    @property
    def rollouts(self) -> int:
        """Training trajectories in flight."""
        return sum(flight.channel == "rollout" for flight in self._flights.values())

    def wait(self, env: Env) -> None:
        """The env can run a trajectory."""
        self._waiting.append(env)

    def free(self, row: Row) -> None:
        """Nothing reads or writes the row any more."""
        self._free.append(row)

    def grant(self, lowest: Version, evaluate: bool) -> list[tuple[Member, TrajectoryStart]]:
        """Hand out what may start now. ``lowest`` < 0: no training (nothing is served yet)."""
        granted: list[tuple[Member, TrajectoryStart]] = []
        if evaluate:
            self._grant_evaluation(granted)
        if lowest >= 0:
            self._grant_training(granted, lowest)
        return granted

    def _grant_evaluation(self, granted: list[tuple[Member, TrajectoryStart]]) -> None:
        for env in list(self._waiting):
            if env in self._going or not self._free:
                continue
            episode = self._evaluation.next()
            if episode is None:
                return
            self._waiting.remove(env)
            credit = self._credit(
                env, episode[1].start, "evaluation", step_limit=episode[1].step_limit, video=episode[1].video
            )
            self._evaluation.started(credit.row, episode)
            self._launch(granted, credit, 0)

    def _grant_training(self, granted: list[tuple[Member, TrajectoryStart]], lowest: Version) -> None:
        self._open_window(lowest)
        passed: list[Env] = []
        while self._waiting and self._free and self._may_start(lowest):
            env = self._waiting.popleft()
            if self._settings.quota and self._used.get(env, 0) >= self._settings.quota:
                passed.append(env)
                continue
            self._used[env] = self._used.get(env, 0) + 1
            going = self._going.pop(env, None)
            if going is None:
                start, attempts = self.starts.next()
                credit = self._credit(
                    env, start, "rollout", step_limit=self._settings.step_limits[start.task], video=""
                )
            else:
                attempts = going.attempts
                credit = TrajectoryStart(
                    env=env,
                    row=self._free.popleft(),
                    episode=going.episode,
                    start=going.start,
                    channel="rollout",
                    step_limit=going.step_limit,
                    first_chunk=going.next_chunk,
                    video="",
                )
            self._staleness.start(credit.row, lowest)
            self._statistics.started += 1
            self._launch(granted, credit, attempts)
        self._waiting.extendleft(reversed(passed))

    def _may_start(self, lowest: Version) -> bool:
        total = self._staleness.consumed + self._staleness.outstanding
        return total < self._settings.batch * self._settings.updates and self._staleness.may_start(lowest)

    def _open_window(self, lowest: Version) -> None:
        if self._settings.quota and lowest != self._window:
            self._window = lowest
            self._used.clear()

    def _credit(
        self, env: Env, start: Start, channel: Channel, *, step_limit: int, video: str
    ) -> TrajectoryStart:
        self.next_episode += 1
        return TrajectoryStart(
            env=env,
            row=self._free.popleft(),
            episode=Episode(self.next_episode - 1),
            start=start,
            channel=channel,
            step_limit=step_limit,
            first_chunk=0,
            video=video,
        )

    def _launch(
        self, granted: list[tuple[Member, TrajectoryStart]], credit: TrajectoryStart, attempts: int
    ) -> None:
        member = self._member[credit.env]
        self._flights[credit.row] = Flight(credit, member, attempts)
        granted.append((member, credit))

    def ended(self, event: TrajectoryReady) -> Flight:
        """The env finished its trajectory and waits for the next credit."""
        flight = self._flights[event.row]
        flight.ended = event
        if event.end == "segment" and flight.channel == "rollout":
            self._going[flight.env] = _Going(flight, event.chunks)
        self._waiting.append(flight.env)
        return flight

    def close(self, row: Row) -> Flight:
        """The trajectory leaves the flights (its row stays in use)."""
        return self._flights.pop(row)

    def discard(self, member: Member) -> list[Row]:
        """A Simulator's process is gone: drop what it was running, give the credits back.

        Returns the rows, which are free as soon as no Generator writes into them. Trajectories
        that had ended stay: their data is complete.
        """
        lost = [f for f in self._flights.values() if f.member == member and f.ended is None]
        for flight in lost:
            del self._flights[flight.row]
            if flight.channel == "evaluation":
                self._evaluation.lost(flight.row)
                continue
            self._staleness.drop(flight.row)
            self._statistics.drop("simulator_lost")
            self._retry(flight.start, flight.attempts)
        for env, owner in self._member.items():
            if owner == member:
                self._forget(env)
        return [flight.row for flight in lost]

    def _forget(self, env: Env) -> None:
        going = self._going.pop(env, None)
        if going is not None:
            self._retry(going.start, going.attempts)
        if env in self._waiting:
            self._waiting.remove(env)

    def _retry(self, start: Start, attempts: int) -> None:
        if attempts + 1 < self._attempts:
            self.starts.again(start, attempts + 1)
        else:
            self._statistics.given_up += 1
