"""The exceptions that the command line turns into one line and an exit code."""

import difflib
import errno
import resource
from collections.abc import Callable, Iterable, Iterator


class UserError(Exception):
    """Something the user can mend. The message names the field or file, the rule, the value and
    the remedy, in one line; of several things that are wrong each has its own."""


def refuse(lines: Iterable[str]) -> None:
    """Tell everything that is wrong at once.

    Raises:
        UserError: there are any; equal lines are told once.
    """
    if found := list(dict.fromkeys(lines)):
        raise UserError("\n".join(found))


def refusals_of(*computations: Callable[[], object]) -> Iterator[str]:
    """What computations are refused for that do not need each other's results."""
    for compute in computations:
        try:
            compute()
        except UserError as error:
            yield from str(error).splitlines()


def near_names(name: str, known: Iterable[str], most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Known names that ``name`` may have been meant to be, the nearest first; never ``name`` itself, which
    was refused. ``cutoff``: how alike they must be, 1 being equal."""
    others = [other for other in dict.fromkeys(known) if other != name]
    return difflib.get_close_matches(name, others, n=most, cutoff=cutoff)


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """``did you mean …?`` with the near names, or what to say where none is near."""
    near = near_names(name, known, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


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
