"""When an episode ends: one rule for every adapter."""

from typing import Literal

LimitIs = Literal["terminated", "truncated"]
"""``truncated``: reaching the step limit cuts the episode (its value is bootstrapped);
``terminated``: being in time is part of the task, so the limit ends it."""


def ending(*, ended: bool, steps: int, limit: int, limit_is: LimitIs) -> tuple[bool, bool]:
    """(terminated, truncated) after ``steps`` sub-steps; never both, and an end of the task wins.

    Args:
        ended: the task itself ended at this sub-step (success, or a true failure).
        steps: sub-steps executed in this episode.
        limit: sub-steps an episode may have; 0: unlimited.
        limit_is: what reaching the limit means.
    """
    if ended:
        return True, False
    cut = limit > 0 and steps >= limit
    return cut and limit_is == "terminated", cut and limit_is == "truncated"
