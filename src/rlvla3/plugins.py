"""Looking a component up by its built-in name or as ``module:attribute``."""

import contextlib
import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rlvla3.errors import UserError, near_names
from rlvla3.settings import Settings

USERS_FAULTS = (Exception, SystemExit)
"""Whatever code of the user's own may raise."""

_STANDARD = sysconfig.get_path("stdlib")

_distrusted: ContextVar[tuple[str, frozenset[str]]] = ContextVar("distrusted", default=("", frozenset()))
"""Where the settings that are being read come from, if that is no reason to run code; and what may run."""


@contextlib.contextmanager
def distrust(source: str, trusted: Collection[str] = ()) -> Iterator[None]:
    """Refuse code that settings name while they are read; a checkpoint may come from anybody.

    Args:
        source: what names the code, for messages.
        trusted: ``module:attribute`` names that the user gave.
    """
    token = _distrusted.set((source, frozenset(trusted)))
    try:
        yield
    finally:
        _distrusted.reset(token)


def distrusted() -> tuple[str, frozenset[str]]:
    """What ``distrust`` was told of the settings that are being read; no source: they are trusted."""
    return _distrusted.get()


def permit(what: str, name: str) -> None:
    """Make sure that the code ``name`` may be run.

    Raises:
        UserError: what names it is not trusted; ``what``: the setting.
    """
    source, trusted = _distrusted.get()
    if source and name not in trusted:
        raise UserError(
            f"{what} = {name!r} is code that {source} names; it can do whatever you can: look at it, "
            "then allow it with --allow-code"
        )


def resolve(what: str, kind: str, built_in: Mapping[str, str]) -> Any:
    """The attribute that ``kind`` names.

    Args:
        what: the setting, for messages, such as ``policy.kind``.
        kind: a key of ``built_in`` or ``module:attribute``.
        built_in: name → ``module:attribute``.

    Raises:
        UserError: unknown name (with the nearest one), module or attribute, a module that fails while it
            is imported, or code of a source that is not trusted.
    """
    target = built_in.get(kind, kind)
    module_name, colon, attribute = target.partition(":")
    if colon and not (module_name and attribute):
        raise UserError(f"{what} = {kind!r} must be module:attribute, such as my_module:MyClass")
    if not colon:
        near = near_names(kind, built_in, most=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"{what} = {kind!r} is unknown; {hint}valid: {', '.join(built_in)}, or your own module:attribute"
        )
    if kind not in built_in:
        permit(what, kind)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{what} = {kind!r}: no module {error.name!r}; install it or correct the name"
        ) from error
    except USERS_FAULTS as error:
        raise UserError(f"{what} = {kind!r}: importing {module_name!r} fails: {in_words(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise UserError(
            f"{what} = {kind!r}: module {module_name!r} has no attribute {attribute!r}; correct the name"
        ) from None


def component(what: str, kind: str, built_in: Mapping[str, str], needs: Sequence[str], api: str) -> Any:
    """The class that ``kind`` names, with its ``Settings`` and everything else that it needs.

    Args:
        what, kind, built_in: as for ``resolve``.
        needs: attributes that it must have besides ``Settings``.
        api: the module that says what they are, for messages.

    Raises:
        UserError: as for ``resolve``, or it is no class, or lacks something.
    """
    found = resolve(what, kind, built_in)
    if not isinstance(found, type):
        raise UserError(f"{what} = {kind!r} must be a class, it is {a_type(found)}; see {api}")
    missing = [name for name in ("Settings", *needs) if not hasattr(found, name)]
    if missing:
        raise UserError(f"{what} = {kind!r} has no {', '.join(missing)}; see {api}")
    settings: Any = getattr(found, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, Settings)):
        raise UserError(f"{what} = {kind!r}: its Settings must be a subclass of rlvla3.settings.Settings")
    return found


@contextlib.contextmanager
def guarded(what: str, kind: str, called: object = None, *, foreign: bool = False) -> Iterator[None]:
    """Tell what code of the user's own does wrong in one line; that of this package shows its traceback.

    Args:
        what, kind: as for ``resolve``.
        called: the function or class of theirs that is called.
        foreign: what the built-in ``kind`` runs is not of this package either.

    Raises:
        UserError: the user's code raised something.
    """
    if ":" not in kind and not foreign:
        yield
        return
    try:
        yield
    except UserError:
        raise
    except USERS_FAULTS as error:
        raise UserError(f"{what} = {kind!r} fails: {in_words(error, called)}") from error


def in_words(error: BaseException, called: object = None) -> str:
    """An exception as one line: its type, what it says, and the place in the user's code, where it is.

    ``called``: the function or class of theirs that was called. Its place is told where none of its lines
    ran, because it takes other arguments, or it gave back something of no use.
    """
    text = ": ".join(part for part in (type(error).__name__, " ".join(str(error).split())) if part)
    if isinstance(error, SyntaxError):  # which says itself where
        return text
    place = place_of(error)
    return f"{text} ({place})" if place else text + defined(called)


def place_of(error: BaseException) -> str:
    """``file:line`` where an exception arose: the last line of theirs that ran, rather than one of an
    installed package that it called; empty if only lines of this package ran."""
    package = Path(__file__).parent
    ran = traceback.extract_tb(error.__traceback__)
    frames = [f for f in ran if package not in Path(f.filename).parents and not _of_python(f.filename)]
    own = [frame for frame in frames if not _installed(frame.filename)]
    return "".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in (own or frames)[-1:])


def _installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _of_python(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and not _installed(file))


def defined(called: object) -> str:
    """Where a function, or the constructor of a class, is defined, in brackets; empty where that is in this
    package, or not known."""
    function: Any = called.__init__ if isinstance(called, type) else called  # type: ignore[misc]
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or Path(__file__).parent in Path(code.co_filename).parents:
        return ""
    return f" ({Path(code.co_filename).name}:{code.co_firstlineno})"


def a_type(value: object) -> str:
    """The type of a value for people: ``a str``, ``an int``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
