"""Trajectories in flight: who runs what in which row, and who gets the next credit."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from rlvla3.core.evaluation import Evaluation
from rlvla3.core.groups import NO_UNIT, Groups
from rlvla3.core.recycling import Recycling
from rlvla3.core.settings import EngineSettings
from rlvla3.core.staleness import Staleness
from rlvla3.core.starts import Numbers, Starts
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
        "unit",
    )

    def __init__(self, credit: TrajectoryStart, member: Member, attempts: int, unit: int) -> None:
        self.row = credit.row
        self.env = credit.env
        self.member = member
        self.episode = credit.episode
        self.start = credit.start
        self.channel: Channel = credit.channel
        self.first_chunk = credit.first_chunk
        self.step_limit = credit.step_limit
        self.attempts = attempts
        self.unit = unit
        """What it is trained together with, and whose credit it runs on."""
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


class Flights:
    """Rows, waiting envs and flights. Evaluation episodes go first but never take a credit."""

    def __init__(
        self,
        settings: EngineSettings,
        staleness: Staleness,
        groups: Groups,
        evaluation: Evaluation,
        statistics: Statistics,
        recycling: Recycling,
    ) -> None:
        self._recycling = recycling
        self._settings = settings.training
        self._attempts = settings.health.start_attempts
        self._staleness = staleness
        self._groups = groups
        self._evaluation = evaluation
        self._statistics = statistics
        self._owner: dict[Env, Member] = {e: s.member for s in settings.topology.slots for e in s.envs}
        fixed = tuple(sorted(self._owner)) if settings.training.quota else ()
        self._starts = Starts(settings.training.tasks, fixed)
        self._numbers = Numbers(fixed)
        self._free: deque[Row] = deque(Row(r) for r in range(settings.rows))
        self._grouped = settings.training.group_size > 1
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
        for env, owner in self._owner.items():
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
        return total < self._settings.units * self._settings.updates

    def _grant_evaluation(self, granted: list[tuple[Member, TrajectoryStart]], interrupt: bool) -> None:
        """Start evaluation episodes, in envs that are between episodes.

        Episodes without an end would keep their envs for ever: they are interrupted once
        training needs no more of them.
        """
        for env in list(self._waiting):
            if not self._evaluation.waiting or not self._row_left():
                return
            if (env in self._going and not interrupt) or self._retires(env):
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
            self._launch(granted, credit, 0, NO_UNIT)

    def _grant_training(self, granted: list[tuple[Member, TrajectoryStart]], lowest: Version) -> None:
        quota = self._settings.quota
        if quota and lowest != self._window:
            self._window = lowest
            self._used.clear()
        for env in list(self._waiting):
            if not (self._may_start(lowest) and self._row_left()):
                return
            if env not in self._going and self._retires(env):
                continue
            if quota:
                if self._used.get(env, 0) >= quota:
                    continue
                self._used[env] = self._used.get(env, 0) + 1
            del self._waiting[env]
            going, unit = self._member(env, lowest) if self._grouped else self._single(env, lowest)
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
            self._statistics.started += 1
            self.rollouts += 1
            self._launch(granted, credit, going.attempts, unit)

    def _may_start(self, lowest: Version) -> bool:
        """Whether a trajectory may start; a further member of a group needs no credit of its own."""
        return self._groups.waiting or (self._wanted and self._staleness.may_start(lowest))

    def _single(self, env: Env, lowest: Version) -> tuple[_Going, int]:
        """The next trajectory of the env's episode, or the first one of a new episode; and its unit."""
        going = self._going.pop(env, None)
        if going is None:
            start, attempts = self._starts.next(env)
            limit = self._settings.step_limits[start.task]
            going = _Going(self._numbers.next(env), start, attempts, limit, 0)
        return going, self._groups.take(lowest)

    def _member(self, env: Env, lowest: Version) -> tuple[_Going, int]:
        """The next member of the groups that were begun, or the first one of a new group; and its unit."""
        if not self._groups.waiting:
            start, attempts = self._starts.next(env)
            episodes = [self._numbers.next(env) for _ in range(self._settings.group_size)]
            self._groups.open(start, episodes, attempts, lowest)
        place = self._groups.next()
        limit = self._settings.step_limits[place.start.task]
        return _Going(place.episode, place.start, place.attempts, limit, 0), place.unit

    def _launch(
        self,
        granted: list[tuple[Member, TrajectoryStart]],
        credit: TrajectoryStart,
        attempts: int,
        unit: int,
    ) -> None:
        member = self._owner[credit.env]
        self._flights[credit.row] = Flight(credit, member, attempts, unit)
        granted.append((member, credit))
        if credit.first_chunk == 0:
            self._recycling.begun(member)

    def _retires(self, env: Env) -> bool:
        return self._owner[env] == self._recycling.retiring

    def retire(self, member: Member) -> bool:
        """Whether all envs of a Simulator that is retiring are between episodes; they get nothing then
        until they wait again. Episodes that nobody wants to go on with are interrupted: nothing else
        would end them."""
        going = [env for env in self._going if self._owner[env] == member]
        if (going and self._wanted) or any(f.member == member and f.ended is None for f in self):
            return False
        for env in going:
            del self._going[env]
        self.suspend(member)
        return True

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
            self._statistics.drop("simulator_lost")
            if self._grouped:
                self._lose_member(flight)
                continue
            self._staleness.drop(flight.unit)
            if self._used.get(flight.env):
                self._used[flight.env] -= 1
            self._retry(flight.env, flight.start, flight.attempts)
        for env, owner in self._owner.items():
            going = self._going.pop(env, None) if owner == member else None
            if going is not None:
                self._retry(env, going.start, going.attempts)
        return [flight.row for flight in lost]

    def _lose_member(self, flight: Flight) -> None:
        again = self._numbers.next(flight.env)
        for trajectory in self._groups.lost(flight.unit, flight.attempts, again):
            self._statistics.drop("group_given_up")
            self.free(trajectory.row)

    def _retry(self, env: Env, start: Start, attempts: int) -> None:
        if attempts + 1 < self._attempts:
            self._starts.again(env, start, attempts + 1)
        else:
            self._statistics.given_up += 1

    # --- what is trained -----------------------------------------------------------------------

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each task among the starts to come."""
        return self._starts.shares

    def trained(self, trajectories: list[Trajectory]) -> None:
        """An update is done: how its episodes ended may change which tasks are started."""
        self._starts.trained(trajectories)

    # --- checkpoints ---------------------------------------------------------------------------

    def snapshot(self, untrained: list[Trajectory]) -> dict[str, Any]:
        """JSON-ready state. ``untrained``: what Intake holds.

        Each episode of which anything is untrained is started again from its beginning, once; of a group
        all of them are, by its one start.
        """
        flying = [flight for flight in self._flights.values() if flight.channel == "rollout"]
        if self._grouped:
            again = [(Env(-1), start) for start in self._groups.unfinished(untrained)]
        else:
            again = self._unfinished(untrained, flying)
        return {
            "numbers": self._numbers.snapshot(),
            "units": self._groups.units,
            "starts": self._starts.snapshot(again),
            "unfinished": len(flying) + len(untrained) + self._groups.finished_members,
        }

    def _unfinished(self, untrained: list[Trajectory], flying: list[Flight]) -> list[tuple[Env, Start]]:
        again: dict[Episode, tuple[Env, Start]] = {}
        for trajectory in untrained:
            again[trajectory.episode] = (self._numbers.env(trajectory.episode), trajectory.start)
        for flight in flying:
            again[flight.episode] = (flight.env, flight.start)
        for env, going in self._going.items():
            again[going.episode] = (env, going.start)
        return [again[episode] for episode in sorted(again)]

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._starts.restore(state["starts"])
        self._numbers.restore(state["numbers"])
        self._groups.units = state["units"]
        if state["unfinished"]:
            self._statistics.drop("resumed", state["unfinished"])
