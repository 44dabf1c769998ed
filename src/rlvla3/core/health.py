"""Health: who is up, who is overdue, who may be replaced."""

from dataclasses import dataclass
from enum import Enum

from rlvla3.core.settings import HealthSettings
from rlvla3.messages import Member


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


class Health:
    """Heartbeats and operation deadlines of all members."""

    def __init__(self, settings: HealthSettings, members: tuple[Member, ...], now_s: float) -> None:
        self._settings = settings
        self.state = dict.fromkeys(members, Up.STARTING)
        self._seen_s = dict.fromkeys(members, now_s)
        self._busy: dict[Member, tuple[float, str]] = {}
        self.restarts = dict.fromkeys(members, 0)

    def up(self, member: Member) -> bool:
        """Whether the member is working."""
        return self.state[member] is Up.UP

    def seen(self, member: Member, now_s: float) -> None:
        """Something arrived from the member."""
        self._seen_s[member] = now_s

    def ready(self, member: Member, now_s: float) -> None:
        """The member finished its set-up."""
        self.state[member] = Up.UP
        self._seen_s[member] = now_s

    def busy(self, member: Member, until_s: float, what: str) -> None:
        """The member was given an operation with a deadline."""
        self._busy[member] = (until_s, what)

    def idle(self, member: Member) -> None:
        """The operation ended."""
        self._busy.pop(member, None)

    def lost(self, member: Member) -> bool:
        """Mark as lost; returns whether it may be replaced (and counts the replacement)."""
        self.state[member] = Up.LOST
        self._busy.pop(member, None)
        if self.restarts[member] >= self._settings.restarts:
            return False
        self.restarts[member] += 1
        return True

    def reaped(self, member: Member, restarting: bool, now_s: float) -> None:
        """The process is gone; a replacement is starting, or none will come."""
        self.state[member] = Up.STARTING if restarting else Up.GONE
        self._seen_s[member] = now_s

    def overdue(self, now_s: float) -> list[Overdue]:
        """Members that missed a deadline by now."""
        found = []
        for member, state in self.state.items():
            silent = now_s - self._seen_s[member]
            if state is Up.STARTING and silent >= self._settings.startup_timeout_s:
                found.append(Overdue(member=member, reason=f"not ready {silent:.0f} s after its start"))
            elif state is Up.UP and silent >= self._settings.heartbeat_timeout_s:
                found.append(Overdue(member=member, reason=f"no heartbeat for {silent:.1f} s"))
            elif state is Up.UP and member in self._busy and now_s >= self._busy[member][0]:
                found.append(Overdue(member=member, reason=f"{self._busy[member][1]} is overdue"))
        return found

    def deadline_s(self) -> float:
        """When ``overdue`` should be asked next."""
        deadline = float("inf")
        for member, state in self.state.items():
            if state is Up.STARTING:
                deadline = min(deadline, self._seen_s[member] + self._settings.startup_timeout_s)
            elif state is Up.UP:
                deadline = min(deadline, self._seen_s[member] + self._settings.heartbeat_timeout_s)
        return min(deadline, min((until for until, _ in self._busy.values()), default=float("inf")))
