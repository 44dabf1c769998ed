"""Commands that are ended from outside: one line, the right exit code, nothing left running."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live import TESTS, Command, alive, wait_for
from refusals import run_folder

from rlvla3 import cli

SLOW = ["imitation.demonstrations.per_task=5000", "imitation.demonstrations.workers=2"]


def children_of(parent: int) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            _, owner = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(owner) == parent:
            found.add(int(path.name))
    return found


def ready_workers(parent: int) -> set[int]:
    """Workers that have begun their episodes: those ignore Ctrl-C."""
    found = set()
    for pid in children_of(parent):
        status = Path(f"/proc/{pid}/status").read_text()
        ignored = next(row.split()[1] for row in status.splitlines() if row.startswith("SigIgn"))
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"spawn_main" in command and int(ignored, 16) & 1 << (signal.SIGINT - 1):
            found.add(pid)
    return found


@pytest.fixture
def collecting(tmp_path: Path) -> Iterator[tuple[Command, set[int]]]:
    command = Command(tmp_path, "sft", "reach", *SLOW)
    wait_for(lambda: len(ready_workers(command.pid)) == 2, what="both workers")
    workers = children_of(command.pid)
    yield command, workers
    command.close()
    for pid in filter(alive, workers):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.live
@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        (signal.SIGKILL, -9, None),
    ],
)
def test_collecting_ends_at_once_with_all_its_workers(
    number: int, code: int, line: str | None, collecting: tuple[Command, set[int]]
) -> None:
    command, workers = collecting
    if number == signal.SIGINT:
        os.killpg(command.pid, number)  # as the terminal does
    else:
        command.send(number)
    assert command.wait(10.0) == code, command.text
    wait_for(lambda: not any(map(alive, workers)), 5.0, "the end of the workers")
    if line is not None:
        assert command.text.strip().splitlines() == [f"rlvla3: {line}"]
    assert "Traceback" not in command.text


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")],
)
def test_any_command_ends_with_one_line(
    number: int,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rlvla3.commands import examining

    monkeypatch.setattr(examining, "command", lambda *_: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor"])
    assert end.value.code == code
    assert capsys.readouterr().err.strip() == f"rlvla3: {line}"
    assert signal.getsignal(number) is before


@pytest.mark.live
@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")],
)
def test_cloning_ends_with_one_line(number: int, code: int, line: str, tmp_path: Path) -> None:
    small = ("imitation.demonstrations.per_task=1", "imitation.demonstrations.workers=1")
    command = Command(tmp_path, "sft", "reach", *small, "imitation.options.steps=5000")
    try:
        wait_for(lambda: "samples" in command.text, what="the fit")
        command.send(number)
        assert command.wait(20.0) == code, command.text
        assert command.text.strip().splitlines()[-1] == f"rlvla3: {line}"
        assert "Traceback" not in command.text
        assert not children_of(command.pid)
    finally:
        command.close()


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_evaluation_ends_with_one_line(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder("run", kind="best")
    command = Command(tmp_path, "eval", "run", "simulator.options.step_limits=100000")
    try:
        wait_for(lambda: "eval 0:00" in command.text, what="the first figures")
        command.send(number)
        assert command.wait(20.0) == 128 + number, command.text
        name = signal.Signals(number).name
        assert command.text.strip().splitlines()[-2:] == [
            f"ending: {name}",  # nothing is saved
            f"rlvla3: ended by {name} before all episodes had ended: no result; run it again",
        ]
        assert not children_of(command.pid)
    finally:
        command.close()


def test_the_tests_themselves_heed_signals_though_their_shell_has_them_ignored() -> None:
    heeded = "signal.getsignal(signal.SIGINT) != signal.SIG_IGN"
    program = f"import signal; before = {heeded}; import live; print(before, {heeded})"
    shell = ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, program]
    done = subprocess.run(shell, capture_output=True, text=True, check=True, cwd=TESTS)
    assert done.stdout == "False True\n"
