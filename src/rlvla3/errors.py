"""The exceptions that the command line turns into one line and an exit code."""


class UserError(Exception):
    """Something the user can mend. The message names the field or file, the rule, the value and
    the remedy, in one line."""


class EndedBySignal(BaseException):
    """A signal ended the command; an exception, so that everything is put away on the way out."""

    def __init__(self, number: int, line: str = "") -> None:
        """``number``: the signal's. ``line``: what the user should know; empty: that it came."""
        self.number = number
        self.line = line
