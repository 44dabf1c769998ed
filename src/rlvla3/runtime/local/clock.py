"""The run's clock: the seconds in which the controller was there to listen."""

import time
from collections.abc import Callable

_STOOD_STILL_S = 1.0
"""A wait that ends so much later than it was to end was not a wait: the machine was asleep, or the
processes were stopped."""


class Clock:
    """Monotonic seconds, less those in which the controller stood still.

    Every deadline of the engine is about silence. A machine that was suspended, a container that was frozen
    or a controller that was stopped (SIGSTOP) makes every member look silent at once; none of them is to
    blame, so that time does not count.
    """

    def __init__(self, read_s: Callable[[], float] = time.monotonic) -> None:
        """``read_s``: a clock that may jump forward at any moment."""
        self._read_s = read_s
        self._least_s = float("-inf")
        self.stood_still_s = 0.0

    def now_s(self) -> float:
        """Seconds of the run; never goes back."""
        # Rounding could give back a little of what was left out.
        return max(self._read_s() - self.stood_still_s, self._least_s)

    def waited(self, since_s: float, wait_s: float) -> float:
        """A wait of at most ``wait_s`` that began at ``since_s`` is over.

        Returns:
            The seconds beyond it that are not counted; 0 where it ended in time.
        """
        beyond_s = self.now_s() - since_s - wait_s
        if beyond_s < _STOOD_STILL_S:
            return 0.0
        self.stood_still_s += beyond_s
        self._least_s = since_s + wait_s
        return beyond_s
