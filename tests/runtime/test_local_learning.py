"""Learning through real processes: groups, several Trainer members, bits that do not depend on arrival."""

import json
from pathlib import Path
from typing import Any

import pytest
from chaos.resume import DETERMINISTIC, digests
from live import Command

pytestmark = pytest.mark.live

SMALL = (
    *("policy.options.width=32", "policy.options.expert_width=32", "policy.options.layers=2"),
    *("policy.options.heads=2", "simulator.options.step_limits=15", "log.tensorboard=false"),
    *("trainer.batch=16", "trainer.micro_batch=8", "simulator.envs=8", "checkpoint.every_versions=1"),
)


def run(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """``rlvla3 train`` to its end; the metrics of every version."""
    command = Command(folder, "train", *arguments)
    try:
        assert command.wait(90) == 0, command.text
    finally:
        command.close()
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if "train/chunks" in line]


@pytest.mark.parametrize("sharing", ["none", "weights"])
def test_two_trainer_members_train_and_another_number_goes_on(tmp_path: Path, sharing: str) -> None:
    """2, then 3 members; what they publish is what Generators act with, and what is saved can be used."""
    folder = tmp_path / "run"
    shared = (f"trainer.sharing={sharing}", "learner.options.forward_batch=16", "evaluation.episodes=2")
    shared += ("evaluation.every_versions=1",)
    run(tmp_path, "reach", *SMALL, *shared, "trainer.members=2", "trainer.updates=2", "--folder", str(folder))
    found = run(tmp_path, str(folder), "--resume", "trainer.members=3", "trainer.updates=4")
    assert [m["step"] for m in found] == [1, 2, 3, 4]
    assert all(m["train/trajectories"] == 16 for m in found)
    assert all(m["train/logprob_gap"] < 1e-3 for m in found if "train/logprob_gap" in m)
    command = Command(tmp_path / "eval", "eval", str(folder), "evaluation.episodes=2")
    try:
        assert command.wait() == 0, command.text
    finally:
        command.close()


def test_groups_are_trained_whole_and_equal_ones_replaced(tmp_path: Path) -> None:
    """Fresh weights hardly ever succeed: nearly every group is equal, and is replaced at first."""
    options = ("algorithm.kind=grpo", "algorithm.options.group_size=4", "algorithm.options.replacements=3")
    found = run(tmp_path, "reach", *SMALL, *options, "trainer.updates=3", "--folder", str(tmp_path / "run"))
    assert [m["train/group/start_difference_max"] for m in found] == [0.0, 0.0, 0.0]
    assert all(m["train/group/equal"] > 0 for m in found)
    replaced = [m["groups/replaced"] for m in found]
    assert 0 < sum(replaced) <= 3 * 4, "three for each of the versions, and of the one under way"
    assert found[-1]["accounting/trained"] == 48


def test_bits_of_a_streamed_run_do_not_depend_on_arrival(tmp_path: Path) -> None:
    """Mode aa_barrier, deterministic: other numbers of processes, the same weights."""
    layouts = {
        "one": ("simulator.members=1", "simulator.envs=8", "simulator.slots=2"),
        "two": ("simulator.members=2", "simulator.envs=4", "simulator.slots=1", "generator.members=2"),
    }
    found = {}
    for name, layout in layouts.items():
        folder = tmp_path / name
        wanted = (*DETERMINISTIC, *SMALL, *layout, "schedule.mode=aa_barrier", "trainer.updates=3")
        wanted += ("generator.max_batch_size=8", "trainer.micro_batch=4")
        run(folder, "reach", *wanted, "--folder", str(folder / "run"))
        found[name] = digests(folder / "run")
    assert found["one"] == found["two"]
