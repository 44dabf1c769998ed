"""Faults that an adapter's code has while it is checked: each in one line, and told once."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlvla3.conformance.subject import ELSEWHERE, ConformanceError, Skipped
from rlvla3.errors import UserError
from rlvla3.plugins import in_words, place_of
from rlvla3.simulators import chunking

Result = Literal["ok", "failed", "skipped"]
_CHECKING = (str(Path(__file__).parent), chunking.__file__)
"""Files that call an adapter's methods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What code of an adapter raised."""

    line: str
    """What it is, and where."""
    call: str
    """The adapter's method in which it arose, such as ``reset``; empty: it arose in what a check did with
    what the adapter gave it."""
    place: str
    """Where it arose, as ``file:line``; empty where that is not known."""


class ElsewhereError(Exception):
    """An adapter's code raised something in another process."""

    def __init__(self, fault: Mapping[str, str]) -> None:
        """``fault``: the fields of a ``Fault``."""
        self.fault = Fault(**fault)


def fault_of(error: BaseException) -> Fault:
    """What is told of an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    last = max((i for i, frame in enumerate(frames) if frame.filename.startswith(_CHECKING)), default=-1)
    inner = frames[last + 1].name if last + 1 < len(frames) else ""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    # A message of several lines is one of several faults.
    line = "; ".join(str(error).splitlines()) if isinstance(error, UserError) else in_words(error)
    return Fault(line=line, call=inner, place=place_of(first))


class Told:
    """Which check has told which fault, so that those that it keeps from being made do not tell it again."""

    def __init__(self, basic: str) -> None:
        """``basic``: the check that looks at what an adapter gives, which the others then use."""
        self._basic = basic
        self._unfit = False
        self._of_code: dict[tuple[str, str], str] = {}
        self._texts: dict[str, str] = {}

    def outcome(self, name: str, error: BaseException) -> tuple[Result, str]:
        """How the check ``name`` ended that raised ``error``, and the line that is shown for it."""
        if isinstance(error, Skipped):
            return "skipped", str(error)
        if isinstance(error, ConformanceError):
            return self._broken(name, str(error))
        if isinstance(error, ElsewhereError):
            return self._raised(name, error.fault, ELSEWHERE)
        return self._raised(name, fault_of(error), "")

    def closed(self, name: str, error: BaseException) -> tuple[Result, str]:
        """The same for a check that went well, but an env could not be closed after it."""
        result, text = self._raised(name, fault_of(error), "")
        return (result, text) if result == "failed" else ("ok", "")

    def _broken(self, name: str, text: str) -> tuple[Result, str]:
        self._unfit = self._unfit or name == self._basic
        first = self._texts.setdefault(text.removeprefix(ELSEWHERE), name)
        return ("failed", text) if first == name else ("skipped", f"not run: see {first}")

    def _raised(self, name: str, fault: Fault, where: str) -> tuple[Result, str]:
        if not fault.call:
            # What an adapter gives back wrongly ends in as many errors as there are uses of it.
            self._unfit = self._unfit or name == self._basic
            first = self._texts.setdefault(fault.line, self._basic if self._unfit else name)
            return ("failed", where + fault.line) if first == name else ("skipped", f"not run: see {first}")
        key = (fault.call, fault.place or fault.line)
        first = self._of_code.setdefault(key, name)
        if first != name:
            what = fault.call if fault.call.isidentifier() else "it"
            return "skipped", f"not run: {what} fails (see {first})"
        return "failed", where + fault.line
