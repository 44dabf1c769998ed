"""Orders to go wrong: files that the next env, inference batch or update takes, and obeys once."""

import os
import threading
import time
from pathlib import Path

SLOW_S = 1.5
"""How long what is slow takes."""


def give(folder: Path, target: str, what: str) -> None:
    """Let the next ``target`` do ``what``; an order that nobody took yet is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"new-{target}"
    new.write_text(what)
    new.rename(folder / target)


def take(folder: str, target: str) -> str:
    """The order for ``target``, which is gone then; empty without one."""
    order = Path(folder, target)
    if not order.exists():
        return ""
    mine = order.with_name(f"{target}-{os.getpid()}-{threading.get_ident()}")
    try:
        order.rename(mine)
    except FileNotFoundError:
        return ""
    return mine.read_text()


def obey(what: str) -> None:
    """Do what any part can do: hang, raise or be slow.

    Raises:
        RuntimeError: as ordered.
    """
    if what == "hang":
        threading.Event().wait()
    elif what == "exception":
        raise RuntimeError("as ordered")
    elif what == "slow":
        time.sleep(SLOW_S)
