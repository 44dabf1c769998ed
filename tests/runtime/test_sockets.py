"""Which sockets are looked at: patient ones wait a little while there is no hurry, and never for good."""

import socket
import time
from collections.abc import Iterator

import pytest

from rlvla3.runtime.local.sockets import PATIENCE_S, Sockets


class World:
    def __init__(self) -> None:
        self.sockets = Sockets()
        self.urgent, self.urgent_far = socket.socketpair()
        self.patient, self.patient_far = socket.socketpair()
        self.sockets.add(self.urgent, "urgent")
        self.sockets.add(self.patient, "patient", patient=True)

    def ready(self, hurry: bool, within_s: float = 5.0) -> list[str]:
        return sorted(key.data for key, _ in self.sockets.select(time.monotonic() + within_s, hurry))

    def look(self) -> None:
        """Have all sockets looked at now, so that the patient ones may wait from now on."""
        assert self.ready(hurry=True, within_s=0.0) == []


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.sockets.close()
    for end in (made.urgent, made.urgent_far, made.patient, made.patient_far):
        end.close()


def test_in_a_hurry_all_sockets_are_looked_at(world) -> None:
    world.look()
    world.urgent_far.send(b"u")
    world.patient_far.send(b"p")
    assert world.ready(hurry=True) == ["patient", "urgent"]


def test_without_a_hurry_urgent_messages_alone_end_the_wait(world) -> None:
    world.look()
    world.urgent_far.send(b"u")
    world.patient_far.send(b"p")
    assert world.ready(hurry=False) == ["urgent"]


def test_patient_messages_are_taken_when_their_time_has_come(world) -> None:
    before_s = time.monotonic()
    world.look()
    world.patient_far.send(b"p")
    assert world.ready(hurry=False) == ["patient"]
    assert time.monotonic() - before_s >= PATIENCE_S


def test_a_deadline_before_that_time_is_kept(world) -> None:
    world.look()
    world.patient_far.send(b"p")
    assert world.ready(hurry=False, within_s=0.0) == []
    assert world.ready(hurry=False) == ["patient"], "nothing is lost"


def test_patient_sockets_are_watched_for_room_too(world) -> None:
    world.sockets.watch_room(world.patient, True)
    assert world.ready(hurry=True) == ["patient"]
    world.sockets.watch_room(world.patient, False)
    assert world.ready(hurry=True, within_s=0.0) == []


def test_what_was_removed_is_not_looked_at_and_may_be_removed_again(world) -> None:
    for _ in range(2):
        world.sockets.remove(world.patient)
        world.sockets.remove(world.urgent)
    world.sockets.watch_room(world.urgent, True)
    world.urgent_far.send(b"u")
    world.patient_far.send(b"p")
    assert world.ready(hurry=True, within_s=0.0) == []
