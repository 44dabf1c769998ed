"""Memory over a long run: thousands of versions, and a thousand resets of each simulator.

    python -m chaos.memory [--versions 10000] [--resets 1000] [--json FILE]

Held against a bound: growth of every process from the tenth part of the run to its end.
"""

import argparse
import gc
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from live import Command, alive, members_of

from rlvla3.messages import Start
from rlvla3.metrics import Row, write_figures
from rlvla3.simulators.registry import simulator_class

MOST_MIB = 8.0
"""Growth that counts as none: what an allocator keeps varies by this much."""
SMALL = (
    *("trainer.batch=4", "trainer.micro_batch=4", "learner.options.epochs=1", "simulator.envs=8"),
    *("simulator.options.step_limits=10", "checkpoint.every_versions=1000", "budget_s=0"),
)
SIMULATORS: dict[str, dict[str, object]] = {
    "synthetic": {"task": "reach"},
    "metaworld": {"tasks": ["button-press-topdown-v3", "reach-v3"], "image_size": 64},
    "gymnasium": {"env_id": "Pendulum-v1"},
}


def memory_mib(pid: int) -> float:
    """Resident memory that is the process's own: shared memory and files are left out."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) / 1024


def growth(values: list[float]) -> float:
    """Median of the last tenth less median of the second tenth."""
    tenth = max(len(values) // 10, 1)
    return float(np.median(values[-tenth:]) - np.median(values[tenth : 2 * tenth]))


def over_versions(versions: int, folder: Path) -> list[Row]:
    """A run of the synthetic recipe with real gradients; every process is looked at a thousand times."""
    arguments = ["train", "reach", *SMALL, f"trainer.updates={versions}", "--folder", str(folder / "run")]
    command = Command(folder, *arguments)
    seen: dict[str, list[float]] = {}
    file = folder / "run" / "metrics.jsonl"
    done = looked = read = 0
    try:
        while alive(command.pid):
            text = file.read_bytes()[read:] if file.exists() else b""
            read += len(text)
            done += text.count(b"\n")
            if done >= looked + max(versions // 1000, 1):
                looked = done
                for name, pid in {"controller": command.pid, **members_of(command.pid)}.items():
                    seen.setdefault(name, []).append(memory_mib(pid))
            else:
                time.sleep(0.05)
        assert command.wait(60.0) == 0, command.text
    finally:
        command.close()
    return [
        Row(name="versions", value=float(done), unit="", bound=None),
        *(
            Row(name=f"versions/{name}/growth", value=growth(values), unit="MiB", bound=MOST_MIB)
            for name, values in seen.items()
        ),
        *(
            Row(name=f"versions/{name}/memory", value=values[-1], unit="MiB", bound=None)
            for name, values in seen.items()
        ),
    ]


def over_resets(kind: str, options: dict[str, object], resets: int) -> Row:
    """One env, reset and looked at again and again."""
    simulator = simulator_class(kind)
    adapter = simulator(simulator.Settings(**options))
    env, spec = adapter.make(), adapter.spec
    action = np.zeros(spec.action_dim, np.float32)
    values = []
    for state in range(resets):
        env.reset(Start(task=state % len(spec.tasks), split="train", state=state), 0)
        env.step(action)
        env.observe()
        if state % max(resets // 100, 1) == 0:
            gc.collect()
            values.append(memory_mib(os.getpid()))
    env.close()
    return Row(name=f"resets/{kind}/growth", value=growth(values), unit="MiB", bound=MOST_MIB)


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--resets", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="rlvla3-memory-") as name:
        rows = over_versions(arguments.versions, Path(name))
    rows += [over_resets(kind, options, arguments.resets) for kind, options in SIMULATORS.items()]
    if arguments.json is not None:
        write_figures(arguments.json, rows)
    for row in rows:
        bound = "" if row.bound is None else f"  (bound {row.bound:g})"
        sys.stdout.write(f"{row.name} {row.value:.4g} {row.unit}{bound}\n")
    return 1 if any(row.bound is not None and row.value > row.bound for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
