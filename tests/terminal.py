"""Signals as a terminal gives them, however the tests were started."""

import signal

_USUAL = (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
)


def as_in_a_terminal() -> None:
    """Heed the signals that end a program.

    A shell that starts something in the background has it ignore them, and every process that it starts
    would inherit that: a run would go on after the Ctrl-C that a test sends it.
    """
    for number, handler in _USUAL:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)
