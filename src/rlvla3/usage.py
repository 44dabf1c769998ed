"""Where a member's time goes: wall and CPU seconds of each kind of work."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Totals of one section."""

    wall_s: float
    cpu_s: float
    count: int


class _Section:
    """Accumulates one section; not re-entrant, one thread at a time."""

    __slots__ = ("_clock", "_cpu_start", "_wall_start", "count", "cpu_s", "wall_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wall_start = 0.0
        self._cpu_start = 0.0
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.count = 0

    def __enter__(self) -> None:
        self._wall_start = time.perf_counter()
        self._cpu_start = self._clock()

    def __exit__(self, *_: object) -> None:
        self.cpu_s += self._clock() - self._cpu_start
        self.wall_s += time.perf_counter() - self._wall_start
        self.count += 1


class Usage:
    """Time account of one thread: ``with usage("simulate"): ...``.

    Each thread has its own account; `merged` adds accounts up. CPU seconds are the calling
    thread's, or with ``whole_process`` those of all its threads (a section that computes on
    several threads).
    """

    __slots__ = ("_clock", "_sections")

    def __init__(self, whole_process: bool = False) -> None:
        self._clock = time.process_time if whole_process else time.thread_time
        self._sections: dict[str, _Section] = {}

    def __call__(self, section: str) -> _Section:
        """The section's context manager."""
        found = self._sections.get(section)
        if found is None:
            found = self._sections[section] = _Section(self._clock)
        return found

    def snapshot(self) -> dict[str, Spent]:
        """Totals of each section so far."""
        return {
            name: Spent(wall_s=section.wall_s, cpu_s=section.cpu_s, count=section.count)
            for name, section in list(self._sections.items())
        }


def merged(snapshots: Sequence[Mapping[str, Spent]]) -> dict[str, Spent]:
    """Section totals over several accounts."""
    totals: dict[str, Spent] = {}
    for snapshot in snapshots:
        for name, spent in snapshot.items():
            old = totals.get(name, Spent(wall_s=0.0, cpu_s=0.0, count=0))
            totals[name] = Spent(
                wall_s=old.wall_s + spent.wall_s, cpu_s=old.cpu_s + spent.cpu_s, count=old.count + spent.count
            )
    return totals


def since(now: Mapping[str, Spent], before: Mapping[str, Spent]) -> dict[str, Spent]:
    """What was spent between two snapshots of one account."""
    zero = Spent(wall_s=0.0, cpu_s=0.0, count=0)
    result = {}
    for name, spent in now.items():
        old = before.get(name, zero)
        result[name] = Spent(
            wall_s=spent.wall_s - old.wall_s, cpu_s=spent.cpu_s - old.cpu_s, count=spent.count - old.count
        )
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A section's part of the members' time: ``wall`` and ``cpu`` in [0, 1]."""

    wall: float
    cpu: float


def shares(snapshots: Sequence[Mapping[str, Spent]], wall_s: float) -> dict[str, Share]:
    """Each section's part of ``wall_s`` seconds of every member (denominator: members x wall).

    Raises:
        ValueError: no members or no time.
    """
    if not snapshots or wall_s <= 0:
        raise ValueError(f"shares need members and a positive time, got {len(snapshots)} and {wall_s} s")
    whole = wall_s * len(snapshots)
    return {
        name: Share(wall=spent.wall_s / whole, cpu=spent.cpu_s / whole)
        for name, spent in merged(snapshots).items()
    }
