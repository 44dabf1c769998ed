"""The process of one member: ``python -m rlvla3.runtime.local.member NAME DESCRIPTOR CONTROLLER``.

Reads its part from the socket, builds its role, then does what it is told. A thread of its own
sends heartbeats and time accounts, so that a long computation does not look like a hang.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol

import msgspec

from rlvla3.errors import UserError
from rlvla3.lifetime import die_with
from rlvla3.messages import Heartbeat, Member, MemberLost
from rlvla3.runtime.local.simulating import SimulatorPart, build_simulator
from rlvla3.runtime.local.transport import Assignment, MemberConnection, Shutdown, Telemetry
from rlvla3.usage import Usage, merged

_HEARTBEAT_S = 1.0


class Role(Protocol):
    """What the three roles have in common."""

    def start(self) -> None:
        """Set up; report ready."""
        ...

    def handle(self, command: object) -> None:
        """Do one command."""
        ...

    def close(self) -> None:
        """Free what the end of the process would not."""
        ...

    def usages(self) -> list[Usage]:
        """Time accounts of its threads."""
        ...

    def doing(self) -> list[str]:
        """What its threads are at, a line each, where their stacks do not tell."""
        ...


_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _leave_signals_to_the_controller() -> None:
    """A scheduler signals all processes at once; the last checkpoint still needs this one.

    A handler, rather than SIG_IGN, is not inherited by programs that an env starts; processes that
    it forks get the usual behaviour back.
    """
    for number in _ENDS:
        signal.signal(number, lambda *_: None)

    def restore() -> None:
        for number in _ENDS:
            signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=restore)


class _Pulse(threading.Thread):
    """Heartbeats and time accounts."""

    def __init__(
        self, member: Member, send: Callable[[Any], None], usages: Callable[[], list[Usage]]
    ) -> None:
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


def _messages(connection: MemberConnection) -> Iterator[Any]:
    """Everything the controller sends, until it is gone."""
    while messages := connection.receive():
        yield from messages


def _show_work(role: Role) -> None:
    """When asked (SIGUSR1), write all stacks to the log, then what each lane is doing."""

    def tell(number: int, frame: FrameType | None) -> None:
        for line in role.doing():
            print(line, file=sys.stderr)  # noqa: T201

    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, tell)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)


def _serve(role: Role, messages: Iterator[Any]) -> None:
    role.start()
    # Everything built so far stays: garbage collections need not walk through it again and again.
    gc.freeze()
    for message in messages:
        if isinstance(message, Shutdown):
            return
        role.handle(message)


def _fault(error: BaseException) -> str:
    """The error in one line, then where it came from."""
    first = "".join(traceback.format_exception_only(error)).strip().replace("\n", "; ")
    return f"{first}\n{traceback.format_exc()}"


def _role(member: Member, text: str, emit: Any, report: Callable[[str, Mapping[str, float]], None]) -> Role:
    """The member's role, made from its part; its memories are not for programs that it starts."""
    if member.startswith("simulator-"):
        mine = msgspec.json.decode(text, type=SimulatorPart)
        os.set_inheritable(mine.slab, False)
        return build_simulator(mine, emit)
    from rlvla3.assembly import Part
    from rlvla3.runtime.local.parts import build_role

    part = msgspec.json.decode(text, type=Part)
    for memory in (part.slab, part.rollout, part.evaluation):
        os.set_inheritable(memory, False)
    role: Role = build_role(part, emit, report)
    return role


def main() -> int:
    """Run the member to its end; the exit code is 0 after a regular shutdown."""
    member, descriptor, controller = Member(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    die_with(controller)
    _leave_signals_to_the_controller()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.set_inheritable(descriptor, False)
    connection = MemberConnection(socket.socket(fileno=descriptor))
    messages = _messages(connection)
    assignment = next(messages)
    assert isinstance(assignment, Assignment)

    def report(source: str, values: Mapping[str, float]) -> None:
        connection.send(Telemetry(member=member, source=source, values=dict(values)))

    try:
        role = _role(member, assignment.text, connection.send, report)
        _show_work(role)
        pulse = _Pulse(member, connection.send, role.usages)
        pulse.start()
        _serve(role, messages)
        pulse.stop()
        pulse.report()
        role.close()
        connection.flush()
    except UserError as error:
        print(error, file=sys.stderr)  # noqa: T201
        with contextlib.suppress(OSError):
            connection.send(MemberLost(member=member, reason=str(error), refused=True))
            connection.flush()
        return 1
    except BaseException as error:
        traceback.print_exc()
        with contextlib.suppress(OSError):
            connection.send(MemberLost(member=member, reason=_fault(error)))
            connection.flush()
        return 1
    return 0


if __name__ == "__main__":
    # The interpreter's own shutdown would wait for lanes stuck in an env and for GL contexts.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
