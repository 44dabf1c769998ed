"""What a run shows while it works: a live table on a terminal, plain lines elsewhere."""

import re
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_SECRET = re.compile(r"(?i)\b([\w-]*(?:token|secret|password|api_?key))(\s*[=:]\s*)\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleLoad:
    """Parts of a role's time, in [0, 1]: ``busy`` working, ``waiting`` for another role."""

    role: str
    busy: float
    waiting: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run at one moment."""

    phase: str
    """What runs now, such as ``warm start`` or ``train``."""
    elapsed_s: float
    left_s: float
    """Estimated seconds to the end; negative while unknown."""
    version: int
    versions: int
    """Versions to reach; 0 without a limit."""
    env_steps: int
    """Executed env sub-steps."""
    steps_per_s: float
    """Executed env sub-steps per second over the last window."""
    trained_steps_per_s: float
    successes: int
    episodes: int
    """Episodes ended in the last window, and how many of them succeeded."""
    lag: float
    max_lag: int
    """Mean and largest lag at use of the last update."""
    queue_delay_ms: float
    """Mean wait of a request before its batch starts."""
    batch_fill: float
    """Mean inference batch size / max_batch_size."""
    loads: tuple[RoleLoad, ...]


def duration(seconds: float) -> str:
    """Seconds as ``1:02:03`` or ``2:03``; ``?`` if negative."""
    if seconds < 0:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def redact(text: str) -> str:
    """Hide the value of anything that looks like ``token=...`` or ``api_key: ...``."""
    return _SECRET.sub(r"\1\2***", text)


def line(progress: Progress) -> str:
    """One plain log line."""
    return " | ".join(f"{name} {value}" for name, value in _fields(progress))


def _fields(progress: Progress) -> list[tuple[str, str]]:
    of = f"/{progress.versions}" if progress.versions else ""
    rate = f"{progress.successes / progress.episodes:.0%}" if progress.episodes else "-"
    loads = ", ".join(f"{load.role} {load.busy:.0%}/{load.waiting:.0%}" for load in progress.loads)
    return [
        (progress.phase, duration(progress.elapsed_s)),
        ("left", duration(progress.left_s)),
        ("version", f"{progress.version}{of}"),
        ("env steps", f"{progress.env_steps}"),
        ("steps/s", f"{progress.steps_per_s:.0f} (trained {progress.trained_steps_per_s:.0f})"),
        ("success", f"{rate} of {progress.episodes} episodes"),
        ("lag", f"{progress.lag:.2f} (max {progress.max_lag})"),
        ("queue delay", f"{progress.queue_delay_ms:.1f} ms"),
        ("batch fill", f"{progress.batch_fill:.0%}"),
        ("busy/wait", loads or "-"),
    ]


class Display:
    """Shows progress. On a terminal a table that stays in place, else a line every ``every_s``.

    A context manager; draws only inside `update` and `note`, with no thread of its own.
    """

    def __init__(self, console: Console | None = None, every_s: float = 10.0) -> None:
        self._console = console or Console(stderr=True)
        self._every_s = every_s
        self._last = (float("-inf"), "")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(self, progress: Progress) -> None:
        """Show this moment; a plain line only when one is due or the phase has changed."""
        if self._live is not None:
            self._live.update(_table(progress), refresh=True)
            return
        last_s, phase = self._last
        if phase == progress.phase and progress.elapsed_s < last_s + self._every_s:
            return
        self._last = (progress.elapsed_s, progress.phase)
        self._console.print(Text(redact(line(progress))), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print one line that stays, such as a replaced member; markup in it is not read."""
        self._console.print(Text(redact(text)), soft_wrap=True)


def _table(progress: Progress) -> Group:
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column()
    fields = _fields(progress)[:-1]
    for (name, value), (other, other_value) in zip(fields[::2], [*fields[1::2], ("", "")], strict=False):
        table.add_row(Text(name, style="dim"), Text(value), Text(other, style="dim"), Text(other_value))
    roles = Table.grid(padding=(0, 2))
    for load in progress.loads:
        bar = Text("█" * round(20 * load.busy), style="green")
        bar.append("░" * round(20 * load.waiting), style="yellow")
        bar.truncate(20, pad=True)
        roles.add_row(
            Text(load.role, style="dim"), bar, Text(f"busy {load.busy:.0%}, waits {load.waiting:.0%}")
        )
    return Group(table, roles)
