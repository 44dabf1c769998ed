"""Member processes: spawn, dump the stacks of, kill, reap."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlvla3.messages import Member
from rlvla3.runtime.local.transport import ControllerConnection

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Process:
    """One life of a member."""

    def __init__(self, member: Member, log: Path, inherited: Sequence[int], threads: int) -> None:
        """Start the member; ``inherited`` descriptors keep their numbers in it.

        It gets a session of its own, so that Ctrl-C reaches the controller only.
        """
        self.member = member
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        environment = os.environ | dict.fromkeys(_ONE_THREAD, str(threads)) | {"PYTHONUNBUFFERED": "1"}
        with log.open("ab") as output, theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "rlvla3.runtime.local.member", str(theirs.fileno())],
                pass_fds=(theirs.fileno(), *inherited),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
            )
        self.connection = ControllerConnection(ours)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def ask_for_stacks(self) -> None:
        """Make it write the stacks of all threads to its log (works while the GIL is held)."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.send_signal(signal.SIGUSR1)

    def kill(self) -> str:
        """Kill and reap; returns how it ended."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()
        return self.wait(None)

    def wait(self, timeout_s: float | None) -> str:
        """Reap; returns how it ended, or nothing if it has not within ``timeout_s``."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def log_tail(self, limit: int = 4000) -> str:
        """The end of what this life wrote to its log."""
        with self.log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - limit))
            return file.read().decode(errors="replace").strip()
