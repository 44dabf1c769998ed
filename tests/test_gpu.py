"""What needs a CUDA device: the same numbers as on the CPU, and a whole run. ``make test-gpu``."""

import bandit
import numpy as np
import pytest
import torch

from rlvla3.commands.running import train
from rlvla3.config import load_config
from rlvla3.run_folder import RunFolder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def moved(device: str):
    """The bandit's policy with equal weights on ``device``."""
    model = bandit.build()
    return model.to(device)


def test_acting_gives_the_cpu_s_records() -> None:
    observation, keys = bandit.observations(16), bandit.keys(16)
    cpu = moved("cpu").act(observation, keys, True)
    gpu = moved("cuda").act(observation, keys, True)
    for name, array in cpu.items():
        np.testing.assert_allclose(gpu[name], array, rtol=1e-3, atol=1e-3, err_msg=name)


def test_generator_and_trainer_agree_on_the_device() -> None:
    model = moved("cuda")
    observation = bandit.observations(32)
    record = model.act(observation, bandit.keys(32), True)
    found = model.evaluate(model.prefix(observation, record), observation, record)
    ratio = np.exp(found.log_prob.detach().cpu().numpy() - record["log_prob"])
    assert np.abs(ratio - 1).max() < 1e-3


@pytest.mark.parametrize("mode", ["ss", "aa"])
def test_a_run_trains_on_the_device(mode, tmp_path) -> None:
    config = load_config(
        "reach",
        [f"schedule.mode={mode}", "trainer.updates=3", "trainer.batch=16", "log.tensorboard=false"],
    )
    with RunFolder.create(tmp_path / "run") as run:
        outcome = train(config, run, resume=False)
    assert not outcome.stop.failed
    assert outcome.engine.accounting()["trained"] == 48
    assert outcome.monitor.history[-1]["train/skipped_updates"] == 0
