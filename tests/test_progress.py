"""The progress display, on a terminal and as plain lines."""

import io
from dataclasses import replace

from rich.console import Console

from rlvla3.progress import Display, Progress, RoleLoad, duration, line, redact

MOMENT = Progress(
    phase="train",
    elapsed_s=65.0,
    left_s=3723.0,
    version=3,
    versions=20,
    env_steps=1200,
    steps_per_s=433.6,
    trained_steps_per_s=401.2,
    successes=3,
    episodes=8,
    lag=0.5,
    max_lag=1,
    queue_delay_ms=2.34,
    batch_fill=0.75,
    loads=(RoleLoad(role="simulator", busy=0.5, waiting=0.25),),
)


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=100, color_system=None), stream


def test_a_line_holds_every_figure() -> None:
    assert line(MOMENT) == (
        "train 1:05 | left 1:02:03 | version 3/20 | env steps 1200 | steps/s 434 (trained 401)"
        " | success 38% of 8 episodes | lag 0.50 (max 1) | queue delay 2.3 ms | batch fill 75%"
        " | busy/wait simulator 50%/25%"
    )
    unknown = replace(MOMENT, left_s=-1.0, versions=0, episodes=0, successes=0, loads=())
    assert "left ? | version 3 |" in line(unknown)
    assert "success - of 0 episodes" in line(unknown)


def test_plain_lines_come_when_due_or_when_the_phase_changes() -> None:
    target, stream = console(terminal=False)
    with Display(target, every_s=10.0) as display:
        for elapsed_s in (0.0, 5.0, 10.0, 12.0):
            display.update(replace(MOMENT, elapsed_s=elapsed_s))
        display.update(replace(MOMENT, elapsed_s=13.0, phase="evaluate"))
    starts = [text.split(" | ")[0] for text in stream.getvalue().splitlines()]
    assert starts == ["train 0:00", "train 0:10", "evaluate 0:13"]


def test_a_terminal_shows_the_table() -> None:
    target, stream = console(terminal=True)
    with Display(target) as display:
        display.update(MOMENT)
    shown = stream.getvalue()
    for part in ("3/20", "38% of 8 episodes", "simulator", "█" * 10 + "░" * 5, "busy 50%, waits 25%"):
        assert part in shown


def test_notes_are_shown_as_they_are_without_secrets() -> None:
    target, stream = console(terminal=False)
    Display(target).note("simulator-0 raised KeyError('[red]x[/]'), WANDB_API_KEY=abc123 set")
    assert stream.getvalue() == "simulator-0 raised KeyError('[red]x[/]'), WANDB_API_KEY=*** set\n"


def test_small_helpers() -> None:
    assert [duration(s) for s in (0, 59.9, 60, 3600)] == ["0:00", "0:59", "1:00", "1:00:00"]
    assert redact("hf_token: xyz, tokens 5") == "hf_token: *** tokens 5"
