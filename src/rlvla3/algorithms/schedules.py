"""Learning-rate schedules: pure functions of progress, so a resumed run cannot shift them."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def decay(schedule: Schedule, progress: float, final: float) -> float:
    """Factor of the base rate at ``progress`` in [0, 1]: from 1 to ``final``."""
    progress = min(max(progress, 0.0), 1.0)
    if schedule == "linear":
        return 1.0 + (final - 1.0) * progress
    if schedule == "cosine":
        return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0


def warm_up(index: int, steps: int) -> float:
    """Factor (index + 1) / steps while ``index`` < ``steps``, then 1."""
    return 1.0 if index >= steps else (index + 1) / steps
