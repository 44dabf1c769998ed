"""The command line: reads arguments, shows one line for what the user can mend."""

import contextlib
import errno
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from rlvla3.errors import EndedBySignal, UserError, too_many_files
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
    allow_code: AllowCode = False,
    json: Json = None,
) -> None:
    """Measure a policy's success on fixed held-out initial states."""
    from rlvla3.commands import evaluating

    evaluating.command(weights, overrides or [], videos, not newest, json, allow_code)


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
        float, typer.Option(min=0.1, help="Seconds that no reset and no chunk may really take.")
    ] = 20.0,
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
) -> None:
    """Check that a simulator's adapter keeps every rule; exit code 1 if it breaks one."""
    from rlvla3.commands import conforming
    from rlvla3.conformance import Profile

    profile = Profile(lift=conforming.numbers(lift), states=states, resets=resets, deadline_s=deadline)
    conforming.command(kind, settings or [], profile, only or [])


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
def bench(
    what: Annotated[str, typer.Argument(help="schedule: the scheduling benchmark.")],
    only: Annotated[str, typer.Option(help="One case: ss, rollout_only, aa or aa_2gen.")] = "",
    updates: Annotated[
        int | None, typer.Option(min=1, help="Versions measured in each case (default: about 22 s of them).")
    ] = None,
    json: Json = None,
) -> None:
    """Measure this installation against known bounds; exit code 1 if one is missed."""
    from rlvla3.commands import benching

    benching.command(what, only, updates, json)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="Run folder or checkpoint.", **_PATH)],
    folder: Annotated[Path, typer.Argument(help="New folder.", **_PATH)],
    newest: Annotated[
        bool, typer.Option("--newest", help="The newest weights, not the averaged ones.")
    ] = False,
) -> None:
    """Write a policy's weights, with all that is needed to use them, as a folder of its own."""
    from rlvla3.learner import checkpoint

    checkpoint.export(source, folder, averaged=not newest)
    typer.echo(f"{folder}: written from {checkpoint.find(source)}")


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
    try:
        with _ended_by(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, restored=arguments is not None):
            code = app(given, prog_name="rlvla3", standalone_mode=False)
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
        name = "interrupted" if end.number == signal.SIGINT else f"ended by {signal.Signals(end.number).name}"
        _refuse(end.line or name, _SIGNALLED + end.number)
    raise SystemExit(code or 0)


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
