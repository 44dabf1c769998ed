"""Without learning the importance ratio is 1, whatever the mode and the size of inference batches."""

from pathlib import Path

import pytest
from live import Command

from rlvla3.metrics import read_json_lines

pytestmark = pytest.mark.live

STILL = (
    *("learner.options.lr=0", "learner.options.value_lr=0", "learner.options.value_warm_up=0"),
    *("learner.options.epochs=2", "learner.options.minibatch=7", "trainer.updates=4"),
    *(
        "trainer.batch=12",
        "trainer.micro_batch=4",
        "simulator.options.step_limits=15",
        "log.tensorboard=false",
    ),
)
SIZES = {1: (2, 2), 8: (16, 4), 32: (32, 1)}
"""Samples of an inference batch → envs and slots that fill it."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["ss", "as", "aa_barrier", "aa"])
def test_the_ratio_is_one_in_every_mode_and_batch_size(mode: str, size: int, tmp_path: Path) -> None:
    envs, slots = SIZES[size]
    shape = (f"simulator.envs={envs}", f"simulator.slots={slots}", f"generator.max_batch_size={size}")
    # Without lag no more envs are at work than an update takes.
    batch = f"trainer.batch={max(12, envs)}"
    arguments = ("train", "reach", f"schedule.mode={mode}", *STILL, *shape, batch)
    command = Command(tmp_path, *arguments, "--folder", str(tmp_path / "run"))
    try:
        assert command.wait() == 0, command.text
    finally:
        command.close()
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if "train/kl" in row]
    assert len(rows) == 4
    for row in rows:
        assert 0 <= row["train/logprob_gap"] < 1e-3
        assert row["train/ratio_mean"] == pytest.approx(1.0, abs=1e-3)
        assert row["train/clip_fraction"] == 0.0
    assert any(row["batch_size"] > 0.6 * size for row in rows), "batches of that size were formed"
