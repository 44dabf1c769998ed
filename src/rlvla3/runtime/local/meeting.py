"""Where the members of a Trainer find each other: a file in the run folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rlvla3.errors import UserError

_NAME = "trainers.store"


@contextlib.contextmanager
def meeting_place(folder: Path) -> Iterator[Path]:
    """An empty file for one start of the runtime; what a killed one left there would mislead its members.

    Raises:
        UserError: it cannot be written.
    """
    path = folder.absolute() / _NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}), and the Trainer's members meet there; "
            "use another --folder, or trainer.members=1"
        ) from error
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
