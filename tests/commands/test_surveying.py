"""``rlvla3 envs``: what is installed, what is missing, and how to get it."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from refusals import refused

from rlvla3.cli import main
from rlvla3.commands import surveying
from rlvla3.simulators.packages import ENVIRONMENTS, PACKAGES, Package
from rlvla3.simulators.registry import BUILT_IN, simulator_class


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(["envs", *arguments])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_every_built_in_simulator_is_described() -> None:
    assert set(PACKAGES) == set(BUILT_IN)


@pytest.mark.parametrize("name", PACKAGES)
def test_what_is_said_of_a_simulator_fits_its_adapter(name: str) -> None:
    package = PACKAGES[name]
    assert package.plays in simulator_class(name).Settings.model_fields
    assert bool(package.names) != bool(package.uncounted)
    assert not package.distribution or bool(package.extra) != bool(package.install)
    assert bool(package.module) == bool(package.distribution) == bool(package.command)


def test_every_extra_is_one_of_this_package() -> None:
    file = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
    named = {package.extra for package in (*PACKAGES.values(), *ENVIRONMENTS.values()) if package.extra}
    assert named <= set(extras)


def test_the_table_and_the_file_say_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "envs.json"
    text = printed(capsys, "--json", str(file))
    printed(capsys, "--json", str(file))  # a second time: it holds figures, so it may be replaced
    found = json.loads(file.read_text())
    rows = {row["name"]: row for row in found["rows"]}
    assert set(rows) >= {*BUILT_IN, "GL osmesa", "GL egl", "Vulkan"}
    for name in BUILT_IN:
        assert name in text
        assert bool(rows[name]["version"]) != bool(rows[name]["install"])
    assert rows["synthetic"]["tasks"] == "4" and rows["metaworld"]["tasks"] == "50"


def test_tasks_are_listed_with_numbers_where_settings_take_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "tasks.json"
    lines = printed(capsys, "libero", "--json", str(file)).splitlines()
    assert lines[:2] == [
        "suite libero_spatial",
        "   0  pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate",
    ]
    goal = lines[lines.index("suite libero_goal") :]
    assert goal[8] == "   7  turn_on_the_stove"
    assert len(lines) == 130 + 5
    suites = {row["suite"]: row["tasks"] for row in json.loads(file.read_text())["rows"]}
    assert suites["libero_goal"][7] == "turn_on_the_stove"
    assert "PickCube-v1" in printed(capsys, "maniskill").splitlines()
    assert len(printed(capsys, "metaworld").splitlines()) == 50


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metawrld", "'metawrld' is no simulator; did you mean 'metaworld'?"),
        ("gymnasium", "its tasks are any registered id, which it cannot list; give one as simulator.options"),
    ],
)
def test_tasks_that_cannot_be_listed_are_one_line(
    name: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refused(capsys, "envs", name)


@pytest.mark.parametrize("name", PACKAGES)
def test_numbers_stand_for_tasks_exactly_where_settings_take_numbers(name: str) -> None:
    package = PACKAGES[name]
    kind = simulator_class(name).Settings.model_fields[package.plays].annotation
    assert package.in_suites == (int in {part for group in get_args(kind) for part in get_args(group)})


def test_a_missing_one_comes_with_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = replace(PACKAGES["metaworld"], extra="nothing", distribution="no-such-distribution")
    monkeypatch.setitem(PACKAGES, "metaworld", absent)
    monkeypatch.setattr(surveying, "_loads", lambda library: False)
    text = printed(capsys)
    assert "missing" in text
    assert f"to get metaworld: {sys.executable} -m pip install 'rlvla3[nothing]'" in text
    assert "to get GL egl: apt-get install libegl1" in text
    assert "to get Vulkan: apt-get install libvulkan1 mesa-vulkan-drivers" in text


def test_the_drivers_of_vulkan_are_those_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = tmp_path / "driver.json"
    driver.touch()
    monkeypatch.delenv("VK_DRIVER_FILES", raising=False)
    monkeypatch.setenv("VK_ICD_FILENAMES", f"{tmp_path / 'gone.json'}:{driver}")
    assert list(surveying._vulkan_drivers()) == [driver]


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert Package(distribution="no-such-distribution").version == ""
    assert Package().version


@pytest.mark.live
def test_nothing_heavy_is_imported() -> None:
    text = (
        "import sys\nfrom rlvla3.cli import main\n"
        "try:\n    main(['envs'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'mujoco', 'metaworld', 'gymnasium', 'OpenGL', 'av'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
