"""All checks by name, and how they are run one after the other."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rlvla3.conformance import chunks, episodes, frames, hanging, processes
from rlvla3.conformance.faults import Result, Told
from rlvla3.conformance.subject import ConformanceError, Skipped, Subject
from rlvla3.errors import UserError
from rlvla3.plugins import USERS_FAULTS

Check = Callable[[Subject], None]

_HERE: tuple[Check, ...] = (
    episodes.observations_are_as_specified,
    episodes.equal_starts_give_equal_episodes,
    episodes.starts_differ,
    episodes.every_state_is_visited,
    episodes.solved_starts_are_told,
    episodes.actions_are_clipped,
    episodes.an_expert_succeeds,
    chunks.a_chunk_is_its_sub_steps,
    chunks.a_step_limit_is_exact,
    chunks.the_last_observation_is_kept,
    chunks.rendering_rarely_changes_nothing,
    chunks.a_success_is_reported_once,
    frames.frames_show_something,
    frames.frames_are_upright,
)
_ELSEWHERE: tuple[Check, ...] = (
    processes.equal_starts_give_equal_episodes_elsewhere,
    processes.torch_is_not_imported,
    processes.closing_frees,
    processes.memory_is_flat_over_resets,
    hanging.a_hang_in_a_reset_is_ended,
    hanging.a_hang_in_a_step_is_ended,
)
CHECKS: Mapping[str, Check] = {check.__name__: check for check in (*_HERE, *_ELSEWHERE)}
"""Every check, the cheap ones first."""
LIVE = frozenset(check.__name__ for check in _ELSEWHERE)
"""Those that start processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one check ended. ``text``: why it failed or was skipped."""

    name: str
    result: Result
    text: str
    seconds: float


def run(subject: Subject, names: tuple[str, ...] = ()) -> Iterator[Outcome]:
    """Run the named checks, or all; one that fails does not keep the others from being made. Where the same
    fault keeps others from it, they are skipped with the name of the one that tells it.

    Raises:
        UserError: a name is unknown.
    """
    if unknown := set(names) - CHECKS.keys():
        raise UserError(f"--only: {', '.join(sorted(unknown))} is no check; they are {', '.join(CHECKS)}")
    told = Told(episodes.observations_are_as_specified.__name__)
    for name in names or CHECKS:
        start_s = time.monotonic()
        result, text = _made(name, subject, told)
        yield Outcome(name=name, result=result, text=text, seconds=time.monotonic() - start_s)


def _made(name: str, subject: Subject, told: Told) -> tuple[Result, str]:
    try:
        CHECKS[name](subject)
    except (Skipped, ConformanceError, *USERS_FAULTS) as error:
        with contextlib.suppress(*USERS_FAULTS):  # the first fault is the one to tell
            subject.close()
        return told.outcome(name, error)
    try:
        subject.close()
    except USERS_FAULTS as error:
        return told.closed(name, error)
    return "ok", ""
