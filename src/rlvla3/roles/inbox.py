"""What a thread is given to do."""

import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue that one thread puts into and another takes from. ``queue.Queue`` costs several times as
    much for each wait; ``queue.SimpleQueue`` (CPython 3.11) waits for ever where a short timeout passes
    while it takes its lock."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._news = threading.Lock()
        """Unlocked between a ``put`` and the next wait."""
        self._news.acquire()

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        if self._news.locked():
            self._news.release()

    def take(self, until_s: float | None = None) -> T | None:
        """The first item; waits for one until that monotonic time, then gives None."""
        while not self._items:
            left_s = -1.0 if until_s is None else max(until_s - time.monotonic(), 0.0)
            if not self._news.acquire(timeout=left_s):
                return None
        return self._items.popleft()

    def __len__(self) -> int:
        return len(self._items)
