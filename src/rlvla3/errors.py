"""The exceptions that the command line turns into one line and an exit code."""

import errno
import resource


class UserError(Exception):
    """Something the user can mend. The message names the field or file, the rule, the value and
    the remedy, in one line."""


class EndedBySignal(BaseException):
    """A signal ended the command; an exception, so that everything is put away on the way out."""

    def __init__(self, number: int, line: str = "") -> None:
        """``number``: the signal's. ``line``: what the user should know; empty: that it came."""
        self.number = number
        self.line = line


def too_many_files(error: OSError) -> str:
    """What to do about a limit of open files, as one line; empty if the error is another one."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"{error.strerror}: {most} are allowed here; raise the limit (ulimit -n) or use fewer members"
