"""What ends the controller's wait, and what does not."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlvla3.messages import Member
from rlvla3.runtime.local.sockets import READ, WRITE, Sockets
from rlvla3.runtime.local.transport import ControllerConnection

LONG_S = 60.0


class Peer:
    """What ``Sockets`` knows of a process: its name and our end; ``there`` is the member's."""

    def __init__(self, member: Member) -> None:
        self.member = member
        ours, self.there = socket.socketpair()
        self.connection = ControllerConnection(ours)


@contextmanager
def watched(*members: str) -> Iterator[tuple[Sockets, list[Peer]]]:
    sockets = Sockets([Member("simulator-0"), Member("simulator-1")])
    peers = [Peer(Member(member)) for member in members]
    for peer in peers:
        sockets.add(peer)
    try:
        yield sockets, peers
    finally:
        sockets.close()
        for peer in peers:
            peer.connection.close()
            peer.there.close()


def test_any_member_ends_a_wait() -> None:
    for name in ("simulator-0", "generator-0", "trainer-0"):
        with watched(name) as (sockets, [peer]):
            peer.there.send(b"x")
            assert sockets.wait(LONG_S, 0.0) == [(peer, READ)]


def test_a_simulator_that_is_held_is_read_when_the_moment_is_over() -> None:
    with watched("simulator-0") as (sockets, [peer]):
        peer.there.send(b"x")
        start_s = time.monotonic()
        assert sockets.wait(LONG_S, 0.05) == [(peer, READ)]
        assert 0.05 <= time.monotonic() - start_s < LONG_S / 2


def test_a_generator_ends_the_moment_and_simulators_are_read_before_it() -> None:
    with watched("generator-0", "simulator-0", "simulator-1") as (sockets, [generator, first, second]):
        for peer in (generator, first, second):
            peer.there.send(b"x")
        start_s = time.monotonic()
        found = sockets.wait(LONG_S, LONG_S)
        assert time.monotonic() - start_s < LONG_S / 2
        assert found[-1] == (generator, READ)
        assert [peer.member for peer, _ in found[:-1]] == ["simulator-0", "simulator-1"]


def test_silence_is_not_looked_at_again_and_again() -> None:
    with watched("simulator-0") as (sockets, [peer]):
        assert sockets.wait(LONG_S, 0.01) == []
        peer.there.send(b"x")
        start_s = time.monotonic()
        assert sockets.wait(LONG_S, LONG_S) == [(peer, READ)]
        assert time.monotonic() - start_s < LONG_S / 2, "the first message after silence ends a wait"
        start_s = time.monotonic()
        assert sockets.wait(LONG_S, 0.05) == [(peer, READ)]
        assert time.monotonic() - start_s >= 0.05, "the next ones do not"


def test_a_simulator_that_is_gone_is_noticed_while_it_is_held() -> None:
    with watched("simulator-0") as (sockets, [peer]):
        peer.there.close()
        assert sockets.wait(LONG_S, 0.01) == [(peer, READ)]
        assert peer.connection.receive() is None


def test_after_a_held_wait_simulators_end_waits_again() -> None:
    with watched("simulator-0") as (sockets, [peer]):
        assert sockets.wait(0.0, 0.01) == []
        assert sockets.wait(0.0, 0.01) == []
        peer.there.send(b"x")
        assert sockets.wait(LONG_S, 0.0) == [(peer, READ)]


def test_a_waker_ends_a_held_wait_and_is_emptied() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, watched("simulator-0") as (sockets, _):
        ours.setblocking(False)
        sockets.add_waker(ours)
        theirs.send(b"x")
        assert sockets.wait(LONG_S, LONG_S) == []
        assert sockets.wait(0.0, 0.0) == []


def test_room_is_waited_for_only_while_something_is_unsent() -> None:
    with watched("simulator-0") as (sockets, [peer]):
        peer.connection._unsent += b"x"
        sockets.watch_room(peer)
        assert sockets.wait(LONG_S, 0.0) == [(peer, WRITE)]
        peer.connection.flush()
        sockets.watch_room(peer)
        assert sockets.wait(0.0, 0.0) == []


def test_a_member_that_is_removed_is_not_heard_and_may_be_removed_twice() -> None:
    with watched("simulator-0") as (sockets, [peer]):
        peer.there.send(b"x")
        sockets.remove(peer)
        sockets.remove(peer)
        assert sockets.wait(0.0, 0.0) == []
