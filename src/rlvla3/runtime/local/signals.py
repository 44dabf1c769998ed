"""Signals that ask a run to end."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def waking_signals(add_waker: Callable[[socket.socket], None], ask: Callable[[int], None]) -> Iterator[None]:
    """Have SIGINT, SIGTERM and SIGHUP call ``ask`` with their numbers, and have data arrive at a
    socket given to ``add_waker``.

    Only the main thread may take signals; in another one nothing is done. What was ignored when the
    run began (``nohup``) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        add_waker(reader)
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        names = [name for name in _ENDS if signal.getsignal(name) is not signal.SIG_IGN]
        old = {n: signal.signal(n, lambda number, _: ask(number)) for n in names}
        try:
            yield
        finally:
            for name, handler in old.items():
                signal.signal(name, handler)
            signal.set_wakeup_fd(old_fd)
