"""The happy path through real processes: clone, measure, train from the clone, resume."""

import json
from pathlib import Path

import numpy as np
import pytest

from rlvla3.cli import main
from rlvla3.learner.checkpoint import load_policy
from rlvla3.metrics import read_json_lines

pytestmark = pytest.mark.live

SMALL = (
    *("policy.options.width=16", "policy.options.expert_width=16", "policy.options.layers=1"),
    *("policy.options.heads=2", "policy.options.denoise_steps=2"),
    *("simulator.envs=4", "simulator.options.step_limits=10", "generator.max_batch_size=4"),
    *("trainer.batch=4", "trainer.micro_batch=2", "trainer.updates=2", "learner.options.schedule_versions=3"),
    *("evaluation.episodes=2", "imitation.options.steps=4", "log.tensorboard=false"),
    *("imitation.demonstrations.per_task=2", "imitation.demonstrations.workers=1"),
)


def run(*arguments: object) -> dict[str, float]:
    """The figures of a command that ends well."""
    with pytest.raises(SystemExit) as end:
        main([*map(str, arguments), "--json", "figures.json"])
    assert end.value.code == 0
    return {row["name"]: row["value"] for row in json.loads(Path("figures.json").read_text())["rows"]}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipeline") / "clone"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        figures = run("sft", "reach", *SMALL, "--folder", folder)
    assert figures["demonstrations"] == 6
    return folder


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_clone_is_measured(clone: Path) -> None:
    figures = run("eval", clone)
    assert figures["episodes"] == 6
    assert 0 <= figures["success_rate/low"] <= figures["success_rate"] <= figures["success_rate/high"] <= 1


@pytest.mark.parametrize("mode", ["ss", "aa"])
def test_a_clone_is_trained_and_the_run_resumed(mode: str, clone: Path) -> None:
    figures = run("train", "reach", *SMALL, f"schedule.mode={mode}", f"weights={clone}", "--folder", "run")
    assert figures["versions"] == 2
    assert figures["lag_max"] <= (1 if mode == "aa" else 0)
    assert figures["trained_steps_per_s"] > 0
    figures = run("train", "run", "--resume", "trainer.updates=3")
    assert figures["versions"] == 3
    losses = [row for row in read_json_lines(Path("run/metrics.jsonl")) if any("loss" in key for key in row)]
    assert [row["step"] for row in losses] == [1, 2, 3]
    if mode == "aa":
        assert run("eval", "run")["episodes"] == 6


def test_adapters_are_trained_delivered_resumed_and_evaluated(clone: Path) -> None:
    """Only adapters and value head go to the Generators, in bfloat16; what is kept is a plain policy."""
    lora = ("policy.lora.rank=4", "policy.publish=trained", "policy.precision=bfloat16")
    more = ("evaluation.every_versions=1", "policy.activation_checkpointing=true", f"weights={clone}")
    figures = run("train", "reach", *SMALL, *lora, *more, "--folder", "run")
    assert figures["versions"] == 2
    figures = run("train", "run", "--resume", "trainer.updates=3")
    assert figures["versions"] == 3
    assert run("eval", "run")["episodes"] == 6
    best = load_policy(Path("run")).weights
    started = load_policy(clone).weights
    assert best.keys() == started.keys()
    still = [n for n in best if n.startswith(("stem", "words", "prefix_blocks")) or "normaliser" in n]
    assert all(np.array_equal(best[name], started[name]) for name in still)
    assert not np.array_equal(best["value_head.layers.0.weight"], started["value_head.layers.0.weight"])
    with pytest.raises(SystemExit):
        main(["train", "run", "--resume", "trainer.updates=4", "policy.lora.alpha=8"])


@pytest.mark.parametrize(
    "head",
    [
        ("policy.options.method=noise", "policy.publish=trained"),
        ("policy.options.method=cps", "policy.options.noise_level=0.5", "policy.options.window=2"),
        ("policy.options.head=tokens", "policy.options.normalisation=quantile", "policy.lora.rank=2"),
    ],
)
def test_every_way_to_choose_actions_trains(head: tuple[str, ...]) -> None:
    steps = ("policy.options.denoise_steps=3",) if "policy.options.head=tokens" not in head else ()
    figures = run("train", "reach", *SMALL, *head, *steps, "--folder", "run")
    assert figures["versions"] == 2
    rows = [row for row in read_json_lines(Path("run/metrics.jsonl")) if "train/logprob_gap" in row]
    assert rows and all(row["train/logprob_gap"] < 1e-3 for row in rows)
