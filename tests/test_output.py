"""Commands whose reader goes away end as other tools do: quietly, with the exit code of a closed pipe."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from refusals import SMALL, run_folder

from rlvla3.learner import checkpoint
from rlvla3.output import CLOSED

pytestmark = pytest.mark.live
COMMAND = (sys.executable, "-c", "from rlvla3.cli import main; main()")
MANY_LINES = ("settings", "demo")


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def run(arguments: Sequence[str], *, stdout: int, stderr: int, folder: Path) -> tuple[int, str]:
    """Exit code, and what came on whichever stream is a pipe of ours."""
    done = subprocess.run(
        [*COMMAND, *arguments], stdout=stdout, stderr=stderr, text=True, cwd=folder, timeout=120, check=False
    )
    return done.returncode, (done.stderr or "") + (done.stdout or "")


@pytest.mark.parametrize("arguments", [MANY_LINES, ("--help",), ("check", "reach"), ("envs",)])
def test_nobody_reads_the_output(arguments: Sequence[str], tmp_path: Path) -> None:
    code, said = run(arguments, stdout=closed_pipe(), stderr=subprocess.PIPE, folder=tmp_path)
    assert (code, said) == (CLOSED, "")


def test_a_reader_that_takes_one_line(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, *MANY_LINES],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        pipesize=4096,  # less than is written: the command is still writing when the reader goes
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"name = demo    (str)\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == CLOSED


def test_nobody_reads_a_refusal(tmp_path: Path) -> None:
    code, said = run(("check", "nope"), stdout=subprocess.PIPE, stderr=closed_pipe(), folder=tmp_path)
    assert (code, said) == (CLOSED, "")


def test_a_refusal_is_told_though_nobody_reads_the_output(tmp_path: Path) -> None:
    code, said = run(("check", "nope"), stdout=closed_pipe(), stderr=subprocess.PIPE, folder=tmp_path)
    assert code == 2
    assert said.startswith("rlvla3: recipe 'nope'")


FEW_EPISODES = ("evaluation.episodes=2", "simulator.options.step_limits=3")


def test_a_table_of_an_evaluation(tmp_path: Path) -> None:
    folder = run_folder(str(tmp_path / "run"), *FEW_EPISODES, kind="best")
    code, said = run(("eval", str(folder)), stdout=closed_pipe(), stderr=subprocess.DEVNULL, folder=tmp_path)
    assert (code, said) == (CLOSED, "")


def test_a_run_whose_progress_nobody_reads_writes_its_checkpoint(tmp_path: Path) -> None:
    arguments = ("train", *SMALL[:-1], "trainer.updates=1000000", "--folder", "run")
    code, said = run(arguments, stdout=subprocess.PIPE, stderr=closed_pipe(), folder=tmp_path)
    assert (code, said) == (CLOSED, "")
    assert checkpoint.find(tmp_path / "run", resume=True).exists()
