"""What the machine refuses in the middle of a run: full disks, read-only folders, file descriptors."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from live import Command

from rlvla3.learner import checkpoint

pytestmark = pytest.mark.live

SMALL = (
    "schedule-benchmark",
    *("simulator.envs=4", "simulator.slots=4", "simulator.lanes=4"),
    *("trainer.batch=4", "trainer.micro_batch=4"),
    *("trainer.updates=6", "checkpoint.every_versions=1", "checkpoint.keep=3", "log.tensorboard=false"),
)

REACH = (
    *("reach", "simulator.envs=4", "generator.max_batch_size=4", "trainer.batch=4", "trainer.micro_batch=4"),
    *("trainer.updates=4", "learner.options.epochs=1", "simulator.options.step_limits=10"),
    *("checkpoint.every_versions=1", "checkpoint.keep=3", "log.tensorboard=false"),
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "rlvla3-test", str(disk)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("file systems can be mounted by root only")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def run(folder: Path, *arguments: str, within: Sequence[str] = ()) -> tuple[int, str]:
    command = Command(folder, *arguments, within=within)
    try:
        return command.wait(), command.text
    finally:
        command.close()


def test_a_disk_that_fills_up_loses_no_checkpoint_and_the_run_goes_on_later(
    tmp_path: Path, small_disk: Path
) -> None:
    """Room for two checkpoints: one line, the last complete one stays and can be resumed."""
    remount(small_disk, "size=30m")
    folder = small_disk / "run"
    code, text = run(tmp_path / "first", "train", *REACH, "--folder", str(folder))
    assert code == 2, text
    line = text.strip().splitlines()[-1]
    assert "No space left on device" in line and "free space" in line, text
    assert f"rlvla3 train {folder} --resume" in line
    assert "Traceback" not in text
    last = checkpoint.find(folder, resume=True)
    checkpoint.verify(last)
    version = checkpoint.describe(last).version
    assert 1 <= version < 4
    assert not list((folder / "checkpoints").glob(".writing-*"))
    remount(small_disk, "size=90m")
    code, text = run(tmp_path / "second", "train", str(folder), "--resume")
    assert code == 0, text
    assert checkpoint.describe(checkpoint.find(folder, resume=True)).version == 4


def test_a_read_only_folder_is_one_line(tmp_path: Path, small_disk: Path) -> None:
    remount(small_disk, "ro")
    code, text = run(tmp_path / "out", "train", *SMALL, "--folder", str(small_disk / "run"))
    assert code == 2 and len(text.strip().splitlines()) == 1, text
    assert "Read-only file system" in text and "choose another run folder" in text


def test_a_folder_that_becomes_read_only_ends_the_run_with_one_line(tmp_path: Path, small_disk: Path) -> None:
    folder = small_disk / "run"
    code, text = run(tmp_path / "first", "train", *SMALL, "trainer.updates=2", "--folder", str(folder))
    assert code == 0, text
    remount(small_disk, "ro")
    code, text = run(tmp_path / "second", "train", str(folder), "--resume", "trainer.updates=4")
    assert code == 2 and "Traceback" not in text, text
    assert "Read-only file system" in text.strip().splitlines()[-1]


@pytest.mark.parametrize("limit", [12, 24, 40])
def test_too_few_file_descriptors_are_one_line_or_enough(limit: int, tmp_path: Path) -> None:
    """Whatever the limit, the run ends well or says that descriptors are missing and how to get more."""
    arguments = ("train", *SMALL, "--folder", str(tmp_path / "run"))
    code, text = run(tmp_path, *arguments, within=("prlimit", f"--nofile={limit}"))
    assert code in (0, 2), text
    if code == 2:
        assert "Too many open files" in text and "ulimit -n" in text, text
        assert "Traceback" not in text


def test_a_full_dev_shm_is_none_of_our_business(tmp_path: Path) -> None:
    """Containers often have 64 MB of it; our shared memory has no name there."""
    script = 'mount -t tmpfs -o size=4k rlvla3-test /dev/shm && exec "$@"'
    within = ("unshare", "--mount", "sh", "-c", script, "sh")
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("file systems can be mounted by root only")
    code, text = run(tmp_path, "train", *SMALL, "--folder", str(tmp_path / "run"), within=within)
    assert code == 0, text


def test_a_limit_on_shared_memory_is_one_line(tmp_path: Path) -> None:
    arguments = ("train", *SMALL, "--folder", str(tmp_path / "run"))
    code, text = run(tmp_path, *arguments, within=("prlimit", "--fsize=100000"))
    assert code == 2 and len(text.strip().splitlines()) == 1, text
    assert "shared memory cannot be reserved (File too large)" in text and "lower simulator.envs" in text


def test_a_start_on_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "fill").write_bytes(bytes(4 << 20))
    code, text = run(tmp_path / "out", "train", *SMALL, "--folder", str(small_disk / "run"))
    assert code == 2 and len(text.strip().splitlines()) == 1, text
    assert "No space left on device" in text and "make room" in text
    assert not (small_disk / "run").exists()


def test_a_rejected_batch_that_does_not_fit_ends_no_run(tmp_path: Path, small_disk: Path) -> None:
    """The copy is for a look later: the run goes on to its own end."""
    broken = ("learner.options.lr=1e30", "learner.options.value_warm_up=0", "checkpoint.every_versions=0")
    arguments = ("train", *REACH, *broken, "--folder", str(small_disk / "run"))
    code, text = run(tmp_path / "out", *arguments)
    assert code == 2 and "3 updates in a row were skipped" in text and "not_finite_" in text, text
    log = (small_disk / "run" / "logs" / "trainer-0.log").read_text()
    assert log.count("No space left on device") == 3
