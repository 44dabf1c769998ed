"""Commands that are refused, and run folders to refuse them in."""

from pathlib import Path

import pytest

from rlvla3.assembly import Assembly
from rlvla3.cli import main
from rlvla3.config import load_config
from rlvla3.config_loading import dump
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description, Kept
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.run_folder import RunFolder

SMALL = (
    "schedule-benchmark",
    *("simulator.envs=4", "simulator.slots=4", "simulator.lanes=4"),
    *("trainer.batch=4", "trainer.micro_batch=4", "trainer.updates=1"),
)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a command is refused with."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert end.value.code == 2, printed
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("rlvla3: "), printed.err
    assert "Traceback" not in printed.err + printed.out
    return lines[0]


def run_folder(name: str, *overrides: str, kind: str = "checkpoint") -> Path:
    """A run that has ended, without having run it; ``kind`` best: of weights only."""
    config = load_config(SMALL[0], [*SMALL[1:], *overrides])
    with RunFolder.create(name) as run:
        run.describe(dump(config))
    learner = EmulatedLearner(EmulatedLearnerSettings(), streaming=False)
    description = Description(
        version=1, score=None, fingerprint=Assembly(config).fingerprint(), config=config.model_dump_json()
    )
    kept = Kept(Path(name) / checkpoint.CHECKPOINTS, 1)
    if kind == "checkpoint":
        kept.save(learner, description, "{}")
    else:
        kept.save_best(learner.weights("rollout"), description)
    return Path(name)
