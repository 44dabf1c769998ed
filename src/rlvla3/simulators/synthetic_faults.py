"""Scripted faults of the synthetic simulator: what goes wrong, where, and whether it already has."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from rlvla3.settings import Settings

Place = tuple[int, str, int, int]
"""Task, split, state and sub-step (0: the reset)."""


class Fault(Settings):
    """Something that goes wrong at a chosen place, to test what the rest of a run does."""

    kind: Literal["hang", "crash", "exception", "slow_reset", "nan_reward", "nan_observation"]
    """``hang`` blocks for ever, ``crash`` kills its own process (SIGKILL), ``exception`` raises,
    ``slow_reset`` sleeps ``seconds`` in reset, ``nan_reward`` returns a NaN reward, ``nan_observation``
    makes the next observation NaN."""
    start_state: int = Field(ge=0)
    """Initial state (``Start.state``) whose episode is struck."""
    split: Literal["train", "held_out", "demonstration"] = "train"
    """Split of that state."""
    task: int = Field(default=0, ge=0)
    """Task index of that episode."""
    step: int = Field(default=1, ge=0)
    """Sub-step that is struck, from 1; 0: the reset. ``slow_reset`` always strikes the reset."""
    seconds: float = Field(default=1.0, ge=0)
    """Length of ``slow_reset``."""
    marker: str = ""
    """File made just before the fault strikes; while it exists the fault does not strike, so that a
    restarted process gets past it. Empty: strikes every time."""


def strike(faults: Sequence[Fault], here: Place) -> list[str]:
    """Let the faults of this place strike; returns the kinds of those that come back."""
    struck: list[str] = []
    for fault in faults:
        step = 0 if fault.kind == "slow_reset" else fault.step
        if (fault.task, fault.split, fault.start_state, step) == here and _armed(fault):
            _do(fault, here)
            struck.append(fault.kind)
    return struck


def _armed(fault: Fault) -> bool:
    if not fault.marker:
        return True
    try:
        Path(fault.marker).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _do(fault: Fault, here: Place) -> None:
    if fault.kind == "hang":
        threading.Event().wait()
    elif fault.kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.kind == "slow_reset":
        time.sleep(fault.seconds)
    elif fault.kind == "exception":
        raise RuntimeError(f"scripted fault at (task, split, state, sub-step) = {here}")
