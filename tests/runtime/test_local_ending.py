"""Ends: Ctrl-C, SIGTERM, kill -9 of the controller, resume, run folders; nothing is left behind."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from echo import recorded
from live import Command, Run, alive, fault, faults, logs, members_of, values, wait_for

from rlvla3.learner import checkpoint
from rlvla3.messages import CheckpointSaved
from rlvla3.run_folder import RunFolder
from rlvla3.runtime.local import runtime

pytestmark = pytest.mark.live

Start = Callable[..., Command]


@pytest.fixture
def command() -> Iterator[Start]:
    """Starts commands that do not outlive the test."""
    started: list[Command] = []

    def start(folder: Path, *arguments: str) -> Command:
        started.append(Command(folder, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.close()


def recipe(folder: Path, *changes: dict) -> Path:
    """The configuration as a recipe file."""
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values(*changes)))
    return path


def recording(folder: Path) -> dict:
    return {"learner": {"kind": "echo:Recording", "options": {"file": str(folder / "trained")}}}


def stuck(folder: Path) -> dict:
    """A Trainer whose first update never ends."""
    return {"learner": {"kind": "echo:Stuck", "options": {"file": str(folder / "updating")}}}


def endless(folder: Path) -> Path:
    return recipe(folder, recording(folder), {"trainer": {"updates": 100_000}})


def trains(folder: Path, updates: int = 2) -> Callable[[], bool]:
    """Whether so many versions are trained."""
    file = folder / "trained"
    return lambda: file.exists() and len(file.read_text().splitlines()) >= updates


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def newest(folder: Path) -> int:
    return checkpoint.describe(checkpoint.find(folder, resume=True)).version


def resume(folder: Path, updates: int, **more) -> Run:
    """A run that goes on from the newest checkpoint in ``folder``."""
    path = checkpoint.find(folder, resume=True)
    state = json.loads(checkpoint.engine_state(path))
    config = values(recording(folder), {"trainer": {"updates": updates}}, more)
    return Run(folder, config, resume=(path, state))


# --- signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_saves_a_checkpoint_and_resume_goes_on(
    number: int, tmp_path: Path, command: Start
) -> None:
    before, run = shared_memory(), tmp_path / "run"
    train = command(tmp_path, "train", str(endless(tmp_path)), "--folder", str(run))
    wait_for(trains(tmp_path), what="version 2")
    members = members_of(train.pid)
    assert len(members) == 4
    start_s = time.monotonic()
    train.send(number)
    assert train.wait() == 128 + number, train.text
    assert "go on with: rlvla3 train" in train.text.splitlines()[-1]
    assert time.monotonic() - start_s < 10
    assert signal.Signals(number).name in train.text
    assert not any(map(alive, members.values()))
    assert shared_memory() <= before
    assert not [path for path in run.rglob("*") if path.is_socket()]
    version = newest(run)
    assert version >= 2
    again = command(
        tmp_path / "again",
        "train",
        str(tmp_path / "recipe.yaml"),
        f"trainer.updates={version + 3}",
        "--resume",
        "--folder",
        str(run),
    )
    assert again.wait() == 0, again.text
    assert newest(run) == version + 3
    lines = recorded(tmp_path / "trained")
    assert [line["version"] for line in lines] == list(range(1, version + 4))
    states = [item["start"][1] for line in lines for item in line["trained"]]
    assert len(set(states)) == len(states), "no start is trained twice over the interruption"


def test_signals_to_every_process_at_once_are_one(tmp_path: Path, command: Start) -> None:
    """As schedulers and wrappers send them: the checkpoint is written all the same."""
    run = tmp_path / "run"
    train = command(tmp_path, "train", str(endless(tmp_path)), "--folder", str(run))
    wait_for(trains(tmp_path))
    members = members_of(train.pid)
    for pid in (*members.values(), train.pid, train.pid):
        os.kill(pid, signal.SIGTERM)
    train.send(signal.SIGHUP)
    assert train.wait() in (128 + signal.SIGTERM, 128 + signal.SIGHUP), train.text
    assert newest(run) >= 2
    assert "was lost" not in train.text
    assert not any(map(alive, members.values()))


def test_the_second_signal_ends_at_once(tmp_path: Path, command: Start) -> None:
    """The Trainer is in the middle of minutes of work, so no checkpoint can come."""
    path = recipe(tmp_path, stuck(tmp_path))
    train = command(tmp_path, "train", str(path), "--folder", str(tmp_path / "run"))
    wait_for((tmp_path / "updating").exists)
    members = members_of(train.pid)
    train.send(signal.SIGINT)
    wait_for(lambda: "ending: SIGINT" in train.text, what="the first end")
    again_s = time.monotonic() + 0.6
    wait_for(lambda: time.monotonic() > again_s)
    assert train._popen.poll() is None, train.text
    train.send(signal.SIGINT)
    assert train.wait() == 128 + signal.SIGINT, train.text
    assert time.monotonic() - again_s < 5
    assert "SIGINT, twice" in train.text
    assert not any(map(alive, members.values()))


def test_the_grace_periods_add_up_to_less_than_ten_seconds() -> None:
    assert runtime._GRACE_S + runtime._STACKS_S + runtime._GOODBYE_S + 1 < 10


def test_no_checkpoint_in_time_is_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "_GRACE_S", 1.0)
    run = Run(tmp_path, values(stuck(tmp_path)))
    run.watcher.when(lambda e: e.intake.phase == "training", lambda: os.kill(os.getpid(), signal.SIGTERM))
    run.go()
    assert run.stop.failed
    assert "no checkpoint within 1 s" in run.stop.reason
    assert run.seconds < 8


def test_what_was_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under ``nohup``: the terminal goes away, the run goes on."""
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = Run(tmp_path, values())
        run.watcher.when(lambda e: e.intake.version == 2, lambda: os.kill(os.getpid(), signal.SIGHUP))
        run.go().trained(6)
    finally:
        signal.signal(signal.SIGHUP, old)


def test_a_signal_before_anything_is_ready(tmp_path: Path) -> None:
    run = Run(tmp_path, values())
    run.runtime._timers.after(0.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    run.go()
    assert (run.stop.reason, run.stop.failed) == ("SIGINT", False)
    assert run.seconds < 4


def test_a_signal_while_a_member_hangs(tmp_path: Path) -> None:
    """What hangs does not keep the checkpoint from being written, nor the end from coming."""
    changes = {"schedule": {"max_lag": 3}, "trainer": {"updates": 1000, "batch": 4}}
    run = Run(tmp_path, values(faults(fault("hang", 30, step=1)), changes))
    run.watcher.when(lambda e: e.intake.version >= 5, lambda: os.kill(os.getpid(), signal.SIGINT))
    run.go()
    assert (run.stop.reason, run.stop.failed) == ("SIGINT", False)
    assert newest(tmp_path) >= 5


def test_the_time_budget_ends_with_a_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, values({"budget_s": 0.5, "trainer": {"updates": 100_000}})).go()
    assert (run.stop.reason, run.stop.failed) == ("the time budget of 0.5 s is used up", False)
    assert newest(tmp_path) == run.engine.intake.version > 0


# --- kill -9 ---------------------------------------------------------------------------------


def test_killing_the_controller_leaves_nothing(tmp_path: Path, command: Start) -> None:
    before, run = shared_memory(), tmp_path / "run"
    train = command(tmp_path, "train", str(endless(tmp_path)), "--folder", str(run))
    wait_for(trains(tmp_path))
    members = members_of(train.pid)
    assert len(members) == 4
    train.send(signal.SIGKILL)
    wait_for(lambda: not any(map(alive, members.values())), 5, "the end of all members")
    assert shared_memory() <= before
    assert not [path for path in tmp_path.rglob("*") if path.is_socket()]
    train.wait()
    with RunFolder.open(run):
        """The lock is free again."""


def test_killing_the_controller_while_members_start(tmp_path: Path, command: Start) -> None:
    train = command(tmp_path, "train", str(endless(tmp_path)), "--folder", str(tmp_path / "run"))
    members = wait_for(lambda: members_of(train.pid))
    train.send(signal.SIGKILL)
    wait_for(lambda: not any(map(alive, members.values())), 5, "the end of all members")


def test_a_lost_trainer_is_named_and_the_exit_code_says_so(tmp_path: Path, command: Start) -> None:
    train = command(tmp_path, "train", str(endless(tmp_path)), "--folder", str(tmp_path / "run"))
    wait_for(trains(tmp_path))
    os.kill(members_of(train.pid)["trainer-0"], signal.SIGKILL)
    assert train.wait() == 2
    assert "trainer-0 was lost: killed by SIGKILL" in train.text
    assert "Traceback" not in train.text


# --- resume ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["as", "aa"])
def test_two_halves_train_every_start_once(mode: str, tmp_path: Path) -> None:
    """N/2 versions, resume, N/2 versions: each start once, but for what is counted as dropped."""
    changes = {"schedule": {"mode": mode}, "trainer": {"updates": 4}}
    Run(tmp_path, values(recording(tmp_path), changes)).go().trained(4)
    second = resume(tmp_path, 8, schedule={"mode": mode}).go().trained(8)
    lines = recorded(tmp_path / "trained")
    assert [line["version"] for line in lines] == list(range(1, 9))
    states = sorted(item["start"][1] for line in lines for item in line["trained"])
    assert states == list(range(64)), "all starts, none twice, none left out"
    accounting = second.engine.accounting()
    assert accounting["trained"] == 64
    assert accounting["dropped"] == sum(second.engine.statistics.dropped.values())


def test_resume_with_nothing_left_to_do(tmp_path: Path) -> None:
    Run(tmp_path, values(recording(tmp_path), {"trainer": {"updates": 2}})).go().trained(2)
    again = resume(tmp_path, 2).go().trained(2)
    assert again.watcher.of(CheckpointSaved) == []


def test_resume_after_kill_takes_the_last_complete_checkpoint(tmp_path: Path, command: Start) -> None:
    """Versions after the checkpoint are trained again; the lag bound holds from the first one on."""
    run = tmp_path / "run"
    changes = {"trainer": {"updates": 100_000}, "checkpoint": {"every_versions": 3}}
    path = recipe(tmp_path, recording(tmp_path), changes)
    train = command(tmp_path, "train", str(path), "--folder", str(run))
    wait_for(trains(tmp_path, 7))
    train.send(signal.SIGKILL)
    train.wait()
    version = newest(run)
    assert version % 3 == 0 < version
    (run / "trained").write_text((tmp_path / "trained").read_text())
    resume(run, version + 4).go().trained(version + 4)
    lines = recorded(run / "trained")
    assert [line["version"] for line in lines][: version + 4] == list(range(1, version + 5))
    states = [item["start"][1] for line in lines[: version + 4] for item in line["trained"]]
    assert len(set(states)) == len(states)


# --- many runs -------------------------------------------------------------------------------


def test_eight_runs_at_once(tmp_path: Path, command: Start) -> None:
    small = {
        "simulator": {"members": 1, "envs": 2, "slots": 1, "lanes": 1},
        "trainer": {"batch": 2, "updates": 2},
    }
    path = recipe(tmp_path, small)
    runs = [
        command(tmp_path / str(i), "train", str(path), "--folder", str(tmp_path / str(i) / "run"))
        for i in range(8)
    ]
    for run in runs:
        assert run.wait(90) == 0, run.text
    for i in range(8):
        assert newest(tmp_path / str(i) / "run") == 2


def test_two_runs_in_one_folder(tmp_path: Path, command: Start) -> None:
    run = tmp_path / "run"
    first = command(tmp_path, "train", str(endless(tmp_path)), "--folder", str(run))
    wait_for(trains(tmp_path, 1))
    for options in ((), ("--resume",)):
        second = command(
            tmp_path / "second", "train", str(tmp_path / "recipe.yaml"), "--folder", str(run), *options
        )
        assert second.wait() == 2
        assert f"{run}: in use by process {first.pid}" in second.text
        assert len(second.text.splitlines()) == 1, second.text
    assert len(members_of(first.pid)) == 4, logs(run)
    first.send(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGINT
