"""Real runs of the local runtime for tests: small costs, a recording observer, a hard time limit."""

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from terminal import as_in_a_terminal

from rlvla3.assembly import Assembly
from rlvla3.config import Config
from rlvla3.core.engine import Engine
from rlvla3.messages import Event, Member, ReportEvaluation, Stop
from rlvla3.runtime.local.runtime import LocalRuntime

as_in_a_terminal()

TESTS = Path(__file__).parent
LIMIT_S = 45.0
"""A run that takes longer is ended and its test fails: a tenth of it is usual."""

DEFAULTS: dict[str, Any] = {
    "simulator": {
        "kind": "echo:EchoSimulator",
        "options": {"task": "delay", "mean_ms": 1, "cv": 1, "latency": "log_normal", "step_limits": 12},
        "members": 2,
        "envs": 4,
        "slots": 2,
        "lanes": 2,
        "chunk": 3,
    },
    "generator": {"max_batch_size": 8, "linger_ms": 1},
    "policy": {"kind": "emulated", "options": {"base_ms": 1, "per_sample_ms": 0.1}},
    "learner": {"kind": "emulated", "options": {"ms_per_sample": 0.02}},
    "trainer": {"batch": 8, "micro_batch": 2, "updates": 6},
    "log": {"tensorboard": False},
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``, deeply; options of another kind replace the old ones."""
    result = dict(base)
    for name, value in changes.items():
        old = result.get(name)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[name] = merged(old, value) if both else value
    return result


def values(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """The default run's configuration with changes."""
    result = DEFAULTS
    for change in changes:
        result = merged(result, change)
    return result


def fault(kind: str, state: int, folder: Path | None = None, **more: Any) -> dict[str, Any]:
    """A scripted fault; with ``folder`` it strikes once only."""
    marker = str(folder / f"{kind}-{state}") if folder else ""
    return {"kind": kind, "start_state": state, "marker": marker, **more}


def faults(*scripted: Mapping[str, Any], **health: float) -> dict[str, Any]:
    """Changes for a run with these faults and these deadlines."""
    return {"simulator": {"options": {"faults": scripted}}, "health": health}


class Watcher:
    """Records what an observer sees; ``when`` reacts to it once, from inside the loop."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []
        self.evaluations: list[ReportEvaluation] = []
        self.lost: list[tuple[Member, str, str]] = []
        self.lost_s: list[float] = []
        self.telemetry: list[Any] = []
        self.rows: list[int] = []
        """Trajectories anywhere between start and training, at every look."""
        self.stood_still_s: list[float] = []
        self._reactions: list[tuple[Callable[[Engine], bool], Callable[[], None]]] = []

    def when(self, condition: Callable[[Engine], bool], action: Callable[[], None]) -> None:
        """Do ``action`` at the first event after which ``condition`` holds."""
        self._reactions.append((condition, action))

    def of(self, kind: type) -> list[Any]:
        """Recorded events of a kind."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def on_event(self, event: Event, engine: Engine, now_s: float) -> None:
        self.events.append((now_s, event))
        accounting = engine.accounting()
        self.rows.append(accounting["in_flight"] + accounting["queued"] + accounting["in_update"])
        for reaction in self._reactions:
            if reaction[0](engine):
                self._reactions.remove(reaction)
                reaction[1]()
                break

    def on_telemetry(self, telemetry: Any, now_s: float) -> None:
        self.telemetry.append(telemetry)

    def on_evaluation(self, report: ReportEvaluation, now_s: float) -> float | None:
        self.evaluations.append(report)
        return None

    def on_lost(self, member: Member, reason: str, log: str) -> None:
        self.lost.append((member, reason, log))
        self.lost_s.append(time.monotonic())

    def on_watch(self, engine: Engine, now_s: float) -> None:
        pass

    def on_stood_still(self, seconds: float) -> None:
        self.stood_still_s.append(seconds)


class Run:
    """One run of the runtime in this process."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        training: bool = True,
        videos: str = "",
        **more: Any,
    ) -> None:
        self.folder = folder
        self.watcher = Watcher()
        assembly = Assembly(Config.model_validate(config), training=training, videos=videos)
        self.runtime = LocalRuntime(assembly, folder, self.watcher, **more)
        self.stop = Stop(reason="not run", failed=True)
        self.seconds = 0.0

    @property
    def engine(self) -> Engine:
        """The engine, once it runs."""
        assert self.runtime.engine is not None
        return self.runtime.engine

    def go(self, limit_s: float = LIMIT_S) -> "Run":
        """Run to the end; nothing of it is left afterwards."""
        start_s = time.monotonic()
        with _importable(), _limit(limit_s, self.folder):
            self.stop = self.runtime.run()
        self.seconds = time.monotonic() - start_s
        assert not members_of(os.getpid()), "members outlive the run"
        return self

    def trained(self, updates: int) -> "Run":
        """The run reached its end, and its books balance."""
        assert self.stop == Stop(reason=f"all {updates} versions are trained", failed=False), self.stop
        batch = self.engine.settings.training.batch
        accounting = self.engine.accounting()
        assert self.engine.intake.version == updates
        assert accounting["trained"] == batch * updates, accounting
        assert accounting["started"] == sum(accounting.values()) - accounting["started"], accounting
        assert self.engine.statistics.lag_max <= self.engine.settings.training.max_lag
        return self

    def send(self, name: str, number: int) -> Callable[[], None]:
        """An action: send a signal to a member."""
        return lambda: os.kill(pid_of(os.getpid(), name), number)


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Let members import the parts in ``tests/``."""
    old = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), *([old] if old else [])])
    try:
        yield
    finally:
        if old is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = old


@contextlib.contextmanager
def _limit(limit_s: float, folder: Path) -> Iterator[None]:
    """End a run that takes too long, and show its logs; if that does not help, end this process."""
    late = threading.Event()

    def end() -> None:
        late.set()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(limit_s + 15, exit=True)
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()
        if late.is_set():
            raise AssertionError(f"not done after {limit_s:.0f} s\n{logs(folder)}")


def logs(folder: Path) -> str:
    """The ends of all members' logs."""
    return "\n".join(f"{p.name}: {p.read_text()[-3000:]}" for p in sorted(folder.glob("logs/*.log")))


# --- processes -------------------------------------------------------------------------------


def members_of(controller: int) -> dict[str, int]:
    """Process ids of the live members whose parent is ``controller``, by name."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (path / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if int(parent) == controller and state != "Z" and "rlvla3.runtime.local.member" in words:
            found[words[words.index("rlvla3.runtime.local.member") + 1]] = int(path.name)
    return found


def pid_of(controller: int, name: str) -> int:
    """Process id of one member."""
    return members_of(controller)[name]


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], Any], limit_s: float = LIMIT_S, what: str = "it") -> Any:
    """Poll until ``condition`` gives something true."""
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not come within {limit_s} s"
        time.sleep(0.01)
    return found


class Command:
    """``rlvla3 ...`` in a process of its own; killed with all it started when the test ends."""

    def __init__(self, folder: Path, *arguments: str, within: Sequence[str] = ()) -> None:
        """``within``: a command that runs what follows it under other conditions (``prlimit``, say)."""
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / "output.txt"
        path = [str(TESTS), os.environ.get("PYTHONPATH", "")]
        with self.output.open("wb") as output:
            self._popen = subprocess.Popen(
                [*within, sys.executable, "-c", "from rlvla3.cli import main; main()", *arguments],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path)), "COLUMNS": "200"},
            )

    @property
    def pid(self) -> int:
        """Process id of the controller."""
        return self._popen.pid

    @property
    def text(self) -> str:
        """What it has written so far."""
        return self.output.read_text(errors="replace")

    def send(self, number: int) -> None:
        """Send a signal to the controller alone."""
        self._popen.send_signal(number)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Exit code."""
        try:
            return self._popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"not done after {limit_s} s\n{self.text}") from None

    def close(self) -> None:
        """Kill whatever is left of it."""
        left = members_of(self.pid).values()
        for pid in (self.pid, *left):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()
