"""Planned replacement of Simulators: a fresh process after so many episodes.

Some simulators leak with every reset, in C or in a driver, where only the end of the process gives the
memory back. A process that has begun enough episodes *retires*: its envs finish the episodes they are in
and begin no others; once all are idle the process is replaced. Nothing is lost or run twice, and the
restart budget is for faults only. One Simulator at a time retires, so that the others go on.
"""

from collections.abc import Iterable

from rlvla3.messages import Member


class Recycling:
    """How many episodes each Simulator's process has begun, and which of them is retiring."""

    def __init__(self, after: int, members: Iterable[Member]) -> None:
        """``after``: episodes of one process, all its envs together; 0: it is never replaced."""
        self._after = after
        self._begun = dict.fromkeys(members, 0)
        self.retiring: Member | None = None
        """Begins no new episode, until its process is replaced."""

    def begun(self, member: Member) -> None:
        """One of the member's envs was given an episode to begin."""
        if not self._after:
            return
        self._begun[member] += 1
        if self.retiring is None and self._begun[member] >= self._after:
            self.retiring = member

    def renewed(self, member: Member) -> None:
        """A fresh process of the member is ready, or none will come: the next one may retire."""
        if not self._after or member not in self._begun:
            return
        self._begun[member] = 0
        if self.retiring in (member, None):
            most = max(self._begun, key=lambda other: self._begun[other])
            self.retiring = most if self._begun[most] >= self._after else None
