"""Message framing: whatever way the stream is cut, the same messages come out."""

import socket
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvla3.messages import Command, Event, Heartbeat, Member, Stop
from rlvla3.runtime.local.transport import (
    Assignment,
    ControllerConnection,
    Frames,
    MemberConnection,
    Message,
    Shutdown,
    Telemetry,
    encode,
)

KINDS = get_args(Message)
PLAIN = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation, with numbers that fit 64 bits."""
    kind = getattr(kind, "__supertype__", kind)
    if kind in PLAIN:
        return PLAIN[kind]
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(inner)
    if get_origin(kind) is dict:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    if get_origin(kind) is tuple and inner[-1] is ...:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*map(values, inner))
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})


MESSAGES = st.one_of([values(kind) for kind in KINDS])


def test_every_event_and_command_can_be_sent() -> None:
    assert set(KINDS) == {*get_args(Event), *get_args(Command), Telemetry, Assignment, Shutdown}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_round_trip(kind, data) -> None:
    message = data.draw(values(kind))
    (found,) = Frames().feed(encode(message))
    assert type(found) is kind
    assert found == message
    # Tuples stay tuples: frozen messages are compared and hashed.
    for name in kind.__struct_fields__:
        assert type(getattr(found, name)) is type(getattr(message, name))


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=6), data=st.data())
def test_any_split_gives_the_same_messages(messages, data) -> None:
    stream = b"".join(encode(message) for message in messages)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    frames, found = Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[start:end])
    assert found == messages


def pair() -> tuple[ControllerConnection, MemberConnection]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.settimeout(10)
    return ControllerConnection(ours), MemberConnection(theirs)


def test_what_the_member_does_not_take_is_kept_in_order() -> None:
    controller, member = pair()
    sent = [Stop(reason=f"{i} " + "x" * 10_000, failed=False) for i in range(200)]
    for message in sent:
        controller.send(message)
    assert controller.unsent, "two megabytes do not fit into a socket"
    found = []
    while len(found) < len(sent):
        found += member.receive()
        controller.flush()
    assert found == sent
    assert not controller.unsent


def test_last_words_are_read_before_the_end_is_seen() -> None:
    controller, member = pair()
    controller.send(Shutdown())
    member.send(Heartbeat(member=Member("m")))
    member._socket.close()  # with an unread message of the controller: the kernel reports a reset
    assert controller.receive() == [Heartbeat(member=Member("m"))]
    assert controller.receive() is None


def test_sending_to_a_dead_member_is_noticed_by_receive_only() -> None:
    controller, member = pair()
    member._socket.close()
    controller.send(Shutdown())
    assert not controller.unsent
    assert controller.receive() is None


def test_nothing_arrived_is_not_the_end() -> None:
    controller, _member = pair()
    assert controller.receive() == []


def test_member_sees_the_controller_go() -> None:
    controller, member = pair()
    controller.close()
    assert member.receive() == []
    with pytest.raises(OSError, match="Broken pipe"):
        member.send(Shutdown())
