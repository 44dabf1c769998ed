"""Asks another environment's interpreter what an adapter offers, and stands in for the adapter here."""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from rlvla3.elsewhere import interpreter
from rlvla3.errors import UserError
from rlvla3.plugins import distrusted, permit
from rlvla3.settings import Settings
from rlvla3.simulators.api import SimulatorSpec
from rlvla3.simulators.registry import simulator_class

_ANSWER_TIMEOUT_S = 180.0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked: everything about an adapter with these options."""

    kind: str
    """``simulator.kind``."""
    options: dict[str, Any]
    """Its options as JSON values."""
    distrusted: str
    """What names them, if that is no reason to run code; else empty."""
    trusted: tuple[str, ...]
    """Code that may run all the same."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The adapter can be made."""

    options: dict[str, Any]
    """The options it has then, as JSON values."""
    spec: SimulatorSpec


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An option at fault: its path, and the rule that it breaks."""

    path: tuple[str | int, ...]
    rule: str


class Faults(msgspec.Struct, frozen=True, kw_only=True, tag="faults"):
    """The options are not what the adapter wants."""

    faults: tuple[Fault, ...]


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """The adapter cannot be made; in one line, why."""

    text: str


Reply = Answer | Faults | Refusal

_known: dict[str, Answer] = {}
"""Answers by what was asked."""


def known() -> str:
    """All answers so far, for a process that must not ask again: JSON."""
    return msgspec.json.encode(_known).decode()


def remember(answers: str) -> None:
    """Take over what another process's ``known`` gave."""
    _known.update(msgspec.json.decode(answers, type=dict[str, Answer]))


def ask(python: str, kind: str, options: Mapping[str, Any]) -> Answer:
    """What the adapter ``kind`` offers in the environment of ``python``; each question is asked once.

    Raises:
        UserError: the environment or the adapter cannot be used, in one line.
        ValidationError: the options are not what the adapter wants.
    """
    key = _key(python, kind, options)
    if key not in _known:
        interpreter.check(python)
        reply = _reply(python, kind, options)
        if isinstance(reply, Refusal):
            raise UserError(f"{reply.text} (asked of simulator.python = {python})")
        if isinstance(reply, Faults):
            raise _as_error(kind, options, reply)
        # Settings that went through an adapter once are read again in every process.
        _known[key] = _known[_key(python, kind, reply.options)] = reply
    return _known[key]


def _key(python: str, kind: str, options: Mapping[str, Any]) -> str:
    return msgspec.json.encode([python, kind, options], order="deterministic").decode()


def _reply(python: str, kind: str, options: Mapping[str, Any]) -> Reply:
    source, trusted = distrusted()
    question = Question(kind=kind, options=dict(options), distrusted=source, trusted=tuple(sorted(trusted)))
    try:
        command = interpreter.command(python, "rlvla3.elsewhere.answering")
        done = interpreter.run(command, python, _ANSWER_TIMEOUT_S, msgspec.json.encode(question))
        reply: Reply = msgspec.json.decode(done.out, type=Reply)
    except OSError as error:
        raise UserError(
            f"simulator.python = {python!r}: it does not say what {kind!r} is: {error}"
        ) from error
    except msgspec.DecodeError as error:
        raise UserError(
            f"simulator.python = {python!r}: it does not say what {kind!r} is (exit code {done.code}: "
            f"{done.said}); mend that environment"
        ) from error
    return reply


def _as_error(kind: str, options: Mapping[str, Any], reply: Faults) -> ValidationError:
    details = [
        InitErrorDetails(
            type=PydanticCustomError("elsewhere", "{rule}", {"rule": fault.rule}),
            loc=fault.path,
            input=dict(options),
        )
        for fault in reply.faults
    ]
    return ValidationError.from_exception_data(kind, details)


# --- stand-ins -------------------------------------------------------------------------------


class OptionsElsewhere(Settings):
    """Options that only another environment can read; as it returned them."""

    model_config = ConfigDict(extra="allow")
    kind_: ClassVar[str]
    python_: ClassVar[str]

    @classmethod
    def model_validate(cls, obj: Any, **how: Any) -> "OptionsElsewhere":
        """Read them there.

        Raises:
            UserError, ValidationError: as for ``ask``.
        """
        return super().model_validate(dict(ask(cls.python_, cls.kind_, obj).options), **how)


class _StandIn:
    """Takes an adapter's place in a process that cannot import it."""

    Settings: ClassVar[type[Settings]]
    kind: ClassVar[str]
    python: ClassVar[str]

    def __init__(self, settings: BaseModel) -> None:
        self._settings = settings

    @property
    def spec(self) -> SimulatorSpec:
        """What the adapter says there.

        Raises:
            UserError: the environment or the adapter cannot be used.
        """
        return ask(self.python, self.kind, self._settings.model_dump(mode="json")).spec

    def make(self) -> NoReturn:
        """Not in this process.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"simulator.kind = {self.kind!r}: only simulator.python = {self.python} can build its envs; "
            "leave that out where this environment has the simulator too"
        )

    def expert(self, env: Any) -> NoReturn:
        """Not in this process.

        Raises:
            UserError: always.
        """
        self.make()


def adapter_class(kind: str, python: str = "") -> Any:
    """The adapter class of ``simulator.kind``, or what stands in for it.

    Args:
        kind: a built-in name or ``module:attribute``.
        python: the interpreter of the environment where it can be imported; empty: this one.

    Raises:
        UserError: as for ``simulator_class``, or its code is not to be trusted.
    """
    if not python:
        return simulator_class(kind)
    if ":" in kind:
        permit("simulator.kind", kind)
        return _stand_in(kind, python)
    return _stand_in(kind, python, simulator_class(kind).Settings)


@functools.cache
def _stand_in(kind: str, python: str, settings: type[Settings] | None = None) -> type[_StandIn]:
    read = settings or type("Options", (OptionsElsewhere,), {"kind_": kind, "python_": python})
    return type("Elsewhere", (_StandIn,), {"Settings": read, "kind": kind, "python": python})
