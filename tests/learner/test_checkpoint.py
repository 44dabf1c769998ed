"""Checkpoints: complete or absent, checked, exact."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bandit
import numpy as np
import pytest
import torch

from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description, Kept
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.learner.starting import starting_model
from rlvla3.policies.building import build_model
from rlvla3.policies.settings import LoraSettings, ModelSettings
from rlvla3.policies.tiny import Tiny

POLICY = Tiny(bandit.SMALL, bandit.INTERFACE)
LORA = ModelSettings(lora=LoraSettings(rank=2))
FINGERPRINT = {"simulator": {"camera": "front", "size": 64}, "chunk": 2}


def learner(model=None) -> Reinforcement:
    return Reinforcement(model or bandit.build(), PPO(PPOSettings()), ReinforcementSettings(), seed=0)


def description(version: int = 0, score: float | None = None) -> Description:
    return Description(version=version, score=score, fingerprint=FINGERPRINT, config='{"a": 1}')


@pytest.fixture
def saved(tmp_path) -> Path:
    target = tmp_path / "run" / "checkpoints" / "one"
    checkpoint.save_checkpoint(target, learner(), description(3), '{"engine": 7}')
    return target


def test_it_holds_everything_needed_to_resume(saved) -> None:
    names = {file.name for file in saved.iterdir()}
    assert names == {
        *("weights.safetensors", "average.safetensors", "optimiser.safetensors", "learner.json"),
        *("engine.json", "config.json", "checkpoint.json", "manifest.json"),
    }
    assert checkpoint.engine_state(saved) == '{"engine": 7}'
    assert checkpoint.describe(saved) == description(3)
    other = learner(bandit.build(9))
    checkpoint.restore(saved, other)
    expected = learner().weights("rollout")
    assert all(np.array_equal(expected[name], array) for name, array in other.weights("rollout").items())


FILES = ["weights.safetensors", "optimiser.safetensors", "learner.json", "engine.json", "config.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("fault", ["cut", "changed", "gone"])
def test_a_damaged_file_is_named(saved, name, fault) -> None:
    file = saved / name
    content = file.read_bytes()
    if fault == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-1] if fault == "cut" else bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(UserError, match=name) as raised:
        checkpoint.restore(saved, learner())
    assert "\n" not in str(raised.value)


def test_another_format_is_refused(saved) -> None:
    manifest = saved / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    with pytest.raises(UserError, match="format 99 is not 1"):
        checkpoint.load_policy(saved)
    manifest.write_text("{")
    with pytest.raises(UserError, match=r"manifest\.json"):
        checkpoint.load_policy(saved)


def test_another_models_checkpoint_is_refused(saved) -> None:
    wider = bandit.build(settings=bandit.SMALL.model_copy(update={"expert_width": 48, "layers": 3}))
    with pytest.raises(UserError, match=r"weights of another model: \d+ missing .*of another shape"):
        checkpoint.restore(saved, learner(wider))


def test_another_set_up_is_refused() -> None:
    wanted = {"simulator": {"camera": "side", "size": 64}, "chunk": 2, "new": 1}
    with pytest.raises(
        UserError, match=r"simulator.camera is 'front' there and 'side' here, new is 'absent'"
    ):
        checkpoint.check_fingerprint(Path("x"), FINGERPRINT, wanted)
    checkpoint.check_fingerprint(Path("x"), {"shape": [1, 2]}, {"shape": (1, 2)})


class Failing:
    """A learner whose disk fails in the middle of a save."""

    def save(self, folder: Path) -> None:
        (folder / "weights.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")


def test_a_failed_save_leaves_the_last_complete_one(tmp_path) -> None:
    kept = Kept(tmp_path, keep=1)
    good = kept.save(learner(), description(1), "{}")
    with pytest.raises(UserError, match="No space left"):
        kept.save(Failing(), description(2), "{}")
    assert list(tmp_path.iterdir()) == [good]
    checkpoint.verify(good)


FULL = """
import resource, signal, sys
from pathlib import Path
from typing import Any
import numpy as np, torch
from rlvla3 import demonstrations
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint, tensors
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
big = np.zeros((9, 1, 100), np.float32)
some = np.zeros(9, np.int64)
dataset = demonstrations.Dataset(observation={}, actions=big, valid=some[:, None] == 0, task=some,
    episode=some, lengths=some, episode_task=some, header={})
description = checkpoint.Description(version=1, score=None, fingerprint={}, config="")
for write in (
    lambda: checkpoint.save_weights(folder / "a", {"w": big}, description),
    lambda: tensors.write_tensors(folder / "b", {"w": torch.from_numpy(big)}),
    lambda: demonstrations.save(dataset, folder / "c"),
):
    try:
        write()
    except UserError as error:
        print(error)
print(*[p.name for p in folder.iterdir() if p.name != "b"])
"""


@pytest.mark.long
def test_a_full_disk_is_named_whoever_writes(tmp_path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr) == (0, "")
    *lines, left = run.stdout.split("\n")[:-1]
    for name, line in zip("abc", lines, strict=True):
        assert line.startswith(f"{tmp_path / name}: cannot be written (")
        assert line.endswith("free space or choose another folder")
    assert left == ""


def test_a_killed_save_is_never_seen_and_swept_later(tmp_path) -> None:
    kept = Kept(tmp_path, keep=2)
    first = kept.save(learner(), description(1), "{}")
    half = tmp_path / ".writing-abc"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    assert kept.newest() == first
    kept.save(learner(), description(2), "{}")
    assert not half.exists()


def test_the_newest_and_the_best_are_kept(tmp_path) -> None:
    kept = Kept(tmp_path, keep=2)
    weights = learner().weights("evaluation")
    for version in (1, 2, 9, 10):
        kept.save(learner(), description(version), "{}")
        kept.save_best(weights, description(version, score=version / 10))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best-000004-version-10",
        "checkpoint-000003-version-9",
        "checkpoint-000004-version-10",
    ]
    resumed = kept.save(learner(), description(9), "{}")
    assert kept.newest() == resumed
    assert checkpoint.describe(kept.best()).score == 1.0


def test_a_folder_is_never_written_over(saved) -> None:
    with pytest.raises(UserError, match="exists already"):
        checkpoint.save_checkpoint(saved, learner(), description(), "{}")


def test_a_policy_loads_from_run_folder_checkpoint_and_export(saved, tmp_path) -> None:
    run = tmp_path / "run"
    exported = tmp_path / "export"
    trained = learner()
    trained._optimiser.average["state_proj.bias"].fill_(2.0)
    Kept(run / "checkpoints", keep=9).save(trained, description(4), "{}")
    checkpoint.export(run, exported)
    for path in (run, run / "checkpoints", exported):
        found = checkpoint.load_policy(path)
        assert found.version == 4
        assert found.fingerprint == FINGERPRINT
        assert set(found.weights["state_proj.bias"].tolist()) == {2.0}
        bandit.build(5).load_arrays(found.weights)
    newest = checkpoint.load_policy(run, averaged=False).weights["state_proj.bias"]
    assert np.array_equal(newest, bandit.build().arrays()["state_proj.bias"])
    Kept(run / "checkpoints", keep=9).save_best(learner().weights("rollout"), description(2, score=0.5))
    assert checkpoint.load_policy(run).version == 2
    assert checkpoint.describe(checkpoint.find(run, resume=True)).version == 4


def test_weights_alone_cannot_be_resumed(tmp_path) -> None:
    target = tmp_path / "weights"
    checkpoint.save_weights(target, learner().weights("rollout"), description())
    for read in (lambda: checkpoint.engine_state(target), lambda: checkpoint.restore(target, learner())):
        with pytest.raises(UserError, match="holds weights only"):
            read()


def test_nothing_to_load_is_one_clear_line(tmp_path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="no checkpoint here"):
            checkpoint.load_policy(path)


@pytest.fixture
def adapted(tmp_path) -> tuple[Path, Any]:
    """A checkpoint of a learner with adapters that differ from their average, and its model."""
    model = build_model(POLICY, LORA, "cpu", 0, "train")
    trained = learner(model)
    with torch.no_grad():
        for parameter in dict(model.trainable("reinforcement")).values():
            parameter += 0.1
    target = tmp_path / "run" / "checkpoints" / "checkpoint-000001-version-3"
    checkpoint.save_checkpoint(target, trained, description(3), "{}")
    return target, trained


@pytest.mark.parametrize("averaged", [True, False])
def test_a_checkpoint_with_adapters_is_read_as_a_plain_policy(adapted, averaged) -> None:
    target, trained = adapted
    loaded = checkpoint.load_policy(target, averaged=averaged).weights
    plain = bandit.build(5)
    plain.load_arrays(loaded)
    expected = trained.weights("evaluation" if averaged else "rollout")
    assert loaded.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(loaded[name], array, rtol=1e-5, atol=1e-6)
    assert np.array_equal(loaded["state_proj.bias"], expected["state_proj.bias"])


def test_a_checkpoint_with_adapters_exports_plain_and_starts_new_adapters(adapted, tmp_path) -> None:
    target, _ = adapted
    checkpoint.export(target, tmp_path / "export")
    model = starting_model(POLICY, LORA, "cpu", 1, use="train", weights=str(tmp_path / "export"))
    ups = [tensor for name, tensor in model.state_dict().items() if name.endswith("lora_up")]
    assert ups and not any(up.any() for up in ups)
    exported = checkpoint.load_policy(tmp_path / "export").weights
    assert all(np.array_equal(array, exported[name]) for name, array in model.arrays().items())


def test_a_learner_with_adapters_resumes_exactly(adapted) -> None:
    target, trained = adapted
    other = learner(build_model(POLICY, LORA, "cpu", 9, "train"))
    checkpoint.restore(target, other)
    for name, tensor in trained.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[name], tensor), name
    with pytest.raises(UserError, match="lora_down"):
        checkpoint.restore(target, learner())
