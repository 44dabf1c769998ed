"""A timeline of every member, written as Chrome trace JSON, which Perfetto opens.

Times are seconds of ``time.perf_counter`` (one monotonic clock for all processes of a machine).
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlvla3.run_folder import write_text


class TraceEvent(NamedTuple):
    """One entry. ``kind``: ``X`` a span, ``i`` an instant, ``C`` a counter."""

    kind: str
    name: str
    start_s: float
    duration_s: float
    lane: str
    args: dict[str, Any]


class Tracer:
    """Records one member's events; keeps the newest ``limit``. ``limit=0``: off, costs nothing."""

    __slots__ = ("_events", "_recorded", "enabled")

    def __init__(self, limit: int = 0) -> None:
        self.enabled = limit > 0
        self._events: deque[TraceEvent] = deque(maxlen=limit)
        self._recorded = 0

    def span(self, name: str, start_s: float, end_s: float, lane: str = "", **args: Any) -> None:
        """Something that lasted; spans of one lane must nest or be disjoint."""
        if self.enabled:
            self._record(TraceEvent("X", name, start_s, end_s - start_s, lane, args))

    def instant(self, name: str, at_s: float, lane: str = "", **args: Any) -> None:
        """Something that happened at a moment."""
        if self.enabled:
            self._record(TraceEvent("i", name, at_s, 0.0, lane, args))

    def counter(self, name: str, at_s: float, value: float) -> None:
        """A quantity from this moment on, such as a queue's length."""
        if self.enabled:
            self._record(TraceEvent("C", name, at_s, 0.0, "", {name: value}))

    def _record(self, event: TraceEvent) -> None:
        self._events.append(event)
        self._recorded += 1

    @property
    def dropped(self) -> int:
        """Oldest events that the limit pushed out and `take` never gave."""
        return self._recorded - len(self._events)

    def take(self) -> list[TraceEvent]:
        """The events so far, oldest first; the tracer forgets them."""
        taken = list(self._events)
        self._events.clear()
        self._recorded -= len(taken)
        return taken


def write_trace(path: Path, members: Mapping[str, Sequence[TraceEvent]]) -> None:
    """Merge the members' events into one file: a process per member, a thread per lane.

    Raises:
        UserError: the file cannot be written.
    """
    events = [event for member in members.values() for event in member]
    origin_s = min((event.start_s for event in events), default=0.0)
    rows: list[dict[str, Any]] = []
    for pid, (member, recorded) in enumerate(members.items(), start=1):
        rows.append(_name("process_name", member, pid, 0))
        lanes = {lane: tid for tid, lane in enumerate(sorted({event.lane for event in recorded}), start=1)}
        rows += [_name("thread_name", lane or member, pid, tid) for lane, tid in lanes.items()]
        rows += [_row(event, origin_s, pid, lanes[event.lane]) for event in recorded]
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_text(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')


def _name(kind: str, name: str, pid: int, tid: int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _row(event: TraceEvent, origin_s: float, pid: int, tid: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ph": event.kind,
        "name": event.name,
        "ts": round((event.start_s - origin_s) * 1e6, 3),
        "pid": pid,
        "tid": tid,
        "args": event.args,
    }
    if event.kind == "X":
        row["dur"] = round(event.duration_s * 1e6, 3)
    if event.kind == "i":
        row["s"] = "t"
    return row
