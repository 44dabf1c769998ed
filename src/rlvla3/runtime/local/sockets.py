"""The controller's sockets, and which of them it looks at."""

import selectors
import socket
import time
from typing import Any

PATIENCE_S = 3e-3
"""Shortest time between two looks at patient sockets, while there is no hurry. A wake-up costs more than
handling one message, so messages that would only wait are taken together."""

Ready = list[tuple[selectors.SelectorKey, int]]


class Sockets:
    """Two selectors: over all sockets, and over those that are never left waiting."""

    def __init__(self) -> None:
        self._all = selectors.DefaultSelector()
        self._urgent = selectors.DefaultSelector()
        self._look_s = 0.0
        """When the patient sockets may be looked at again."""

    def add(self, sock: socket.socket, data: Any, *, patient: bool = False) -> None:
        """Watch for messages. ``patient``: its messages may wait a little when there is no hurry."""
        for selector in (self._all,) if patient else (self._all, self._urgent):
            selector.register(sock, selectors.EVENT_READ, data)

    def remove(self, sock: socket.socket) -> None:
        """Watch no more; nothing happens if it is not watched."""
        for selector in (self._all, self._urgent):
            if sock in selector.get_map():
                selector.unregister(sock)

    def watch_room(self, sock: socket.socket, wanted: bool) -> None:
        """Watch, or not, for room to send, if it is watched at all."""
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        for selector in (self._all, self._urgent):
            key = selector.get_map().get(sock)
            if key is not None:
                selector.modify(sock, mask, key.data)

    def select(self, due_s: float, hurry: bool) -> Ready:
        """What is ready, waiting for it until ``due_s`` (monotonic)."""
        if not hurry:
            until_s = min(due_s, self._look_s)
            ready = self._urgent.select(max(until_s - time.monotonic(), 0.0))
            if ready or until_s == due_s:
                return ready
        ready = self._all.select(max(due_s - time.monotonic(), 0.0))
        self._look_s = time.monotonic() + PATIENCE_S
        return ready

    def close(self) -> None:
        """Free both selectors; the sockets are left to their owners."""
        self._all.close()
        self._urgent.close()
