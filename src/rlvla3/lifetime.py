"""Processes that must not outlive the one that started them."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which started it, ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def begin_worker(parent: int) -> None:
    """First act of a pool's worker: it ends with ``parent``, and Ctrl-C is the parent's business."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def kill_with_children(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that was started with a session of its own, and what it started; it is not reaped."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def run_to_end(
    command: Sequence[str], environment: Mapping[str, str], timeout_s: float, given: bytes = b""
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command and read what it says. An interpreter may be a script that starts the real one: where
    the command is late, or this process is interrupted, all that it started ends with it.

    Args:
        given: what it reads.

    Raises:
        OSError: it cannot be started.
        TimeoutExpired: it is late.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(given, timeout=timeout_s)
        except BaseException:
            kill_with_children(process)
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)
