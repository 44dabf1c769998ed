"""The sockets that the controller waits for, those of Simulators with or without patience."""

import contextlib
import selectors
import socket
from collections.abc import Collection

from rlvla3.messages import Member
from rlvla3.runtime.local.processes import Process

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

_HOLDS_S = ((float("inf"), 0.02), (5, 0.001))
"""Observations that are at least awaited before one could start a batch, and how long Simulators are then
left unread: waking up for each costs more than reading it. Little beside a batch, and beside a trajectory,
whose end waits as long before its env is given the next start."""


def hold_s(awaited: float) -> float:
    """How long Simulators may be left unread while about so many observations are awaited."""
    return next((held_s for least, held_s in _HOLDS_S if awaited >= least), 0.0)


class Sockets:
    """The members' sockets, and one that wakes ``wait`` up."""

    def __init__(self, simulators: Collection[Member]) -> None:
        self._patient = frozenset(simulators)
        self._all = selectors.DefaultSelector()
        self._simulators = selectors.DefaultSelector()
        self._all.register(self._simulators, READ)
        self._holding = False
        self._silent = False
        """The last wait with patience ended with nothing to read."""

    def close(self) -> None:
        """Forget all."""
        self._all.close()
        self._simulators.close()

    def add_waker(self, waker: socket.socket) -> None:
        """What arrives at this socket is thrown away; it only ends a ``wait``."""
        self._all.register(waker, READ)

    def _of(self, process: Process) -> selectors.BaseSelector:
        return self._simulators if process.member in self._patient else self._all

    def add(self, process: Process) -> None:
        """Wait for what it sends."""
        self._of(process).register(process.connection.socket, READ, process)

    def remove(self, process: Process) -> None:
        """Wait for it no longer; one that is not waited for is passed over."""
        with contextlib.suppress(KeyError):
            self._of(process).unregister(process.connection.socket)

    def watch_room(self, process: Process) -> None:
        """Wait for room in its socket as long as something is unsent."""
        mask = READ | (WRITE if process.connection.unsent else 0)
        with contextlib.suppress(KeyError):
            self._of(process).modify(process.connection.socket, mask, process)

    def wait(self, wait_s: float, hold_s: float) -> list[tuple[Process, int]]:
        """Wait until a socket is ready, for at most ``wait_s``; which are, and for what.

        For ``hold_s`` Simulators do not end the wait, and it does not last longer: one wake-up then
        serves several of their messages. After one that was for nothing their next message ends the
        wait, so that silence costs no wake-ups. They come first in the answer: their observations
        should be known when a Generator says that it is free.
        """
        if self._silent:
            hold_s = 0.0
        if hold_s:
            wait_s = min(wait_s, hold_s)
        if hold_s and not self._holding:
            self._all.unregister(self._simulators)
        elif self._holding and not hold_s:
            self._all.register(self._simulators, READ)
        self._holding = hold_s > 0
        ready = self._all.select(wait_s)
        found = [(key.data, mask) for key, mask in self._simulators.select(0)]
        for key, mask in ready:
            if key.data is not None:
                found.append((key.data, mask))
            elif isinstance(key.fileobj, socket.socket):
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(64)
        self._silent = self._holding and not ready and not found
        return found
