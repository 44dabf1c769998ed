"""What can go wrong in a run, and when: a seeded schedule over all roles."""

import random
import signal
from dataclasses import dataclass
from typing import Literal

Role = Literal["simulator", "generator", "trainer", "controller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    role: Role
    signals: tuple[int, ...] = ()
    """Sent to a member, or to the controller; a stop is followed by its continuation after ``PAUSE_S``."""
    order: str = ""
    """Given to the role's parts instead."""
    ends: bool = False
    """The run ends by it and is resumed."""


PAUSE_S = 1.0
"""Between a stop and its continuation: less than the heartbeat's deadline."""
LONG_PAUSE_S = 4.0
"""Of the controller, whose members must not be blamed for it."""

FAULTS = (
    Fault(name="kill", role="simulator", signals=(signal.SIGKILL,)),
    Fault(name="stop", role="simulator", signals=(signal.SIGSTOP,)),
    Fault(name="pause", role="simulator", signals=(signal.SIGSTOP, signal.SIGCONT)),
    Fault(name="exception", role="simulator", order="exception"),
    Fault(name="hang", role="simulator", order="hang"),
    Fault(name="slow step", role="simulator", order="slow"),
    Fault(name="NaN reward", role="simulator", order="nan_reward"),
    Fault(name="NaN observation", role="simulator", order="nan_observation"),
    Fault(name="kill", role="generator", signals=(signal.SIGKILL,)),
    Fault(name="stop", role="generator", signals=(signal.SIGSTOP,)),
    Fault(name="pause", role="generator", signals=(signal.SIGSTOP, signal.SIGCONT)),
    Fault(name="exception", role="generator", order="exception"),
    Fault(name="hang", role="generator", order="hang"),
    Fault(name="slow batch", role="generator", order="slow"),
    Fault(name="pause", role="trainer", signals=(signal.SIGSTOP, signal.SIGCONT)),
    Fault(name="slow update", role="trainer", order="slow"),
    Fault(name="skipped update", role="trainer", order="skip"),
    Fault(name="kill", role="trainer", signals=(signal.SIGKILL,), ends=True),
    Fault(name="stop", role="trainer", signals=(signal.SIGSTOP,), ends=True),
    Fault(name="exception", role="trainer", order="exception", ends=True),
    Fault(name="hang", role="trainer", order="hang", ends=True),
    Fault(name="NaN weights", role="trainer", order="nan_weights", ends=True),
    Fault(name="pause", role="controller", signals=(signal.SIGSTOP, signal.SIGCONT)),
    Fault(name="kill", role="controller", signals=(signal.SIGKILL,), ends=True),
    Fault(name="SIGTERM", role="controller", signals=(signal.SIGTERM,), ends=True),
    Fault(name="SIGINT", role="controller", signals=(signal.SIGINT,), ends=True),
)
"""Every kind; a run of 20 minutes has time for each about three times."""

TARGETS: dict[Role, str] = {"simulator": "env", "generator": "batch", "trainer": "update"}
"""Who obeys a role's orders."""


def schedule(seed: int, count: int) -> list[Fault]:
    """``count`` faults: every kind in a random order, then every kind again, and so on."""
    source = random.Random(seed)
    found: list[Fault] = []
    while len(found) < count:
        found += source.sample(FAULTS, len(FAULTS))
    return found[:count]
