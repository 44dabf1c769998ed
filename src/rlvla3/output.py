"""Standard output and error that notice when their reader has gone (``rlvla3 settings demo | head``)."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any

CLOSED = 128 + signal.SIGPIPE
"""Exit code of a command that nobody reads any more, as shells show it of other tools."""


class Readers:
    """Whether somebody still reads what is written."""

    gone = False


class _Watched:
    """A text stream. At the first write into a closed pipe it asks the command to end, as a terminal does
    that is closed (SIGHUP: a run writes its checkpoint first); what is written later goes nowhere.

    Not SIGPIPE: the kernel sends that for any socket too, also that of a member which died. And no
    exception: typer and rich have their own ideas of one.
    """

    def __init__(self, stream: Any, readers: Readers) -> None:
        self._stream = stream
        self._readers = readers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text."""
        try:
            written: int = self._stream.write(text)
        except BrokenPipeError:
            self._leave()
            return len(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand over what is written so far."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._readers.gone = True
        signal.raise_signal(signal.SIGHUP)


@contextlib.contextmanager
def watched() -> Iterator[Readers]:
    """Watch both streams; a stream that is not there (``>&-``) is left so."""
    readers = Readers()
    old = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_Watched(s, readers) if s is not None else s for s in old)
    try:
        yield readers
    finally:
        sys.stdout, sys.stderr = old
