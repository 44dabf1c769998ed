"""Member processes: spawn, dump the stacks of, kill, reap."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from rlvla3.elsewhere import interpreter
from rlvla3.messages import Member
from rlvla3.runtime.local.transport import ControllerConnection

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "1073741824"}
"""Without these the C library gives large temporaries back to the kernel after each inference and has
them zeroed again for the next (measured: 20 % of a prefix of the tiny policy)."""
_POLL_S = 0.005


class Process:
    """One life of a member."""

    def __init__(
        self, member: Member, log: Path, inherited: Sequence[int], threads: int, python: str = ""
    ) -> None:
        """Start the member; ``inherited`` descriptors keep their numbers in it.

        It gets a session of its own, so that Ctrl-C reaches the controller only. ``python``: the
        interpreter of another environment that runs it; empty: this one.

        Raises:
            OSError: the machine has no room for another process.
        """
        self.member = member
        self.log = log
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        environment = (
            _KEEP_MEMORY | interpreter.environment(python) | dict.fromkeys(_ONE_THREAD, str(threads))
        )
        environment["PYTHONUNBUFFERED"] = "1"
        module, numbers = "rlvla3.runtime.local.member", (str(theirs.fileno()), str(os.getpid()))
        try:
            with _opened(log) as output, theirs:
                self._log_start = output.seek(0, os.SEEK_END)
                self._popen = subprocess.Popen(
                    interpreter.command(python, module, member, *numbers),
                    pass_fds=(theirs.fileno(), *inherited),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=environment,
                )
        except OSError:
            ours.close()
            raise
        self.connection = ControllerConnection(ours)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def ask_for_stacks(self) -> None:
        """Make it write the stacks of all threads to its log (works while the GIL is held)."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Kill it and whatever it started; ``wait`` reaps."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> str:
        """Reap, with whatever it started; how it ended, or nothing if it has not within ``timeout_s``."""
        if self._popen.returncode is None:
            if not self._ends_within(timeout_s):
                return ""
            # Not reaped yet, so its number still names its own group.
            self.kill()
            self._popen.wait()
        code = self._popen.returncode
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _ends_within(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(_POLL_S, left_s))
        return True

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def log_tail(self, limit: int = 8000) -> str:
        """The end of what this life wrote to its log."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, size - limit))
                return file.read().decode(errors="replace").strip()
        except OSError as error:
            return f"({self.log}: {error.strerror})"


def _opened(log: Path) -> BinaryIO:
    """The log, to append to; a full or read-only disk costs the log, not the run."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")
