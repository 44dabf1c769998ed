"""CPU time of other processes, by the kernel's process clocks (nanoseconds, Linux)."""

import os
import time
from collections.abc import Iterable

_SCHEDULER_CLOCK = 2


def processor_time_s(pids: Iterable[int]) -> float:
    """CPU seconds that this process and ``pids`` have used since their starts, all threads.

    Raises:
        ProcessLookupError: one of them has ended.
    """
    total = time.process_time()
    for pid in pids:
        if pid != os.getpid():
            total += _of(pid)
    return total


def _of(pid: int) -> float:
    # The clock number of clock_getcpuclockid(3), which Python does not wrap.
    try:
        return time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error
