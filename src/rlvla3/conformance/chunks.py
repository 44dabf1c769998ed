"""Checks of action chunks: rewards and ends of each sub-step, what counts and what is kept."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.conformance.episodes import expert_of
from rlvla3.conformance.subject import Skipped, Subject, observed, plain, require, stepped
from rlvla3.messages import Start
from rlvla3.simulators.api import Env
from rlvla3.simulators.chunking import ChunkResult, SerialBatch, chunk_step

CHUNK = 5
_LIMITS = (1, 4, 5, 7)
_LONGEST = 1000
"""Sub-steps that an expert may take."""
_LOOKED_ON = 20
"""Sub-steps after a success in which another one is looked for."""
Outcomes = list[tuple[float, bool, bool, bool]]


def _chunked(env: Env, start: Start, actions: npt.NDArray[np.float32], limit: int = 0) -> list[ChunkResult]:
    """Execute actions [n, A] in chunks until the episode's end; the last one is filled up with zeros."""
    batch = SerialBatch([env])
    batch.reset(0, start, limit)
    padded = np.concatenate([actions, np.zeros((-len(actions) % CHUNK, actions.shape[1]), np.float32)])
    results: list[ChunkResult] = []
    for chunk in padded.reshape(-1, 1, CHUNK, actions.shape[1]):
        results += chunk_step(batch, [0], chunk)
        if results[-1].terminated or results[-1].truncated:
            break
    return results


def _single(env: Env, start: Start, actions: npt.NDArray[np.float32]) -> Outcomes:
    """Outcome of each sub-step, up to the first end."""
    env.reset(start, 0)
    outcomes: Outcomes = []
    for action in actions:
        outcomes.append(plain(stepped(env, action)))
        if outcomes[-1][1] or outcomes[-1][2]:
            break
    return outcomes


def a_chunk_is_its_sub_steps(subject: Subject) -> None:
    """Rewards of a chunk are those of its single sub-steps, and its end is the first of them."""
    env = subject.make()
    start, actions = subject.unsolved(env), subject.actions(2 * CHUNK)
    alone = _single(env, start, actions)
    together = _chunked(env, start, actions)
    rewards = [reward for result in together for reward in result.reward[: result.sub_steps]]
    require(
        rewards[: len(alone)] == [o[0] for o in alone], "rewards in a chunk are not those of its sub-steps"
    )
    require(sum(r.sub_steps for r in together) >= len(alone), "a chunk ended before its episode did")
    ended = any(o[1] or o[2] for o in alone)
    last = together[-1]
    require((last.terminated or last.truncated) == ended, "a chunk and its sub-steps end differently")


def a_step_limit_is_exact(subject: Subject) -> None:
    """An episode has as many sub-steps as its limit says, and nothing after its end counts."""
    kinds = ("truncated", "terminated") if subject.has_setting("limit_is") else ("",)
    for kind in kinds:
        env = subject.make(**({"limit_is": kind} if kind else {}))
        start = subject.unsolved(env)
        for limit in _LIMITS:
            results = _chunked(env, start, subject.still(3 * CHUNK), limit)
            executed, last = sum(r.sub_steps for r in results), results[-1]
            if executed < limit and last.terminated:
                raise Skipped(f"with zero actions its task ends by itself after {executed} sub-steps")
            require(executed == limit, f"step limit {limit}: {executed} sub-steps were executed")
            ends = (last.terminated, last.truncated)
            wanted = (kind == "terminated", kind != "terminated")
            require(ends == wanted, f"step limit {limit}: (terminated, truncated) is {ends}, not {wanted}")
            after = last.reward[last.sub_steps :]
            require(not any(after), f"step limit {limit}: rewards after the end are {after}, not 0")


def the_last_observation_is_kept(subject: Subject) -> None:
    """At a cut, what is observed is the state that was reached, and not the next episode's first."""
    env, actions = subject.make(), subject.actions(CHUNK)
    start = subject.unsolved(env)
    outcomes = _single(env, start, actions[:-1])
    reached = _copy(env)
    _chunked(env, start, actions, len(outcomes))
    for name, array in observed(env).items():
        require(
            np.array_equal(array, reached[name]), f"{name!r} after a cut is not that of the last sub-step"
        )


def rendering_rarely_changes_nothing(subject: Subject) -> None:
    """Observations at the ends of chunks have the same bits whether or not others were rendered between."""
    env, actions = subject.make(), subject.actions(3 * CHUNK)
    start = subject.unsolved(env)
    often = _at_chunk_ends(env, start, actions, every=True)
    rarely = _at_chunk_ends(env, start, actions, every=False)
    for index, (one, other) in enumerate(zip(often, rarely, strict=True)):
        for name in one:
            same = np.array_equal(one[name], other[name])
            require(same, f"{name!r} at the end of chunk {index} depends on how often was rendered")


def _at_chunk_ends(
    env: Env, start: Start, actions: npt.NDArray[np.float32], every: bool
) -> list[dict[str, npt.NDArray[Any]]]:
    env.reset(start, 0)
    found = [_copy(env)]
    for count, action in enumerate(actions, start=1):
        step = stepped(env, action)
        if every:
            observed(env)
        if count % CHUNK == 0:
            found.append(_copy(env))
        if step.terminated or step.truncated:
            break
    return found


def _copy(env: Env) -> dict[str, npt.NDArray[Any]]:
    return {name: np.array(array) for name, array in observed(env).items()}


def a_success_is_reported_once(subject: Subject) -> None:
    """The success that an expert reaches comes with its sub-step, ends the episode and counts once, at
    every place in a chunk."""
    env = subject.make()
    start = subject.unsolved(env, "held_out")
    actions = _to_success(subject, env, start)
    for shift in range(CHUNK):
        padded = np.concatenate([subject.still(shift), actions])
        outcomes = _single(env, start, padded)
        if not outcomes[-1][3]:
            continue  # waiting first may spoil what the expert did
        results = _chunked(env, start, padded)
        _check_success(outcomes, results)


def _to_success(subject: Subject, env: Env, start: Start) -> npt.NDArray[np.float32]:
    """The expert's actions [n, A] up to its first success, which must be the last one where it ends the
    episode."""
    expert = expert_of(subject, env)
    env.reset(start, 0)
    actions: list[npt.NDArray[np.float32]] = []
    first = 0
    while len(actions) < _LONGEST and not (first and len(actions) >= first + _LOOKED_ON):
        actions.append(expert.act())  # type: ignore[attr-defined]
        step = stepped(env, actions[-1])
        again = first and step.success and step.terminated
        require(not again, f"a success was reported at sub-step {first} and again at the end, {len(actions)}")
        if step.success and not first:
            first = len(actions)
        if step.terminated or step.truncated:
            break
    if not first:
        raise Skipped("its expert does not solve its first held-out state")
    return np.array(actions[:first])


def _check_success(outcomes: Outcomes, results: Sequence[ChunkResult]) -> None:
    require(sum(r.success for r in results) == 1, "a success must be in one chunk, the one that reached it")
    executed = sum(r.sub_steps for r in results)
    exact = not outcomes[-1][1] or executed == len(outcomes)
    require(exact, f"{executed} sub-steps were executed to a success at sub-step {len(outcomes)}")
