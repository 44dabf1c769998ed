"""Sinks, intervals and figures, against numbers computed by hand."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.errors import UserError
from rlvla3.metrics import (
    JsonLines,
    Metrics,
    Row,
    TensorBoard,
    WeightsAndBiases,
    bootstrap_paired,
    over_seeds,
    read_json_lines,
    wilson,
    write_figures,
)


def test_json_lines_survive_a_torn_last_line(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    with Metrics([JsonLines(file)]) as metrics:
        metrics.log(1, {"loss": 0.5}, 1.23456)
        metrics.log(2, {"loss": math.nan}, 2.0)
    with file.open("a") as torn:
        torn.write('{"step": 3, "lo')
    with Metrics([JsonLines(file)]) as metrics:
        metrics.log(4, {"loss": 1.0}, 4.0)
    assert read_json_lines(file) == [
        {"step": 1, "time_s": 1.235, "loss": 0.5},
        {"step": 2, "time_s": 2.0, "loss": "nan"},
        {"step": 4, "time_s": 4.0, "loss": 1.0},
    ]


def test_json_lines_are_complete_before_close(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    sink = JsonLines(file)
    sink.write(1, {"loss": 0.5}, 1.0)
    assert file.read_text() == '{"step": 1, "time_s": 1.0, "loss": 0.5}\n'
    sink.close()


def test_tensorboard_reads_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    with Metrics([TensorBoard(tmp_path)]) as metrics:
        metrics.log(7, {"loss": 0.5, "lag": 1}, 1.0)
    (file,) = tmp_path.iterdir()
    events = [event for event in EventFileLoader(str(file)).Load() if event.summary.value]
    values = {value.tag: value.tensor.float_val[0] for value in events[0].summary.value}
    assert (events[0].step, values) == (7, {"loss": 0.5, "lag": 1.0})


def test_the_interval_over_seeds_is_students() -> None:
    # Deviations -1, 0, 1: stdev 1, half = 4.3027 / sqrt(3).
    assert over_seeds([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0 - 2.48414, 2.0 + 2.48414), abs=1e-4)
    assert over_seeds([4.0]) == (4.0, 4.0, 4.0)
    with pytest.raises(ValueError, match="1 to 10 numbers, got 0"):
        over_seeds([])


def test_every_sink_is_closed_when_one_fails(tmp_path: Path) -> None:
    class Broken:
        def write(self, step: int, values: object, time_s: float) -> None: ...

        def close(self) -> None:
            raise OSError("disk")

    class Watched(Broken):
        closed = False

        def close(self) -> None:
            self.closed = True

    first, last = Watched(), Watched()
    metrics = Metrics([first, Broken(), last])
    metrics.close()
    assert metrics.faults == ["Broken: disk; its last figures may be missing"]
    assert first.closed
    assert last.closed


@pytest.mark.parametrize("sink", [JsonLines, TensorBoard])
def test_a_sink_that_cannot_begin_is_named(sink: type, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/new: cannot be written: .*; choose another folder"):
        sink(tmp_path / "file" / "new")


FULL = """
import resource, signal, sys
from pathlib import Path
from rlvla3.metrics import JsonLines, Metrics, TensorBoard
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
class Other:
    steps = []
    def write(self, step, values, time_s): self.steps.append(step)
    def close(self): pass
with Metrics([JsonLines(folder / "m.jsonl"), TensorBoard(folder / "board"), Other()]) as metrics:
    for step in range(200):
        metrics.log(step, {"loss": 0.5}, 1.0)
assert Other.steps == list(range(200))
print(*metrics.faults, sep="\\n")
"""


def test_a_sink_without_room_is_given_up_and_the_run_goes_on(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert sorted(line.partition(":")[0] for line in run.stdout.splitlines()) == ["JsonLines", "TensorBoard"]
    assert all(line.endswith("it gets no more figures of this run") for line in run.stdout.splitlines())
    assert [row["step"] for row in read_json_lines(tmp_path / "m.jsonl")][:3] == [0, 1, 2]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline(tmp_path: Path) -> None:
    with Metrics([WeightsAndBiases(tmp_path, "test", "offline", {"seed": 1})]) as metrics:
        metrics.log(1, {"loss": 0.5}, 1.0)
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_missing_wandb_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"pip install 'rlvla3\[wandb\]'"):
        WeightsAndBiases(tmp_path, "test", "offline", {})


def test_wilson_golden() -> None:
    # z = 2, 8 of 10: centre (.8 + .2) / 1.4, half 2 * sqrt(.016 + .01) / 1.4
    low, high = wilson(8, 10, z=2.0)
    assert low == pytest.approx((1.0 - 2 * math.sqrt(0.026)) / 1.4)
    assert high == pytest.approx((1.0 + 2 * math.sqrt(0.026)) / 1.4)
    assert wilson(0, 10, z=2.0) == pytest.approx((0.0, 0.4 / 1.4))
    assert wilson(10, 10, z=2.0) == pytest.approx((1.0 / 1.4, 1.0))
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="between 0 and n = 3, got 4"):
        wilson(4, 3)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_and_is_symmetric(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson(successes, n)
    assert 0.0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1.0
    mirrored = wilson(n - successes, n)
    assert (low, high) == pytest.approx((1 - mirrored[1], 1 - mirrored[0]))


def test_bootstrap_against_the_exact_binomial() -> None:
    # 50 of 100 pairs improve: the mean of a resample is Binomial(100, .5) / 100,
    # whose 2.5 % and 97.5 % quantiles are .40 and .60.
    before = np.zeros(100)
    after = np.repeat([0.0, 1.0], 50)
    result = bootstrap_paired(before, after, seed=3)
    assert result.gain == 0.5
    assert result.low == pytest.approx(0.40, abs=0.011)
    assert result.high == pytest.approx(0.60, abs=0.011)
    assert result.p == pytest.approx(2 / 10_001)
    assert bootstrap_paired(before, after, seed=3) == result


def test_bootstrap_without_an_effect() -> None:
    before = np.tile([0.0, 1.0], 30)
    assert bootstrap_paired(before, before, seed=0).p == 1.0
    swapped = bootstrap_paired(before, 1.0 - before, seed=0)
    assert swapped.gain == 0.0
    assert swapped.p > 0.5
    assert swapped.low < 0 < swapped.high


@pytest.mark.parametrize(("before", "after"), [([], []), ([1], [1, 2]), ([[1]], [[1]])])
def test_bootstrap_checks_shapes(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="equally long"):
        bootstrap_paired(before, after, seed=0)


def test_figures_file(tmp_path: Path) -> None:
    file = tmp_path / "out" / "figures.json"
    rows = [
        Row(name="aa/ratio", value=0.97, unit="", bound=0.95),
        Row(name="aa/steps_s", value=math.nan, unit="steps/s"),
    ]
    write_figures(file, rows)
    written = json.loads(file.read_text())
    assert written["rows"] == [
        {"name": "aa/ratio", "value": 0.97, "unit": "", "bound": 0.95},
        {"name": "aa/steps_s", "value": None, "unit": "steps/s", "bound": None},
    ]
    assert written["versions"]["packages"]["numpy"]
