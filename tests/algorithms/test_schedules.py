"""Learning-rate schedules by hand."""

import pytest

from rlvla3.algorithms.schedules import decay, warm_up


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        ("constant", 0.7, 1.0),
        ("linear", 0.0, 1.0),
        ("linear", 0.5, 0.55),
        ("linear", 1.0, 0.1),
        ("linear", 3.0, 0.1),
        ("cosine", 0.0, 1.0),
        ("cosine", 0.5, 0.55),
        ("cosine", 1.0, 0.1),
        ("cosine", -1.0, 1.0),
    ],
)
def test_decay(schedule, progress, expected) -> None:
    assert decay(schedule, progress, 0.1) == pytest.approx(expected)


def test_warm_up() -> None:
    assert [warm_up(i, 4) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warm_up(0, 0) == 1.0
