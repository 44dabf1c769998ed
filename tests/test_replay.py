"""A run whose updates are not finite: what it leaves, and what `replay` says of it."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from live import Command
from refusals import refused

from rlvla3.cli import main
from rlvla3.learner import checkpoint

pytestmark = pytest.mark.live

BROKEN = (
    *("reach", "simulator.envs=4", "generator.max_batch_size=4", "trainer.batch=4", "trainer.micro_batch=4"),
    *("trainer.updates=3", "simulator.options.step_limits=10", "log.tensorboard=false"),
    *("learner.options.lr=1e30", "learner.options.value_warm_up=0", "learner.options.epochs=1"),
)


def train(folder: Path, *arguments: str) -> tuple[int, str]:
    command = Command(folder, "train", *arguments)
    try:
        return command.wait(), command.text
    finally:
        command.close()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("broken")
    code, text = train(folder, *BROKEN, "--folder", str(folder / "run"))
    assert code == 2, text
    line = text.strip().splitlines()[-1]
    assert "3 updates in a row were skipped, which is trainer.max_skipped" in line
    assert "the last one because of not_finite_" in line and "lower learner.options.lr" in line
    assert f"see what was not finite with: rlvla3 replay {folder / 'run'}/rejected/update-1-version-0" in line
    return folder / "run"


@pytest.fixture
def run(broken: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(broken, tmp_path / "run"))


@pytest.fixture
def batch(run: Path) -> Path:
    return run / "rejected" / "update-1-version-0"


def replay(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    with pytest.raises(SystemExit) as end:
        main(["replay", *map(str, arguments)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return int(end.value.code or 0), printed.out.strip().splitlines()


def test_it_fails_again_or_the_changed_settings_cure_it(
    batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = replay(capsys, batch)
    assert (code, lines[-1]) == (1, "not finite again")
    code, lines = replay(capsys, batch, "learner.options.lr=1e-5")
    assert (code, lines[-1]) == (0, "finite now: the settings that you changed cure it")


def test_nothing_is_said_of_a_batch_that_the_settings_do_not_fit(
    batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, "replay", batch, "policy.options.size=3.5M")
    assert "weights of another model" in line


@pytest.mark.parametrize("command", [("eval",), ("train", "reach", "--folder", "new")])
def test_it_is_no_policy_to_use(
    command: tuple[str, ...], batch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(batch.parent)
    given = f"weights={batch}" if command[0] == "train" else batch
    line = refused(capsys, *command, given)
    assert "holds a batch that an update could not use" in line and "rlvla3 replay" in line


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Change a file, and the manifest with it."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][name] = {"bytes": len(content), "sha256": digest}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("content", [b"garbage", b"{}", b"[]"])
def test_a_damaged_batch_is_one_line(content: bytes, batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(batch, "rejected.json", content)
    assert "the rejected batch is damaged" in refused(capsys, "replay", batch)


def test_samples_without_episodes_are_one_line(batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import load, save

    arrays = load((batch / "samples.safetensors").read_bytes())
    empty = {name: array[:0] for name, array in arrays.items()}
    for changed in ({n: a for n, a in arrays.items() if n != "episode"}, empty):
        rewrite(batch, "samples.safetensors", save(changed))
        assert "the rejected batch is damaged" in refused(capsys, "replay", batch)


def test_a_folder_that_was_removed_stops_nobody(run: Path, tmp_path: Path) -> None:
    """The next rejected batch gets a number of its own."""
    shutil.rmtree(run / "rejected" / "update-1-version-0")
    code, text = train(tmp_path / "resumed", str(run), "--resume")
    assert code == 2 and "3 updates in a row were skipped" in text and "not_finite_" in text
    names = sorted(path.name for path in (run / "rejected").iterdir())
    assert names == [f"update-{number}-version-0" for number in (2, 3, 4)]
