"""What is to be done later, in the thread that runs the loop."""

import heapq
import math
from collections.abc import Callable
from itertools import count

from rlvla3.runtime.local.clock import Clock


class Timers:
    """Calls with the time when each is due; of two at one time the earlier order goes first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._order = count()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make this call in so many seconds."""
        heapq.heappush(self._calls, (self._clock.now_s() + seconds, next(self._order), call))

    def next_s(self) -> float:
        """When the next call is due; infinity if there is none."""
        return self._calls[0][0] if self._calls else math.inf

    def run(self) -> None:
        """Make all calls that are due, also those that are ordered meanwhile."""
        while self.next_s() <= self._clock.now_s():
            heapq.heappop(self._calls)[2]()
