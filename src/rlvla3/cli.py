"""The command line: reads arguments, shows one line for what the user can mend."""

import contextlib
import errno
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from rlvla3.errors import EndedBySignal, UserError, too_many_files
from rlvla3.output import CLOSED, Readers, watched
from rlvla3.plugins import in_words

app = typer.Typer(
    name="rlvla3",
    help="Fully asynchronous reinforcement learning of vision-language-action policies in simulators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_ABOUT_PATHS = {errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
"""What the file system says about a path, wherever it was met."""
_SIGNALLED = 128
"""Exit code of a command that a signal ended, less the signal's number."""

_UsageError: Any = typer.BadParameter.__base__
"""What typer raises for a command line that it cannot read."""

Recipe = Annotated[str, typer.Argument(help="Recipe name, or path of a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings as key.path=value.", show_default=False)
]


def path(text: str | Path) -> Path:
    """A path as it is given; an empty one is a variable that was not set, never the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("a path must not be empty")
    return Path(text)


Split = Literal["train", "held_out", "demonstration"]
Layout = Literal["own", "lerobot", "openpi"]
_PATH: Any = {"parser": path}


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written now, rather than after hours of work."""
    if path is not None:
        from rlvla3.run_folder import check_writable

        check_writable(path)
    return path


Json = Annotated[
    Path | None, typer.Option("--json", help="Write the figures to this file.", callback=_writable, **_PATH)
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on in a used run folder; RECIPE may be that folder.")
]
AllowCode = Annotated[
    bool,
    typer.Option("--allow-code", help="Run code (module:attribute) that the checkpoint or run folder names."),
]
Folder = Annotated[Path | None, typer.Option("--folder", help="Run folder (default: runs/NAME).", **_PATH)]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("rlvla3"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    folder: Folder = None,
    resume: Resume = False,
    allow_code: AllowCode = False,
    json: Json = None,
) -> None:
    """Train a policy by asynchronous reinforcement learning."""
    from rlvla3.commands import training

    training.command(recipe, overrides or [], folder, resume, json, allow_code)


@app.command()
def sft(
    recipe: Recipe,
    overrides: Overrides = None,
    folder: Folder = None,
    json: Json = None,
) -> None:
    """Warm-start a policy by supervised learning on scripted demonstrations."""
    from rlvla3.commands import imitating

    imitating.command(recipe, overrides or [], folder, json)


@app.command("eval")
def evaluate(
    weights: Annotated[Path, typer.Argument(help="Run folder, checkpoint or exported folder.", **_PATH)],
    overrides: Overrides = None,
    videos: Annotated[
        Path | None, typer.Option(help="Folder for mp4 of evaluation.videos episodes.", **_PATH)
    ] = None,
    newest: Annotated[
        bool, typer.Option("--newest", help="The newest weights, not the averaged ones.")
    ] = False,
    protocol: Annotated[
        str, typer.Option(help="Evaluate by a published protocol of the simulator, such as openpi.")
    ] = "",
    allow_code: AllowCode = False,
    json: Json = None,
) -> None:
    """Measure a policy's success on fixed held-out initial states."""
    from rlvla3.commands import evaluating

    evaluating.command(weights, overrides or [], videos, not newest, json, allow_code, protocol)


@app.command()
def check(
    recipe: Recipe,
    overrides: Overrides = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="JSON of measured costs: adds the expected speed and hours.", **_PATH),
    ] = None,
    json: Json = None,
) -> None:
    """Print every derived number of a recipe and warn of settings that do nothing or can stall."""
    from rlvla3.commands import checking

    checking.command(recipe, overrides or [], profile, json)


@app.command()
def settings(
    recipe: Recipe,
    overrides: Overrides = None,
    prefix: Annotated[str, typer.Option(help="Only settings whose path begins so.")] = "",
) -> None:
    """List every setting of a recipe: its value, type and meaning."""
    from rlvla3.commands import listing

    listing.command(recipe, overrides or [], prefix)


@app.command("check-simulator")
def check_simulator(
    kind: Annotated[str, typer.Argument(help="Adapter: a built-in name or module:attribute.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Its settings as key=value.", show_default=False)
    ] = None,
    lift: Annotated[
        str, typer.Option(help="An action that moves something in the picture upwards, such as 0,0,1.")
    ] = "",
    states: Annotated[int, typer.Option(min=0, help="Initial states of a task; 0: any number.")] = 0,
    resets: Annotated[int, typer.Option(min=3, help="Resets over which memory must stay flat.")] = 30,
    deadline: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds that no reset and no chunk may really take.")
    ] = 20.0,
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
    python: Annotated[str, typer.Option(help="Interpreter of the environment that has it.")] = "",
) -> None:
    """Check that a simulator's adapter keeps every rule; exit code 1 if it breaks one."""
    from rlvla3.commands import conforming
    from rlvla3.conformance import Profile

    profile = Profile(lift=conforming.numbers(lift), states=states, resets=resets, deadline_s=deadline)
    conforming.command(kind, settings or [], profile, only or [], python)


@app.command()
def doctor(
    python: Annotated[
        str, typer.Option(help="Interpreter of another environment (simulator.python) to look at as well.")
    ] = "",
    json: Json = None,
) -> None:
    """Look at this machine: versions, GL, cores, memory, and what to do about them."""
    from rlvla3.commands import examining

    examining.command(python, json)


@app.command()
def envs(
    sim: Annotated[str, typer.Argument(help="List the tasks of this simulator.", show_default=False)] = "",
    json: Json = None,
) -> None:
    """List the simulators: installed, missing, and the command that installs them; or the tasks of one."""
    from rlvla3.commands import surveying

    surveying.command(sim, json)


@app.command()
def play(
    sim: Annotated[str, typer.Argument(help="Simulator (see rlvla3 envs), module:attribute, or a recipe.")],
    task: Annotated[str, typer.Argument(help="Name of the task, or its number (see rlvla3 envs SIM).")],
    overrides: Overrides = None,
    policy: Annotated[str, typer.Option(help="expert, random, or a run folder or checkpoint.")] = "expert",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, from consecutive initial states.")] = 1,
    split: Annotated[Split, typer.Option(help="Family of initial states.")] = "held_out",
    state: Annotated[int, typer.Option(min=0, help="Initial state of the first episode.")] = 0,
    out: Annotated[Path, typer.Option(help="The video; replaced if it exists.", **_PATH)] = Path("play.mp4"),
    fps: Annotated[int, typer.Option(min=1, max=240, help="Frames (sub-steps) of a second.")] = 20,
    allow_code: AllowCode = False,
    json: Json = None,
) -> None:
    """Write a video of episodes of one task, and print how each of them ended."""
    from rlvla3.commands import playing
    from rlvla3.messages import Start

    playing.command(
        sim,
        task,
        overrides or [],
        policy=policy,
        episodes=episodes,
        first=Start(task=0, split=split, state=state),
        out=out,
        fps=fps,
        json=json,
        allow_code=allow_code,
    )


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="schedule: the scheduling benchmark; simulators: steps/s of what is installed; policy: "
            "seconds of the networks."
        ),
    ],
    only: Annotated[
        str, typer.Option(help="One case, such as aa (schedule), metaworld/84px or pi05-tiny.")
    ] = "",
    updates: Annotated[
        int | None, typer.Option(min=1, help="schedule: versions of each case (default: about 22 s of them).")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="simulators: turns of each case.")] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="Folder for a cost model of each simulator or policy (check --profile).", **_PATH),
    ] = None,
    json: Json = None,
) -> None:
    """Measure this installation against known bounds; exit code 1 if one is missed."""
    from rlvla3.commands import benching

    benching.command(what, only, updates, json, costs, repeats)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="Run folder or checkpoint.", **_PATH)],
    folder: Annotated[Path, typer.Argument(help="New folder.", **_PATH)],
    newest: Annotated[
        bool, typer.Option("--newest", help="The newest weights, not the averaged ones.")
    ] = False,
    layout: Annotated[
        Layout, typer.Option(help="own, or as other systems read it: lerobot, openpi.")
    ] = "own",
    allow_code: AllowCode = False,
) -> None:
    """Write a policy's weights, with all that is needed to use them, as a folder of its own."""
    from rlvla3.commands import exporting

    exporting.command(source, folder, averaged=not newest, layout=layout, allow_code=allow_code)


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="A folder below RUN/rejected.")],
    overrides: Overrides = None,
    allow_code: AllowCode = False,
    json: Json = None,
) -> None:
    """Run an update again that was skipped because something in it was not finite."""
    from rlvla3.commands import replaying

    replaying.command(folder, overrides or [], allow_code, json)


@app.command()
def demo(
    recipe: Annotated[str, typer.Argument(help="Recipe of the demonstration.")] = "demo",
    overrides: Overrides = None,
    folder: Annotated[Path, typer.Option("--folder", help="Run folder.", **_PATH)] = Path("runs/demo"),
    more_cloning: Annotated[
        bool, typer.Option(help="Also spend training's seconds on more cloning, for comparison.")
    ] = True,
    json: Json = None,
) -> None:
    """From nothing to a trained policy: demonstrations, warm start, training, success before and after."""
    from rlvla3.commands import demonstrating

    demonstrating.command(recipe, overrides or [], folder, more_cloning, json)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; what a user can mend is one line and exit code 2.

    ``arguments``: instead of the process's own. With its own this is the whole process: a signal that
    comes when the work is done no longer ends it, so that a result never looks like a failure.
    """
    sys.path.insert(0, str(Path.cwd()))
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    with watched() as readers:
        try:
            _run(given, readers, restored=arguments is not None)
        except SystemExit as end:
            raise SystemExit(CLOSED if readers.gone else end.code) from None


def _run(arguments: list[str], readers: Readers, *, restored: bool) -> NoReturn:
    try:
        with _ended_by(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, restored=restored):
            code = app(arguments, prog_name="rlvla3", standalone_mode=False)
            typer.echo(nl=False)  # hands over what is still held back
    except UserError as error:
        _refuse(str(error))
    except SystemExit as error:
        _refuse(f"code that a setting names ended the command: {in_words(error)}; it must not exit")
    except OSError as error:
        if line := too_many_files(error):
            _refuse(line)
        if error.errno not in _ABOUT_PATHS or not error.filename:
            raise
        _refuse(f"{error.filename}: {error.strerror}; choose another path or make room")
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "rlvla3"
        text = " ".join(error.format_message().split()).rstrip(".")
        _refuse(f"{text}{' See' if text.endswith('?') else '; see'} {command} --help")
    except (typer.Abort, KeyboardInterrupt):
        _refuse("interrupted", _SIGNALLED + signal.SIGINT)
    except EndedBySignal as end:
        if not readers.gone:
            _refuse(end.line or _ended(end.number), _SIGNALLED + end.number)
        raise SystemExit(CLOSED) from None
    raise SystemExit(code or 0)


def _ended(number: int) -> str:
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


@contextlib.contextmanager
def _ended_by(*ends: signal.Signals, restored: bool) -> Iterator[None]:
    """Turn these signals into ``EndedBySignal``, unless something else was made of them (``nohup``).

    ``restored``: whether they are afterwards what they were before, or are ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        raise EndedBySignal(number)

    usual = (signal.SIG_DFL, signal.default_int_handler)
    old = {number: handler for number in ends if (handler := signal.getsignal(number)) in usual}
    for number in old:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler if restored else signal.SIG_IGN)


def _refuse(text: str, code: int = 2) -> NoReturn:
    for line in text.splitlines():
        typer.echo(f"rlvla3: {line}", err=True)
    raise SystemExit(code) from None
