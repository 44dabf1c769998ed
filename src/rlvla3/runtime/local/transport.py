"""Messages over unix socket pairs: length, type, msgpack body. Nothing is ever unpickled."""

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from rlvla3.messages import Command, Event, Member, Record

_FRAME = struct.Struct("<IB")
_CHUNK = 1 << 16
"""Bytes of one read; a larger buffer would be mapped and unmapped at every call."""


class Telemetry(Record, frozen=True, kw_only=True):
    """Figures for people; the engine never sees them. ``values`` by metric name."""

    member: Member
    source: str
    values: dict[str, float]


class Assignment(Record, frozen=True, kw_only=True):
    """The first message to a member: its part, as JSON text of ``assembly.Part`` or ``SimulatorPart``."""

    text: str


class Shutdown(Record, frozen=True, kw_only=True):
    """The last message to a member."""


Message = Event | Command | Telemetry | Assignment | Shutdown

_TYPES: tuple[type, ...] = get_args(Message)
_NUMBERS = {kind: number for number, kind in enumerate(_TYPES)}
_DECODERS: list[msgspec.msgpack.Decoder[Any]] = [msgspec.msgpack.Decoder(kind) for kind in _TYPES]
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """A frame."""
    body = _encoder.encode(message)
    return _FRAME.pack(len(body), _NUMBERS[type(message)]) + body


class Frames:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are complete with ``data``."""
        if self._rest:
            data = self._rest + data
        messages, position, size = [], 0, len(data)
        while size - position >= _FRAME.size:
            length, number = _FRAME.unpack_from(data, position)
            start = position + _FRAME.size
            if size - start < length:
                break
            position = start + length
            messages.append(_DECODERS[number].decode(data[start:position]))
        self._rest = data[position:]
        return messages


class MemberConnection:
    """A member's end: blocking, may send from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = Frames()
        self._lock = threading.Lock()
        self._unsent: deque[bytes] = deque()

    def send(self, *messages: Message) -> None:
        """Send, or leave it to the thread that is sending; blocks while the controller is behind.

        Raises:
            OSError: the controller is gone.
        """
        self._unsent.extend([encode(message) for message in messages])
        # Whoever holds the lock sends for all: with many threads, waiting for each other costs more
        # than sending. What is added just before the lock is released is seen by the outer loop.
        while self._unsent and self._lock.acquire(blocking=False):
            try:
                self._socket.sendall(b"".join(self._take()))
            finally:
                self._lock.release()

    def flush(self) -> None:
        """Wait until everything is sent; for the end of the process.

        Raises:
            OSError: the controller is gone.
        """
        with self._lock:
            self._socket.sendall(b"".join(self._take()))

    def _take(self) -> Iterator[bytes]:
        while self._unsent:
            yield self._unsent.popleft()

    def receive(self) -> list[Any]:
        """Wait for messages; an empty list when the controller is gone."""
        while True:
            data = self._socket.recv(_CHUNK)
            if not data:
                return []
            messages = self._frames.feed(data)
            if messages:
                return messages


class ControllerConnection:
    """The controller's end: never blocks; what the member does not take yet is kept."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._frames = Frames()
        self._unsent = bytearray()

    @property
    def unsent(self) -> bool:
        """Whether the socket should be watched for room."""
        return bool(self._unsent)

    def send(self, message: Message) -> None:
        """Queue a message and send what the socket takes."""
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes. A member that is gone is noticed by ``receive``."""
        try:
            while self._unsent:
                sent = self.socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()

    def receive(self) -> list[Any] | None:
        """What has arrived; None when the member is gone."""
        try:
            data = self.socket.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self._frames.feed(data) if data else None

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
