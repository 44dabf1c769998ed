"""What was trained, read from the learner's own record and held against the last checkpoint."""

import json
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.faults import Fault
from rlvla3.learner import checkpoint
from rlvla3.metrics import Row

WINDOW_S = 2.0
"""Throughput is that of so many seconds."""
BACK = 0.7
"""Part of the calm throughput that counts as its return: two cores share it with the starting members."""
BACK_S = 10.0
MAX_LAG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that happened."""

    fault: Fault
    victim: str
    s: float
    """When, on the monotonic clock."""

    def __str__(self) -> str:
        return f"{self.fault.name} of {self.victim}"


class Ledger:
    """The record, read as it grows."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read = 0
        self._lines: list[dict[str, Any]] = []
        self.last_s = float("inf")
        """When the newest version was trained."""

    def read(self) -> bool:
        """Read what is new; whether there is anything at all."""
        if self._file.exists():
            with self._file.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            self._lines += [json.loads(line) for line in whole.splitlines()]
        if self._lines:
            self.last_s = self._lines[-1]["s"]
        return bool(self._lines)

    @property
    def versions(self) -> int:
        """Versions trained, those included that a resume trained again."""
        return len(self._lines)

    def history(self) -> list[dict[str, Any]]:
        """What led to the newest weights: a resume forgets the versions after its checkpoint."""
        kept: list[dict[str, Any]] = []
        for line in self._lines:
            while kept and kept[-1]["version"] >= line["version"]:
                kept.pop()
            kept.append(line)
        return kept

    # --- the books -----------------------------------------------------------------------------

    def doubly_trained(self) -> int:
        """Episodes that the newest weights have seen twice."""
        seen = Counter(tuple(item["start"]) for line in self.history() for item in line["trained"])
        return sum(count - 1 for count in seen.values())

    def lost(self, run: Path) -> int:
        """Starts that were handed out, never trained, are not to be handed out again, and were not dropped
        for a counted reason (a skipped update)."""
        state = self._state(run)
        starts, version = state["flights"]["starts"], state["version"]
        handed_out = {
            (task, number)
            for task, count in enumerate(starts["sequence"]["counts"])
            for number in range(count)
        }
        trained = {
            tuple(item["start"])
            for line in self.history()
            if line["version"] <= version
            for item in line["trained"]
        }
        again = {(task, number) for _, task, _, number, _ in starts["again"]}
        return len(handed_out - trained - again) - self.skipped(run)

    def skipped(self, run: Path) -> int:
        """Episodes whose update was skipped, as the last checkpoint counts them."""
        count: int = self._state(run)["statistics"]["dropped"].get("skipped_update", 0)
        return count

    def _state(self, run: Path) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(checkpoint.engine_state(checkpoint.find(run, resume=True)))
        return state

    # --- throughput ----------------------------------------------------------------------------

    def _rate(self, times: list[float], first_s: float) -> float:
        """Versions per second in the window that begins at ``first_s``."""
        return (bisect_left(times, first_s + WINDOW_S) - bisect_left(times, first_s)) / WINDOW_S

    def back_s(self, struck: list[Struck], calm_s: float) -> tuple[float, list[float]]:
        """The calm throughput, and for each fault the seconds until it was back for good.

        That is the end of the last slow window before the next fault; whatever is slow for another
        reason counts too.
        """
        times = [line["s"] for line in self._lines]
        begin_s = struck[0].s - calm_s
        calm = (bisect_left(times, struck[0].s) - bisect_left(times, begin_s)) / calm_s
        ends = [*(one.s for one in struck[1:]), times[-1]]
        found = []
        for one, end_s in zip(struck, ends, strict=True):
            steps = int(max(end_s - WINDOW_S - one.s, 0.0) / 0.1)
            slow = [k for k in range(steps) if self._rate(times, one.s + 0.1 * k) < BACK * calm]
            found.append(0.1 * slow[-1] + WINDOW_S if slow else 0.0)
        return calm, found

    def figures(self, struck: list[Struck], run: Path, calm_s: float) -> list[Row]:
        """All that is held against a bound, then how long each kind of fault took."""
        calm, back_s = self.back_s(struck, calm_s)
        lags = [item["lag"] for line in self._lines for item in line["trained"]]
        rows = [
            Row(name="faults", value=float(len(struck)), unit="", bound=60.0),
            Row(name="hangs", value=0.0, unit="", bound=0.0),
            Row(name="episodes/trained_twice", value=float(self.doubly_trained()), unit="", bound=0.0),
            Row(name="episodes/lost", value=float(self.lost(run)), unit="", bound=0.0),
            Row(name="episodes/in_skipped_updates", value=float(self.skipped(run)), unit=""),
            Row(name="episodes/trained", value=float(len(lags)), unit=""),
            Row(name="lag/max", value=float(max(lags)), unit="versions", bound=float(MAX_LAG)),
            Row(name="lag/below_zero", value=float(sum(lag < 0 for lag in lags)), unit="", bound=0.0),
            Row(name="versions", value=float(self.versions), unit=""),
            Row(name="calm", value=calm, unit="versions/s"),
            Row(name="back_s/max", value=max(back_s), unit="s", bound=BACK_S),
        ]
        kinds = sorted({(one.fault.role, one.fault.name) for one in struck})
        for role, name in kinds:
            of_kind = [
                s
                for one, s in zip(struck, back_s, strict=True)
                if (one.fault.role, one.fault.name) == (role, name)
            ]
            rows.append(
                Row(name=f"back_s/{role}/{name}", value=max(of_kind), unit=f"s, worst of {len(of_kind)}")
            )
        return rows
