"""CPU time and waits of other processes, as the kernel counts them (Linux), and the cost of waking up."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlvla3.messages import Member, Request, Row, RunInference, Slot
from rlvla3.runtime.local.transport import Frames, encode

_SCHEDULER_CLOCK = 2
_SHORT_WAIT_S = 0.002


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


def waits(pids: Iterable[int]) -> int:
    """How often the threads of ``pids`` that are alive have waited for something since their starts."""
    counter = "voluntary_ctxt_switches:"
    found = 0
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                line = next(text for text in file.read_text().splitlines() if text.startswith(counter))
                found += int(line.removeprefix(counter))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """What waking up costs on this machine, alone and with a small piece of work: decoding a batch of 32
    requests."""

    bare_s: float
    """CPU seconds of waiting for 2 ms, and nothing else."""
    hot_s: float
    """CPU seconds of the work when it is done over and over."""
    cold_s: float
    """CPU seconds when each time comes after a pause, as most work of the scheduling benchmark does.
    Where it is much more, its CPU figures say as much about the machine as about the program."""


def wake_up(times: int = 60, pause_s: float = 0.02) -> WakeUp:
    """Measure for ``times`` pauses."""
    start_s = time.thread_time()
    for _ in range(times):
        time.sleep(_SHORT_WAIT_S)
    bare_s = (time.thread_time() - start_s) / times
    requests = tuple(
        [
            Request(slot=Slot(i), seq=0, kind="act", channel="rollout", rows=(Row(i),), chunks=(0,))
            for i in range(32)
        ]
    )
    command = RunInference(member=Member("generator-0"), batch=0, channel="rollout", requests=requests)
    frames, message = Frames(), encode(command)
    spent_s = []
    for pause in (0.0, pause_s):
        total_s = 0.0
        for _ in range(times):
            if pause:
                time.sleep(pause)
            start_s = time.thread_time()
            frames.feed(message)
            total_s += time.thread_time() - start_s
        spent_s.append(total_s / times)
    return WakeUp(bare_s=bare_s, hot_s=spent_s[0], cold_s=spent_s[1])
