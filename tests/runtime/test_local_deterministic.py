"""``schedule.deterministic``: the same bits whatever the number of processes and the order of arrival."""

from pathlib import Path

import pytest
from chaos.resume import DETERMINISTIC, digests
from live import Command

pytestmark = pytest.mark.live

SAME = (
    *DETERMINISTIC,
    *("trainer.updates=4", "trainer.batch=16", "trainer.micro_batch=8", "simulator.options.step_limits=20"),
    *("generator.max_batch_size=8", "imitation.options.steps=20", "imitation.demonstrations.per_task=2"),
)
LAYOUTS = {
    "one of each": ("simulator.members=1", "simulator.envs=8", "simulator.slots=2"),
    "two of each": (
        *("simulator.members=2", "simulator.envs=4", "simulator.slots=1", "generator.members=2"),
        *("generator.routing=least_loaded", "generator.linger_ms=0"),
    ),
    "a slot for each env": (
        *("simulator.members=1", "simulator.envs=8", "simulator.slots=8", "simulator.lanes=4"),
        *("simulator.options.mean_ms=0.5", "simulator.options.cv=2", "simulator.options.latency=heavy_tail"),
    ),
}


def test_bits_do_not_depend_on_processes_or_arrival(tmp_path: Path) -> None:
    found = {}
    for name, layout in LAYOUTS.items():
        folder = tmp_path / name.replace(" ", "-")
        command = Command(folder, "train", "reach", *SAME, *layout, "--folder", str(folder / "run"))
        try:
            assert command.wait() == 0, command.text
        finally:
            command.close()
        found[name] = digests(folder / "run")
    assert found["two of each"] == found["one of each"]
    assert found["a slot for each env"] == found["one of each"]


def test_another_seed_gives_other_bits(tmp_path: Path) -> None:
    """What is compared above can differ."""
    found = []
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        arguments = ("train", "reach", *SAME, *LAYOUTS["one of each"], f"seed={seed}", "trainer.updates=1")
        command = Command(folder, *arguments, "--folder", str(folder / "run"))
        try:
            assert command.wait() == 0, command.text
        finally:
            command.close()
        found.append(digests(folder / "run"))
    assert all(found[0][name] != found[1][name] for name in found[0])
