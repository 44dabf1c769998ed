"""A run that is killed again and again, all of it at once, and resumed, against one that nobody disturbs.

    python -m chaos.resume [--kills 30] [--seed 1] [--json FILE]

A third of the kills each: a deterministic run of ``reach`` with real gradients, the same on Meta-World
(pictures from GL), and an ``aa`` run whose every trained episode is verified and counted. The first two
must end with the very same bits in weights, averages and optimiser.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from live import Command, alive, members_of, values, wait_for

from chaos.ledger import Ledger
from chaos.soak import broken
from rlvla3.learner import checkpoint
from rlvla3.metrics import Row, write_figures

LIMIT_S = 600.0
"""Of one undisturbed run."""
EXACT = ("weights.safetensors", "average.safetensors", "optimiser.safetensors")
DETERMINISTIC = (
    *("schedule.mode=as", "schedule.deterministic=true", "budget_s=0", "learner.options.schedule_s=0"),
    *("checkpoint.every_versions=1", "evaluation.every_versions=0", "log.tensorboard=false"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A run that is to be disturbed."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    latest_s: float
    """The latest moment of a kill after a start; the first versions are trained by then."""


TASKS = (
    Task(
        name="reach",
        recipe="reach",
        overrides=(*DETERMINISTIC, "trainer.updates=60"),
        latest_s=9.0,
    ),
    Task(
        name="metaworld",
        recipe="demo",
        overrides=(
            *DETERMINISTIC,
            *("trainer.updates=16", "trainer.batch=8", "trainer.micro_batch=8", "learner.options.epochs=1"),
        ),
        latest_s=14.0,
    ),
)


def killed_and_resumed(folder: Path, arguments: Sequence[str], kills: int, latest_s: float, seed: int) -> int:
    """Run to the end, with at most ``kills`` interruptions; returns how many there were."""
    moments = random.Random(seed)
    run, happened = folder / "run", 0
    while True:
        resume = ["--resume"] if (run / "config.yaml").is_file() else []
        command = Command(folder / f"output-{happened}", *arguments, "--folder", str(run), *resume)
        try:
            until_s = time.monotonic() + moments.uniform(0.2, latest_s)
            while happened < kills and alive(command.pid) and time.monotonic() < until_s:
                time.sleep(0.02)
            if happened == kills or not alive(command.pid):
                assert command.wait(LIMIT_S) == 0, command.text
                return happened
            members = list(members_of(command.pid).values())
            for pid in (command.pid, *members):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            happened += 1
            wait_for(lambda pids=members: not any(alive(pid) for pid in pids), 10.0, "the end of its members")
        finally:
            command.close()


def digests(run: Path) -> dict[str, str]:
    """Checksums of the newest checkpoint's numbers."""
    folder = checkpoint.find(run, resume=True)
    files = json.loads((folder / checkpoint.MANIFEST).read_text())["files"]
    return {name: files[name]["sha256"] for name in EXACT}


def exact(task: Task, kills: int, seed: int, folder: Path) -> list[Row]:
    """Disturbed and undisturbed, bit by bit."""
    arguments = ["train", task.recipe, *task.overrides]
    calm = folder / "calm"
    killed_and_resumed(calm, arguments, 0, task.latest_s, seed)
    happened = killed_and_resumed(folder / "killed", arguments, kills, task.latest_s, seed)
    wanted, found = digests(calm / "run"), digests(folder / "killed" / "run")
    differing = sum(found[name] != wanted[name] for name in EXACT)
    return [
        Row(name=f"{task.name}/kills", value=float(happened), unit=""),
        Row(name=f"{task.name}/files_that_differ", value=float(differing), unit="", bound=0.0),
    ]


def counted(kills: int, seed: int, folder: Path) -> list[Row]:
    """Every episode of an ``aa`` run is trained once in the history of its last weights."""
    learner = {"kind": "echo:Recording", "options": {"file": str(folder / "trained")}}
    changes = {"learner": learner, "checkpoint": {"every_versions": 5}, "trainer": {"updates": 800}}
    recipe = folder / "recipe.yaml"
    folder.mkdir(parents=True)
    recipe.write_text(yaml.safe_dump(values(changes)))
    happened = killed_and_resumed(folder, ["train", str(recipe)], kills, 6.0, seed)
    ledger = Ledger(folder / "trained")
    ledger.read()
    trained = sum(len(line["trained"]) for line in ledger.history())
    return [
        Row(name="aa/kills", value=float(happened), unit=""),
        Row(name="aa/trained_twice", value=float(ledger.doubly_trained()), unit="", bound=0.0),
        Row(name="aa/lost", value=float(ledger.lost(folder / "run")), unit="", bound=0.0),
        Row(name="aa/missing", value=float(800 * 8 - trained), unit="episodes", bound=0.0),
    ]


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    each = max(arguments.kills // 3, 1)
    rows: list[Row] = []
    with TemporaryDirectory(prefix="rlvla3-resume-") as name:
        for task in TASKS:
            rows += exact(task, each, arguments.seed, Path(name) / task.name)
        rows += counted(each, arguments.seed, Path(name) / "aa")
    if arguments.json is not None:
        write_figures(arguments.json, rows)
    for row in rows:
        sys.stdout.write(f"{row.name} {row.value:g} {row.unit}\n")
    return 1 if any(broken(row.name, row.value, row.bound) for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
