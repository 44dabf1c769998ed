"""The whole cycle of a recipe, as one types it: warm start, training, evaluation, resume, evaluation again.

    python benchmarks/cycle.py RECIPE [key=value ...] [--folder FOLDER] [--json FILE]

Training stops after half of the recipe's versions and is resumed for the rest. Figures: seconds of each
step and of all, versions and the largest lag, success rates.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rlvla3.config import load_config
from rlvla3.metrics import Row, write_figures

COMMAND = str(Path(sys.executable).with_name("rlvla3"))
MOST_S = 300.0
"""Seconds that a cycle may take."""


class Cycle:
    """The commands of one cycle and the figures they printed."""

    def __init__(self, recipe: str, overrides: Sequence[str], folder: Path) -> None:
        self._recipe = recipe
        self._overrides = list(overrides)
        self._folder = folder
        self.rows: list[Row] = []

    def run(self) -> list[Row]:
        """Run all commands; the figures.

        Raises:
            SystemExit: a command failed.
        """
        start_s = time.monotonic()
        updates = load_config(self._recipe, self._overrides).trainer.updates
        clone, run = str(self._folder / "clone"), str(self._folder / "run")
        self._step("sft", self._recipe, *self._overrides, "--folder", clone)
        chosen = [*self._overrides, f"weights={clone}", f"trainer.updates={updates // 2}"]
        self._step("train", self._recipe, *chosen, "--folder", run)
        self._step("eval", run)
        self._step("train", run, "--resume", f"trainer.updates={updates}", name="resume")
        self._step("eval", run, name="eval_resumed")
        self.rows.insert(0, Row(name="seconds", value=time.monotonic() - start_s, unit="s", bound=MOST_S))
        return self.rows

    def _step(self, *command: str, name: str = "") -> None:
        name = name or command[0]
        file = self._folder / f"{name}.json"
        start_s = time.monotonic()
        done = subprocess.run([COMMAND, *command, "--json", str(file)], check=False)
        if done.returncode:
            raise SystemExit(f"rlvla3 {' '.join(command)}: exit code {done.returncode}")
        self.rows.append(Row(name=f"{name}/duration", value=time.monotonic() - start_s, unit="s"))
        for row in json.loads(file.read_text())["rows"]:
            if row["name"] in ("versions", "lag_max", "success_rate"):
                self.rows.append(Row(name=f"{name}/{row['name']}", value=row["value"], unit=row["unit"]))


def main() -> None:
    """Run a cycle; exit code 1: it took too long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--folder", type=Path, help="where the runs stay (default: nowhere)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="rlvla3-cycle-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows = Cycle(arguments.recipe, arguments.overrides, folder).run()
    if arguments.json:
        write_figures(arguments.json, rows)
    for row in rows:
        bound = "" if row.bound is None else f" (bound {row.bound:g})"
        sys.stdout.write(f"{row.name} {row.value:.4g} {row.unit}{bound}\n")
    raise SystemExit(any(row.bound is not None and row.value > row.bound for row in rows))


if __name__ == "__main__":
    main()
