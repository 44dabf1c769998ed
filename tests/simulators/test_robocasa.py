"""RoboCasa through its own environment, in a kitchen made here.

``$RLVLA3_ROBOCASA_PYTHON`` names the environment's interpreter; else ``.venv-robocasa/bin/python``.
"""

import os
import subprocess
from pathlib import Path

import pytest
from live import TESTS, Run, values

from rlvla3.assembly import Assembly
from rlvla3.config import Config, load_config
from rlvla3.errors import UserError
from rlvla3.simulators import robocasa, robocasa_meaning

ROOT = TESTS.parent
PYTHON = Path(os.environ.get("RLVLA3_ROBOCASA_PYTHON", ROOT / ".venv-robocasa" / "bin" / "python"))
REASON = f"there is no RoboCasa environment ({PYTHON}); make it with .ci/robocasa-environment"
HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.robocasa,
    pytest.mark.live,
    pytest.mark.skipif(not PYTHON.exists(), reason=REASON),
]


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robocasa") / "assets"
    subprocess.run([PYTHON, HERE / "robocasa_kitchen.py", folder], check=True)
    return folder


def suite(kitchen: Path, file: str, marks: str = "robocasa and not slow") -> None:
    """Run a file's tests with the environment's interpreter; the tree's sources are what it imports."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "ROBOCASA_ASSETS_PATH": str(kitchen)}
    command = [str(PYTHON), "-m", "pytest", "-p", "no:xdist", "-m", marks, str(HERE / file)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout, run.stdout


def test_the_adapter(kitchen: Path) -> None:
    suite(kitchen, "robocasa_inside.py")


def test_the_conformance_suite(kitchen: Path) -> None:
    suite(kitchen, "test_conformance.py")


@pytest.mark.slow
def test_memory_is_flat_over_many_resets(kitchen: Path) -> None:
    suite(kitchen, "test_conformance.py", "robocasa and slow")


def configuration(**options: object) -> dict:
    """A small run in the kitchen, from an environment without RoboCasa."""
    pairs = [[1, 1]]
    return {
        **values({"trainer": {"batch": 2, "micro_batch": 1, "updates": 2}}),
        "simulator": {
            "kind": "robocasa",
            "python": str(PYTHON),
            "options": {
                "image_size": 32,
                "kitchens": {"train": pairs, "held_out": pairs, "demonstration": pairs},
                "step_limits": 6,
                **options,
            },
            "envs": 1,
            "chunk": 3,
        },
    }


def test_a_run_trains_on_it_from_an_environment_without_it(kitchen: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, configuration(assets=str(kitchen))).go(limit_s=400).trained(2)
    assert run.watcher.lost == []
    assert run.engine.statistics.sub_steps >= 4 * 6


def test_what_its_fields_mean_is_known_from_an_environment_without_it(kitchen: Path) -> None:
    options = {"assets": str(kitchen), "cameras": ["wrist"], "state": 25}
    spec = Assembly(Config.model_validate(configuration(**options))).spec
    assert spec.meaning == robocasa_meaning.meaning(("wrist",), 32, robocasa.STATES[25])


def test_a_check_says_what_is_missing(tmp_path: Path) -> None:
    assembly = Assembly(Config.model_validate(configuration(assets=str(tmp_path))))
    with pytest.raises(UserError) as refusal:
        _ = assembly.spec
    line = str(refusal.value)
    assert f"there are no textures and no objects in {tmp_path}" in line
    assert f"{PYTHON} -m robocasa.scripts.download_assets_cli" in line
    with pytest.raises(UserError, match=r"kitchens.train: .*got none"):
        load_config("schedule-benchmark", ["simulator.kind=robocasa", "simulator.options.kitchens.train=[]"])
