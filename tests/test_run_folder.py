"""The run folder's lock, refusals and atomic files."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlvla3.errors import UserError
from rlvla3.run_folder import RunFolder, versions, write_json, write_text


def test_a_new_run_records_its_configuration_and_versions(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "deep" / "run") as run:
        assert not run.used
        run.describe("seed: 1\n")
        run.write_summary({"seconds": 2})
        assert run.config.read_text() == "seed: 1\n"
        recorded = json.loads(run.versions.read_text())
        assert recorded["packages"]["numpy"]
        assert recorded["cpus"] == len(os.sched_getaffinity(0))
        assert json.loads(run.summary.read_text()) == {"seconds": 2}


def test_a_fresh_run_is_refused_in_a_used_folder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path) as run:
        run.describe("seed: 1\n")
    with pytest.raises(UserError, match="already holds a run; add --resume"):
        RunFolder.create(tmp_path)
    with RunFolder.open(tmp_path) as run:
        assert run.used


def test_only_a_run_can_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        RunFolder.open(tmp_path)


def test_a_second_holder_is_refused_by_name_and_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path), pytest.raises(UserError) as caught:
        RunFolder.create(tmp_path)
    assert f"in use by process {os.getpid()} on {socket.gethostname()}" in str(caught.value)
    RunFolder.create(tmp_path).close()


@pytest.mark.live
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    program = (
        "import sys; from rlvla3.run_folder import RunFolder; run = RunFolder.create(sys.argv[1]);"
        " sys.stdout.write('held\\n'); sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"in use by process {child.pid}"):
            RunFolder.create(tmp_path)
        child.kill()
    RunFolder.create(tmp_path).close()


def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    try:
        RunFolder.create(tmp_path).close()
    finally:
        child.communicate()


@pytest.mark.parametrize("name", ["file/run", "file"])
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written: .*; choose another run folder") as caught:
        RunFolder.create(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    write_json(file, {"a": 1})
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "half" + "\ud800")
    assert json.loads(file.read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_versions_name_the_commit_of_a_checkout() -> None:
    found = versions()
    assert found["python"].startswith("3.")
    assert found["commit"] == "" or len(found["commit"].removesuffix("+changes")) == 40


def test_a_start_that_was_killed_before_its_configuration_leaves_the_folder_free(tmp_path: Path) -> None:
    """What lies there then: the lock, versions and an empty metrics file."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").touch()
    (folder / "versions.json").write_text("{}")
    with RunFolder.create(folder):
        pass
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UserError, match="already holds a run"):
        RunFolder.create(folder)
