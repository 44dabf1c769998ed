"""The end of all members: they are told, waited for, and killed, whatever goes wrong meanwhile."""

import time
from collections.abc import Callable, Sequence

from rlvla3.runtime.local.processes import Process
from rlvla3.runtime.local.transport import Shutdown

_LOOK_S = 0.05
"""Longest time between two looks at who has ended."""
_LAST_REAP_S = 5.0
"""Longest wait for a killed process."""


def end_members(
    processes: Sequence[Process],
    *,
    patience_s: Callable[[Process], float],
    drain: Callable[[Process], None],
    interrupts: Callable[[], int],
) -> None:
    """Say goodbye, wait a little, kill what is left; no process is there when this returns or raises.

    Args:
        processes: of all members.
        patience_s: how long a member may take to end by itself.
        drain: reads what a member sends, so that it can come to its end.
        interrupts: how often the run was asked to end; once more, and nobody is waited for any more.
    """
    try:
        _say_goodbye(processes, patience_s, drain, interrupts)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(_LAST_REAP_S)
            process.close()


def _say_goodbye(
    processes: Sequence[Process],
    patience_s: Callable[[Process], float],
    drain: Callable[[Process], None],
    interrupts: Callable[[], int],
) -> None:
    for process in processes:
        process.connection.send(Shutdown())
    start_s, asked = time.monotonic(), interrupts()
    while processes and interrupts() == asked:
        waited_s = time.monotonic() - start_s
        for process in processes:
            drain(process)
        processes = [p for p in processes if not p.wait(0) and waited_s < patience_s(p)]
        if processes:
            processes[0].wait(_LOOK_S)
