"""A long run that something happens to every few seconds, and whose books must balance at its end.

    python -m chaos.soak [--minutes 20] [--seed 1] [--json FILE]

The run is the real one: the command in a process of its own, the local runtime, processes and shared
memory; env, policy and learner are emulated and verify every row that is trained. Exit code 1: an
episode was lost or trained twice, the lag was beyond its bound, something hung, or throughput was not
back 10 seconds after a fault.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from live import Command, alive, members_of, values, wait_for

from chaos.faults import LONG_PAUSE_S, PAUSE_S, TARGETS, Fault, schedule
from chaos.ledger import Ledger, Struck
from chaos.orders import give
from rlvla3.metrics import write_figures

EVERY_S = 15.0
"""Mean time between two faults."""
CALM_S = 12.0
"""Undisturbed time at the beginning, whose throughput is the measure."""
HUNG_S = 30.0
"""Without a new version for so long, the run hangs."""
DEADLINES = {
    "heartbeat_timeout_s": 2.2,
    "step_timeout_s": 3,
    "inference_timeout_s": 3,
    "update_timeout_s": 4,
    "startup_timeout_s": 30,
    "restarts": 10_000,
    "start_attempts": 10_000,
}


class Soak:
    """The run, and what is done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "trained")
        self.struck: list[Struck] = []
        self._orders = folder / "orders"
        self._random = random.Random(seed)
        self._recipe = folder / "recipe.yaml"
        self._recipe.write_text(yaml.safe_dump(self._configuration()))
        self._starts = 0
        self._command = self._start()

    def _configuration(self) -> dict[str, object]:
        orders = str(self._orders)
        return values(
            {
                "simulator": {"kind": "chaos.parts:Simulator", "options": {"orders": orders}},
                "generator": {"members": 2},
                "policy": {"kind": "chaos.parts:Policy", "options": {"orders": orders}},
                "learner": {
                    "kind": "chaos.parts:Learner",
                    "options": {"orders": orders, "file": str(self.folder / "trained")},
                },
                "trainer": {"updates": 1_000_000},
                "checkpoint": {"every_versions": 25},
                "health": DEADLINES,
            }
        )

    def _start(self) -> Command:
        """Start or resume the run."""
        self._starts += 1
        resume = ["--resume"] if self._starts > 1 else []
        arguments = ["train", str(self._recipe), "--folder", str(self.folder / "run"), *resume]
        return Command(self.folder / f"output-{self._starts}", *arguments)

    def close(self) -> None:
        """Kill whatever is left."""
        self._command.close()

    # --- one fault -----------------------------------------------------------------------------

    def go(self, faults: Sequence[Fault], calm_s: float = CALM_S, every_s: float = EVERY_S) -> None:
        """Let the faults happen one after the other, then end the run with a checkpoint."""
        wait_for(lambda: self.ledger.read() and self.ledger.versions >= 10, HUNG_S, "the first versions")
        self._live_on(time.monotonic() + calm_s)
        for fault in faults:
            self._strike(fault)
            self._live_on(time.monotonic() + every_s * self._random.uniform(0.8, 1.2))
        self._command.send(signal.SIGTERM)
        self._command.wait(20.0)
        self.ledger.read()

    def _strike(self, fault: Fault) -> None:
        members = members_of(self._command.pid)
        now_s = time.monotonic()
        if fault.order:
            give(self._orders, TARGETS[fault.role], fault.order)
            victim = fault.role
        elif fault.role == "controller":
            victim = "controller"
            self._send(self._command.pid, fault, LONG_PAUSE_S)
        else:
            victim = self._random.choice([name for name in members if name.startswith(fault.role)])
            self._send(members[victim], fault, PAUSE_S)
        self.struck.append(Struck(fault=fault, victim=victim, s=now_s))
        if fault.ends:
            try:
                self._resume(list(members.values()))
            except AssertionError as error:
                error.add_note(f"after {self.struck[-1]}, number {len(self.struck)}")
                raise

    def _send(self, pid: int, fault: Fault, pause_s: float) -> None:
        for number in fault.signals:
            if number == signal.SIGCONT:
                time.sleep(pause_s)
            os.kill(pid, number)

    def _resume(self, members: list[int]) -> None:
        """The run ends, quickly and with all it had started; go on from its checkpoint."""
        self._command.wait(15.0)
        wait_for(lambda: not any(alive(pid) for pid in members), 5.0, "the end of its members")
        self._command = self._start()

    def _live_on(self, until_s: float) -> None:
        """Watch the run until then; it must go on all the time."""
        while time.monotonic() < until_s:
            time.sleep(0.2)
            self.ledger.read()
            if not alive(self._command.pid):
                raise AssertionError(f"the run ended, and nothing was done to end it:\n{self._command.text}")
            if time.monotonic() - self.ledger.last_s > HUNG_S:
                raise AssertionError(f"no version for {HUNG_S:.0f} s after {self.struck[-1]}")


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="rlvla3-chaos-") as name:
        soak = Soak(Path(name), arguments.seed)
        try:
            soak.go(schedule(arguments.seed, max(int(60 * arguments.minutes / EVERY_S), 1)))
        finally:
            soak.close()
        rows = soak.ledger.figures(soak.struck, Path(name) / "run", CALM_S)
    if arguments.json is not None:
        write_figures(arguments.json, rows)
    for row in rows:
        bound = "" if row.bound is None else f"  (bound {row.bound:g})"
        sys.stdout.write(f"{row.name} {row.value:.4g} {row.unit}{bound}\n")
    return 1 if any(broken(row.name, row.value, row.bound) for row in rows) else 0


def broken(name: str, value: float, bound: float | None) -> bool:
    """Whether a figure misses its bound: at least so many faults, at most so much of all else."""
    if bound is None:
        return False
    return value < bound if name == "faults" else value > bound


if __name__ == "__main__":
    raise SystemExit(main())
