"""``simulator.python``: what another Python environment must have, and what it is asked."""

import dataclasses
import os
import platform
import select
from pathlib import Path

import numpy as np
import pytest
from live import TESTS, values
from other_python import ADAPTER, imports, make_environment
from refusals import SMALL, refused

from rlvla3 import doctor
from rlvla3.assembly import Assembly
from rlvla3.config import Config, load_config
from rlvla3.config_loading import dump
from rlvla3.elsewhere import adapter_class, asking, interpreter
from rlvla3.errors import UserError
from rlvla3.plugins import distrust
from rlvla3.simulators import robocasa, robocasa_meaning
from rlvla3.simulators.registry import simulator_class

OPTIONS = {"task": "delay", "mean_ms": 1, "cv": 1, "latency": "log_normal", "step_limits": 12}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("other") / "env")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


def recipe(folder: Path, python: Path | str, kind: str = ADAPTER, options: str = "") -> str:
    """A recipe whose simulator is in another environment."""
    file = folder / "recipe.yaml"
    file.write_text(
        f"extends: {SMALL[0]}\nsimulator:\n  python: {python}\n  kind: {kind}\n  options: {{{options}}}\n"
    )
    return str(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "nowhere/bin/python",
            "there is no file '{cwd}/nowhere/bin/python': correct it, or make the environment",
        ),
        (".", "'.' is a folder: name the interpreter in it"),
        ("no-such-command", "there is no file '{cwd}/no-such-command'"),
        ("{file}", "'{file}' may not be executed: correct the path, or chmod +x it"),
    ],
)
def test_a_path_where_no_interpreter_is(
    text: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_text("")
    words = {"cwd": tmp_path, "file": tmp_path / "plain"}
    with pytest.raises(UserError) as refusal:
        load_config(SMALL[0], [f"simulator.python={text.format(**words)}"])
    assert line.format(**words) in str(refusal.value)
    assert "command line: simulator.python: must be the Python interpreter of an environment" in str(
        refusal.value
    )
    assert len(str(refusal.value).splitlines()) == 1


def test_a_path_becomes_absolute_and_a_link_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/sh")
    found = load_config(SMALL[0], ["simulator.python=bin/python"])
    assert found.simulator.python == str(tmp_path / "bin" / "python")
    (tmp_path / "again.yaml").write_text(dump(found))
    assert load_config(str(tmp_path / "again.yaml"), []) == found


@pytest.mark.live
@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("echo hello", "it does not answer as Python does (exit code 0: no message); name another"),
        ("echo oh >&2; exit 3", "it does not answer as Python does (exit code 3: oh); name another"),
        (
            'echo \'{"version": [3, 9, 2], "modules": {}}\'',
            "it is Python 3.9.2, Simulators need 3.11 or newer; make it with a newer one",
        ),
    ],
)
def test_an_interpreter_that_is_of_no_use(script: str, line: str, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(UserError) as refusal:
        load_config(recipe(tmp_path, program), [])
    assert f"simulator.python = '{program}': {line}" in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.live
@pytest.mark.parametrize("late", ["_PROBE_TIMEOUT_S", "_ANSWER_TIMEOUT_S"])
def test_a_silent_interpreter_ends_with_what_it_started(
    late: str, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first question is silent, or only the second one."""
    monkeypatch.setattr(interpreter if late == "_PROBE_TIMEOUT_S" else asking, late, 2.0)
    program, child = tmp_path / "python", tmp_path / "child"
    answers = "" if late == "_PROBE_TIMEOUT_S" else f'case "$2" in *runpy*) ;; *) exec {python} "$@";; esac\n'
    program.write_text(f"#!/bin/sh\n{answers}sleep 600 &\necho $! > {child}\nwait\n")
    program.chmod(0o755)
    with pytest.raises(UserError) as refusal:
        load_config(recipe(tmp_path, program), [])
    assert str(refusal.value).endswith(f"'{program}': it said nothing within 2 s; name another interpreter")
    assert str(refusal.value).count("said nothing") == 1
    assert ended(int(child.read_text()))


def ended(process: int) -> bool:
    """Whether a process ends within ten seconds."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    with os.fdopen(handle):
        return bool(select.select([handle], [], [], 10)[0])


@pytest.mark.live
def test_an_environment_without_the_packages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = make_environment(tmp_path / "bare", packages=False)
    line = refused(capsys, "check", recipe(tmp_path, bare))
    assert f"simulator.python = '{bare}': numpy cannot be imported there (ModuleNotFoundError: " in line
    assert (
        f"; run: {bare} -m pip install 'numpy>=1.26' 'msgspec>=0.19' 'pydantic>=2.10' 'PyYAML>=6.0'" in line
    )


@pytest.mark.live
def test_the_doctor_looks_there_too(python: Path, tmp_path: Path) -> None:
    (found,) = doctor.elsewhere(str(python))
    assert found.ok
    assert f"python {platform.python_version()}, numpy {np.__version__}, " in found.value
    (missing,) = doctor.elsewhere(str(tmp_path / "nowhere"))
    assert not missing.ok and "there is no file" in missing.remedy


@pytest.mark.live
@pytest.mark.parametrize(
    ("kind", "options", "line"),
    [
        ("nothing_here:Thing", "", "simulator.kind = 'nothing_here:Thing': no module 'nothing_here'"),
        ("kept_apart:Thing", "", "module 'kept_apart' has no attribute 'Thing'"),
        ("kept_apart:Speechless", "", "its spec must be a SimulatorSpec, it is 7"),
        (ADAPTER, "mean: 1", "simulator.options.mean: unknown key; did you mean 'mean_ms'"),
        (ADAPTER, "cv: much", "simulator.options.cv: must be a number"),
    ],
)
def test_what_the_adapter_there_does_not_like(
    kind: str, options: str, line: str, python: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refusal:
        _ = Assembly(load_config(recipe(tmp_path, python, kind, options), [])).spec
    assert line in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.live
def test_a_spec_is_asked_for_once_and_options_are_completed(python: Path) -> None:
    before = len(imports(python))
    config = Config.model_validate(
        values({"simulator": {"kind": ADAPTER, "python": str(python), "options": {**OPTIONS, "mean_ms": 3}}})
    )
    again = Config.model_validate_json(config.model_dump_json())
    assert again == config
    for each in (config, again):
        spec = Assembly(each).spec
        assert (spec.observation[0].name, spec.step_limits) == ("echo", (12,))
        assert spec.fingerprint["mark"] == "there"
        assert spec.fingerprint["prefix"] == str(python.parents[1])
    assert len(imports(python)) == before + 1
    assert config.simulator.options.model_dump()["limit_is"] == "truncated"


@pytest.mark.live
def test_a_member_is_told_what_was_asked(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = adapter_class(ADAPTER, str(python))
    spec = adapter(adapter.Settings.model_validate(OPTIONS)).spec
    told = asking.known()
    monkeypatch.setattr(asking, "_known", {})
    asking.remember(told)
    before = len(imports(python))
    assert adapter(adapter.Settings.model_validate(OPTIONS)).spec == spec
    assert len(imports(python)) == before


@pytest.mark.live
@pytest.mark.parametrize(
    "kind",
    [
        "synthetic",
        pytest.param("metaworld", marks=pytest.mark.metaworld),
        pytest.param("libero", marks=pytest.mark.libero),
        pytest.param("maniskill", marks=pytest.mark.maniskill),
    ],
)
def test_a_built_in_simulator_there_is_as_here(kind: str, python: Path) -> None:
    here, there = adapter_class(kind), adapter_class(kind, str(python))
    assert there.Settings is here.Settings
    settings = here.Settings()
    assert there(settings).spec == here(settings).spec
    assert there(settings).spec.meaning is not None
    with pytest.raises(UserError, match=f"only simulator.python = {python} can build its envs"):
        there(settings).make()


def test_a_stranger_names_no_interpreter(tmp_path: Path) -> None:
    with (
        distrust("a checkpoint"),
        pytest.raises(UserError, match="'/bin/sh' is code that a checkpoint names"),
    ):
        load_config(SMALL[0], ["simulator.python=/bin/sh"])
    with distrust("a checkpoint", ["/bin/sh"]):
        load_config(SMALL[0], ["simulator.python=/bin/sh"])
        with pytest.raises(UserError, match=f"{ADAPTER!r} is code that a checkpoint names"):
            load_config(recipe(tmp_path, "/bin/sh"), [])


@pytest.mark.live
def test_code_that_options_name_is_a_strangers_there_too(python: Path) -> None:
    adapter = adapter_class(ADAPTER, str(python))
    with distrust("a checkpoint", [str(python), ADAPTER]):
        asked = asking.ask(str(python), ADAPTER, {**OPTIONS, "mean_ms": 4})
    assert asked.options["mean_ms"] == 4
    assert adapter.kind == ADAPTER


def test_answers_cross_to_other_processes_with_what_their_fields_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "_known", {})
    for kind in ("synthetic", "metaworld", "libero", "maniskill"):
        spec = (made := simulator_class(kind))(made.Settings()).spec
        assert spec.meaning is not None
        asking._known[kind] = asking.Answer(options={}, spec=spec)
    mobile = robocasa_meaning.meaning(("left", "wrist"), 48, robocasa.STATES[25])
    asking._known["robocasa"] = asking.Answer(options={}, spec=dataclasses.replace(spec, meaning=mobile))
    found, text = dict(asking._known), asking.known()
    asking._known.clear()
    asking.remember(text)
    assert asking._known == found
