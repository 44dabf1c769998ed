"""The process of one member: ``python -m rlvla3.runtime.local.member DESCRIPTOR``.

Reads its part from the socket, builds its role, then does what it is told. A thread of its own
sends heartbeats and time accounts, so that a long computation does not look like a hang.
"""

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from rlvla3.assembly import Part
from rlvla3.messages import Event, Heartbeat, Member, MemberLost
from rlvla3.runtime.local.parts import build_role
from rlvla3.runtime.local.transport import Assignment, MemberConnection, Shutdown, Telemetry
from rlvla3.usage import Usage, merged

_HEARTBEAT_S = 1.0
_PR_SET_PDEATHSIG = 1


class Role(Protocol):
    """What the three roles have in common."""

    def start(self) -> None: ...

    def handle(self, command: object) -> None: ...

    def close(self) -> None: ...

    def usages(self) -> list[Usage]: ...


def _die_with_parent() -> None:
    """Have the kernel kill this process when the controller ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os._exit(1)


class _Pulse(threading.Thread):
    """Heartbeats and time accounts."""

    def __init__(self, member: Member, send: Callable[[Any], None], usages: Callable[[], list[Usage]]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._member = member
        self._send = send
        self._usages = usages
        self._end = threading.Event()

    def run(self) -> None:
        """Until told to end or the controller is gone."""
        try:
            while not self._end.wait(_HEARTBEAT_S):
                self._send(Heartbeat(member=self._member))
                self.report()
        except OSError:
            os._exit(1)

    def report(self) -> None:
        """Send the totals of each section."""
        values: dict[str, float] = {}
        for section, spent in merged([usage.snapshot() for usage in self._usages()]).items():
            values |= {f"{section}/wall_s": spent.wall_s, f"{section}/cpu_s": spent.cpu_s}
        self._send(Telemetry(member=self._member, source="usage", values=values))

    def stop(self) -> None:
        """End the thread."""
        self._end.set()


def _serve(role: Role, connection: MemberConnection) -> None:
    role.start()
    while messages := connection.receive():
        for message in messages:
            if isinstance(message, Shutdown):
                return
            role.handle(message)


def main() -> int:
    """Run the member to its end; the exit code is 0 after a regular shutdown."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection = MemberConnection(socket.socket(fileno=int(sys.argv[1])))
    assignment = connection.receive()[0]
    assert isinstance(assignment, Assignment)
    part = msgspec.json.decode(assignment.text, type=Part)

    def emit(event: Event) -> None:
        connection.send(event)

    def report(source: str, values: Mapping[str, float]) -> None:
        connection.send(Telemetry(member=part.member, source=source, values=dict(values)))

    try:
        role = build_role(part, emit, report)
        pulse = _Pulse(part.member, connection.send, role.usages)
        pulse.start()
        _serve(role, connection)
        pulse.stop()
        pulse.report()
        role.close()
    except BrokenPipeError:
        return 1
    except BaseException as error:
        first = "".join(traceback.format_exception_only(error)).strip().replace("\n", "; ")
        emit(MemberLost(member=part.member, reason=f"{first}\n{traceback.format_exc()}"))
        return 1
    return 0


if __name__ == "__main__":
    # The interpreter's own shutdown would wait for lanes stuck in an env and for GL contexts.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
