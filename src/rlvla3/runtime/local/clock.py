"""The run's clock: the seconds in which the controller was there to listen."""

import time
from collections.abc import Callable

_STOOD_STILL_S = 1.0
"""Two readings so much further apart than they were to be: nobody was there to read. The machine was asleep,
or the process was stopped."""


class Clock:
    """Monotonic seconds, less those in which the controller stood still.

    Every deadline of the engine is about silence. A machine that was suspended, a container that was frozen
    or a controller that was stopped (SIGSTOP) makes every member look silent at once; none of them is to
    blame, so that time does not count. Wherever the controller is stopped, it finds out at its next reading,
    before it could blame anybody.
    """

    def __init__(self, read_s: Callable[[], float] = time.monotonic) -> None:
        """``read_s``: a clock that may jump forward at any moment."""
        self._read_s = read_s
        self._last_s = read_s()
        self._now_s = self._last_s
        self._expected_s = 0.0
        self._untold_s = 0.0
        self.stood_still_s = 0.0
        """All the time that was left out."""

    def now_s(self) -> float:
        """Seconds of the run; never goes back."""
        read_s = self._read_s()
        beyond_s = read_s - self._last_s - self._expected_s
        if beyond_s >= _STOOD_STILL_S:
            self.stood_still_s += beyond_s
            self._untold_s += beyond_s
        self._last_s, self._expected_s = read_s, 0.0
        # Rounding could give back a little of what was left out.
        self._now_s = max(self._now_s, read_s - self.stood_still_s)
        return self._now_s

    def expect(self, wait_s: float) -> None:
        """The next reading comes after a wait of at most so long, which begins now."""
        self._expected_s = wait_s

    def untold_s(self) -> float:
        """Seconds that were left out since this was last asked."""
        untold_s, self._untold_s = self._untold_s, 0.0
        return untold_s
