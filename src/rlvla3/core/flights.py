"""Trajectories in flight: who runs what in which row, and who gets the next credit."""

from collections import deque
from collections.abc import Iterator
from typing import Any

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
    Trajectory,
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
    """An episode that an env is in the middle of, or begins."""

    __slots__ = ("attempts", "episode", "next_chunk", "start", "step_limit")

    def __init__(
        self, episode: Episode, start: Start, attempts: int, step_limit: int, next_chunk: int
    ) -> None:
        self.episode = episode
        self.start = start
        self.attempts = attempts
        self.step_limit = step_limit
        self.next_chunk = next_chunk


class _Numbers:
    """Training episode numbers. With ``fixed`` envs the k-th of the i-th of E envs is k * E + i."""

    def __init__(self, fixed: tuple[Env, ...]) -> None:
        self._fixed = fixed
        self._rank = {env: rank for rank, env in enumerate(fixed)}
        self._next = [0] * max(1, len(fixed))

    def next(self, env: Env) -> Episode:
        rank = self._rank.get(env, 0)
        self._next[rank] += 1
        return Episode((self._next[rank] - 1) * len(self._next) + rank)

    def env(self, episode: Episode) -> Env:
        """Whose episode it is; any env where none is fixed."""
        return self._fixed[episode % len(self._fixed)] if self._fixed else Env(-1)

    def snapshot(self) -> list[int]:
        return list(self._next)

    def restore(self, state: list[int]) -> None:
        self._next = list(state)


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
        self._member: dict[Env, Member] = {e: s.member for s in settings.topology.slots for e in s.envs}
        fixed = tuple(sorted(self._member)) if settings.training.quota else ()
        self._starts = Starts(settings.training.task_weights, settings.training.states, fixed)
        self._numbers = _Numbers(fixed)
        self._free: deque[Row] = deque(Row(r) for r in range(settings.rows))
        self._flights: dict[Row, Flight] = {}
        self._waiting: dict[Env, None] = {}
        """In the order in which they became free."""
        self._going: dict[Env, _Going] = {}
        self._used: dict[Env, int] = {}
        """Trajectories of the present version that each env took from its quota."""
        self._window = -1
        self.rollouts = 0
        """Training trajectories in flight."""
        self.starved = False
        """Whether an env waits for nothing but a row."""

    def __getitem__(self, row: int) -> Flight:
        return self._flights[row]  # type: ignore[index]

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())

    # --- envs and rows -------------------------------------------------------------------------

    def wait(self, env: Env) -> None:
        """The env can run a trajectory."""
        self._waiting[env] = None

    def suspend(self, member: Member) -> None:
        """The Simulator is lost: its envs get nothing until they wait again."""
        for env, owner in self._member.items():
            if owner == member:
                self._waiting.pop(env, None)

    def free(self, row: Row) -> None:
        """Nothing reads or writes the row any more."""
        self._free.append(row)

    # --- what may start ------------------------------------------------------------------------

    def grant(self, lowest: Version, evaluate: bool) -> list[tuple[Member, TrajectoryStart]]:
        """Hand out what may start now. ``lowest`` < 0: no training (nothing is served yet)."""
        self.starved = False
        if not self._waiting:
            return []
        granted: list[tuple[Member, TrajectoryStart]] = []
        if evaluate and self._evaluation.waiting:
            self._grant_evaluation(granted, interrupt=lowest < 0 or not self._wanted)
        if lowest >= 0:
            self._grant_training(granted, lowest)
        return granted

    def _row_left(self) -> bool:
        self.starved = not self._free
        return not self.starved

    @property
    def _wanted(self) -> bool:
        """Whether the updates to come need more trajectories than were started."""
        total = self._staleness.consumed + self._staleness.outstanding
        return total < self._settings.batch * self._settings.updates

    def _grant_evaluation(self, granted: list[tuple[Member, TrajectoryStart]], interrupt: bool) -> None:
        """Start evaluation episodes, in envs that are between episodes.

        Episodes without an end would keep their envs for ever: they are interrupted once
        training needs no more of them.
        """
        for env in list(self._waiting):
            if not self._evaluation.waiting or not self._row_left():
                return
            if env in self._going and not interrupt:
                continue
            planned = self._evaluation.next()
            assert planned is not None
            del self._waiting[env]
            self._going.pop(env, None)
            credit = TrajectoryStart(
                env=env,
                row=self._free.popleft(),
                episode=planned.episode,
                start=planned.start,
                channel="evaluation",
                step_limit=planned.settings.step_limit,
                first_chunk=0,
                video=planned.settings.video,
            )
            self._evaluation.started(credit.row, planned)
            self._launch(granted, credit, 0)

    def _grant_training(self, granted: list[tuple[Member, TrajectoryStart]], lowest: Version) -> None:
        quota = self._settings.quota
        if quota and lowest != self._window:
            self._window = lowest
            self._used.clear()
        for env in list(self._waiting):
            if not (self._wanted and self._staleness.may_start(lowest) and self._row_left()):
                return
            if quota:
                if self._used.get(env, 0) >= quota:
                    continue
                self._used[env] = self._used.get(env, 0) + 1
            del self._waiting[env]
            credit, attempts = self._training_credit(env)
            self._staleness.start(credit.row, lowest)
            self._statistics.started += 1
            self.rollouts += 1
            self._launch(granted, credit, attempts)

    def _training_credit(self, env: Env) -> tuple[TrajectoryStart, int]:
        going = self._going.pop(env, None)
        if going is None:
            start, attempts = self._starts.next(env)
            limit = self._settings.step_limits[start.task]
            going = _Going(self._numbers.next(env), start, attempts, limit, 0)
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
        return credit, going.attempts

    def _launch(
        self, granted: list[tuple[Member, TrajectoryStart]], credit: TrajectoryStart, attempts: int
    ) -> None:
        member = self._member[credit.env]
        self._flights[credit.row] = Flight(credit, member, attempts)
        granted.append((member, credit))

    def reopen_quota(self) -> None:
        """An update was skipped: every env runs its quota of this version once more."""
        self._used.clear()

    # --- what ended ----------------------------------------------------------------------------

    def ended(self, event: TrajectoryReady) -> Flight:
        """The env finished its trajectory and waits for the next credit."""
        flight = self._flights[event.row]
        flight.ended = event
        if event.end == "segment" and flight.channel == "rollout":
            self._going[flight.env] = _Going(
                flight.episode,
                flight.start,
                flight.attempts,
                flight.step_limit,
                flight.first_chunk + event.chunks,
            )
        self.wait(flight.env)
        return flight

    def close(self, row: Row) -> Flight:
        """The trajectory leaves the flights (its row stays in use)."""
        flight = self._flights.pop(row)
        self.rollouts -= flight.channel == "rollout"
        return flight

    def discard(self, member: Member) -> list[Row]:
        """A Simulator's process is gone: drop what it was running, give the credits back.

        Returns the rows, which are free as soon as no Generator writes into them. Trajectories
        that had ended stay: their data is complete.
        """
        lost = [f for f in self._flights.values() if f.member == member and f.ended is None]
        for flight in lost:
            self.close(flight.row)
            if flight.channel == "evaluation":
                self._statistics.given_up += self._evaluation.lost(flight.row, self._attempts)
                continue
            self._staleness.drop(flight.row)
            self._statistics.drop("simulator_lost")
            if self._used.get(flight.env):
                self._used[flight.env] -= 1
            self._retry(flight.env, flight.start, flight.attempts)
        for env, owner in self._member.items():
            going = self._going.pop(env, None) if owner == member else None
            if going is not None:
                self._retry(env, going.start, going.attempts)
        return [flight.row for flight in lost]

    def _retry(self, env: Env, start: Start, attempts: int) -> None:
        if attempts + 1 < self._attempts:
            self._starts.again(env, start, attempts + 1)
        else:
            self._statistics.given_up += 1

    # --- checkpoints ---------------------------------------------------------------------------

    def snapshot(self, waiting: list[Trajectory]) -> dict[str, Any]:
        """JSON-ready state. ``waiting``: finished trajectories that are not trained yet.

        Each episode of which anything is untrained is started again from its beginning, once.
        """
        flying = [flight for flight in self._flights.values() if flight.channel == "rollout"]
        again: dict[Episode, tuple[Env, Start]] = {}
        for trajectory in waiting:
            again[trajectory.episode] = (self._numbers.env(trajectory.episode), trajectory.start)
        for flight in flying:
            again[flight.episode] = (flight.env, flight.start)
        for env, going in self._going.items():
            again[going.episode] = (env, going.start)
        return {
            "numbers": self._numbers.snapshot(),
            "starts": self._starts.snapshot([again[episode] for episode in sorted(again)]),
            "unfinished": len(flying) + len(waiting),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._starts.restore(state["starts"])
        self._numbers.restore(state["numbers"])
        if state["unfinished"]:
            self._statistics.drop("resumed", state["unfinished"])
