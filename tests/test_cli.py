"""The command line: help that matches, figures as JSON, cheap commands that stay cheap."""

import inspect
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlvla3 import cli
from rlvla3.cli import main
from rlvla3.config import RECIPES, load_config
from rlvla3.config_loading.trees import recipe_names

COMMANDS = {
    command.name or command.callback.__name__: command.callback for command in cli.app.registered_commands
}
FIGURES = ("train", "sft", "eval", "check", "doctor", "bench", "demo")
"""Commands that print figures."""


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_the_command_does_and_takes(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = output(capsys, command, "--help")
    callback = COMMANDS[command]
    assert " ".join(callback.__doc__.split()) in " ".join(text.split())
    for name in inspect.signature(callback).parameters:
        assert name.replace("_", "-") in text or name in text


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "--help")
    assert all(command in text for command in COMMANDS)
    assert set(FIGURES) <= set(COMMANDS)


@pytest.mark.parametrize("command", FIGURES)
def test_figures_can_be_written(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "--json" in output(capsys, command, "--help")


def test_no_arguments_show_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rlvla3"])
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in ends}
    try:
        with pytest.raises(SystemExit) as end:
            main()
        # The process's own command line: the work is done, so a late Ctrl-C must not look like a failure.
        assert all(signal.getsignal(number) is signal.SIG_IGN for number in ends)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert end.value.code == 0
    assert "Usage: rlvla3" in capsys.readouterr().out


def test_json_has_rows_and_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "new" / "figures.json"
    output(capsys, "check", "schedule-benchmark", "--json", str(file))
    found = json.loads(file.read_text())
    assert set(found) == {"rows", "versions"}
    assert {"name", "value", "unit", "bound"} == set(found["rows"][0])
    assert {"python", "commit", "packages"} <= set(found["versions"])


def test_a_file_that_exists_is_looked_at_without_touching_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    file.write_text("old")
    with pytest.raises(SystemExit):
        main(["check", "nothing", "--json", str(file)])
    assert file.read_text() == "old"


def test_check_loads_no_heavy_package() -> None:
    text = (
        "import sys\nfrom rlvla3.cli import main\n"
        "try:\n    main(['check', 'demo'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'mujoco', 'metaworld', 'av', 'ray'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("recipe", recipe_names(RECIPES))
def test_settings_lists_every_setting_with_its_value(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["settings", recipe])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    config = load_config(recipe, [])
    for path in ("seed", "trainer.batch", "generator.linger_ms", "learner.kind"):
        value: object = config
        for name in path.split("."):
            value = getattr(value, name)
        assert f"\n{path} = {value}    (" in "\n" + printed
    for field in type(config.policy.options).model_fields:
        # A group of settings is told by what is in it.
        assert f"policy.options.{field} = " in printed or f"policy.options.{field}." in printed
