"""Health: who is up, who is overdue, who may be replaced."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from rlvla3.core.settings import HealthSettings
from rlvla3.messages import Member

_NEVER = float("inf")


class Up(Enum):
    """State of a member's process. ``LOST`` may still write; ``GONE`` cannot."""

    STARTING = "starting"
    UP = "up"
    LOST = "lost"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A member that missed a deadline."""

    member: Member
    reason: str


class _Work:
    """Operations that a member was given; it has ``timeout_s`` for each, one after the other."""

    __slots__ = ("due_s", "open", "timeout_s")

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self.timeout_s = timeout_s
        self.due_s = now_s + timeout_s
        self.open: list[str] = []


class Health:
    """Heartbeats and operation deadlines of all members."""

    def __init__(self, settings: HealthSettings, members: tuple[Member, ...], now_s: float) -> None:
        self._settings = settings
        self.state = dict.fromkeys(members, Up.STARTING)
        self._seen_s = dict.fromkeys(members, now_s)
        self._work: dict[Member, _Work] = {}
        self.restarts = dict.fromkeys(members, 0)
        """Replacements of each member over the run."""
        self._replaced_s: dict[Member, deque[float]] = {member: deque() for member in members}
        """When, as long as they count."""
        self._look_s = now_s
        """No deadline is earlier; heartbeats move deadlines on without moving this."""

    def up(self, member: Member) -> bool:
        """Whether the member is working."""
        return self.state[member] is Up.UP

    def all_up(self, members: tuple[Member, ...]) -> bool:
        """Whether all of them are working; what they do together needs every one."""
        return all(self.state[member] is Up.UP for member in members)

    def seen(self, member: Member, now_s: float) -> None:
        """Something arrived from the member."""
        self._seen_s[member] = now_s

    def ready(self, member: Member, now_s: float) -> None:
        """The member finished its set-up."""
        self.state[member] = Up.UP
        self._seen_s[member] = now_s
        self._look_s = now_s

    def begin(self, member: Member, what: str, timeout_s: float, now_s: float) -> None:
        """The member was given an operation; its time runs from when the one before it ended."""
        work = self._work.get(member)
        if work is None:
            work = self._work[member] = _Work(timeout_s, now_s)
            self._look_s = min(self._look_s, work.due_s)
        work.open.append(what)

    def end(self, member: Member, what: str, now_s: float) -> None:
        """An operation ended.

        Raises:
            RuntimeError: the member was not given such an operation.
        """
        work = self._work.get(member)
        if work is None or what not in work.open:
            raise RuntimeError(f"{member} ended {what} that it was not given")
        work.open.remove(what)
        work.due_s = now_s + work.timeout_s
        if not work.open:
            del self._work[member]

    def lost(self, member: Member, now_s: float) -> bool:
        """Mark as lost; returns whether it may be replaced (and counts the replacement)."""
        self.state[member] = Up.LOST
        self._work.pop(member, None)
        recent = self._replaced_s[member]
        while recent and now_s >= recent[0] + self._settings.restart_window_s:
            recent.popleft()
        if len(recent) >= self._settings.restarts:
            return False
        recent.append(now_s)
        self.restarts[member] += 1
        return True

    def retire(self, member: Member) -> None:
        """Its process is about to be replaced as planned: no loss, and not counted as one."""
        self.state[member] = Up.LOST

    def reaped(self, member: Member, restarting: bool, now_s: float) -> None:
        """The process is gone; a replacement is starting, or none will come."""
        self.state[member] = Up.STARTING if restarting else Up.GONE
        self._seen_s[member] = now_s
        self._look_s = now_s

    def overdue(self, now_s: float) -> list[Overdue]:
        """Members that missed a deadline by now."""
        if now_s < self._look_s:
            return []
        found = []
        self._look_s = _NEVER
        for member in self.state:
            due_s, reason = self._deadline(member, now_s)
            if now_s >= due_s:
                found.append(Overdue(member=member, reason=reason))
            else:
                self._look_s = min(self._look_s, due_s)
        return found

    def deadline_s(self) -> float:
        """When ``overdue`` should be asked next; at most once too often for each heartbeat deadline."""
        return self._look_s

    def _deadline(self, member: Member, now_s: float) -> tuple[float, str]:
        """A member's first deadline, and what to say of it once it has passed.

        Deadlines are compared in one form, ``now_s >= due_s``: comparing a difference of times with the
        timeout can round the other way and would then ask for the same Tick for ever.
        """
        seen_s, state = self._seen_s[member], self.state[member]
        if state is Up.STARTING:
            return seen_s + self._settings.startup_timeout_s, f"not ready after {now_s - seen_s:.0f} s"
        if state is not Up.UP:
            return _NEVER, ""
        heartbeat_s = seen_s + self._settings.heartbeat_timeout_s
        work = self._work.get(member)
        if work is not None and work.due_s < heartbeat_s:
            return work.due_s, f"{work.open[0]} has taken more than {work.timeout_s:.0f} s"
        return heartbeat_s, f"no heartbeat for {now_s - seen_s:.1f} s"
