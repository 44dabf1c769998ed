"""Checks of single episodes: what is observed, where they start, when they end."""

import numpy as np

from rlvla3.conformance.subject import (
    SPLITS,
    Skipped,
    Subject,
    fingerprint,
    observed,
    picture,
    require,
    seen,
    stepped,
)
from rlvla3.core.settings import TaskSettings
from rlvla3.core.starts import Starts
from rlvla3.messages import Env as EnvNumber
from rlvla3.messages import Start
from rlvla3.simulators.api import Env

_TRIED_STATES = 5


def observations_are_as_specified(subject: Subject) -> None:
    """``spec`` names the tasks, and the fields, shapes and types of every observation."""
    spec, env = subject.spec, subject.make()
    wrong = "; ".join(spec.faults())
    require(not wrong, f"spec: {wrong}")
    require(all(spec.instructions), f"spec.instructions must not be empty, are {spec.instructions}")
    for task in range(len(spec.tasks)):
        env.reset(Start(task=task, split="train", state=0), 0)
        _check_observation(subject, env, f"after the reset of task {task}")
    stepped(env, subject.still(1)[0])
    _check_observation(subject, env, "after a sub-step")
    frame = picture(env)
    shape = frame is None or (frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8)
    require(shape, "picture() must be uint8 [H, W, 3]")


def _check_observation(subject: Subject, env: Env, when: str) -> None:
    observation = observed(env)
    named = {field.name for field in subject.spec.observation}
    require(set(observation) == named, f"fields {when} are {sorted(observation)}, specified {sorted(named)}")
    for field in subject.spec.observation:
        array = observation[field.name]
        found = (tuple(array.shape), str(array.dtype))
        wanted = (tuple(field.shape), field.dtype)
        require(found == wanted, f"field {field.name!r} {when} is {found}, specified {wanted}")
        finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        require(finite, f"field {field.name!r} {when} is not finite")


def equal_starts_give_equal_episodes(subject: Subject) -> None:
    """Bit for bit, whatever the env, and others of its thread, did before."""
    env, other = subject.make(), subject.make()
    actions, start = (
        subject.actions(),
        Start(task=subject.last_task, split="train", state=subject.some_state),
    )
    first = fingerprint(env, start, actions)
    fingerprint(env, Start(task=0, split="held_out", state=0), -actions)
    require(fingerprint(env, start, actions) == first, "an episode depends on the one before it in its env")
    require(fingerprint(other, start, actions) == first, "an episode depends on which env runs it")
    env.reset(start, 0)
    other.reset(Start(task=0, split="held_out", state=1), 0)
    stepped(env, actions[0])
    stepped(other, -actions[0])
    beside = {name: np.array(array) for name, array in observed(env).items()}
    env.reset(start, 0)
    stepped(env, actions[0])
    for name, array in observed(env).items():
        require(np.array_equal(array, beside[name]), f"{name!r} changes when another env of the thread steps")


def starts_differ(subject: Subject) -> None:
    """Other states and other splits are other initial states, and another ``seed`` gives others again."""
    env, found = subject.make(), dict[bytes, str]()
    for split in SPLITS:
        for state in subject.states():
            _note(found, env, Start(task=0, split=split, state=state), f"{split} {state}")
    if subject.profile.seeded and subject.has_setting("seed"):
        seed = int(subject.build().Settings.model_validate(subject.options).seed)  # type: ignore[attr-defined]
        _note(found, subject.make(seed=seed + 1), Start(task=0, split="train", state=0), "another seed")


def _note(found: dict[bytes, str], env: Env, start: Start, name: str) -> None:
    env.reset(start, 0)
    key = seen(env)
    require(key not in found, f"initial state {name} equals {found.get(key)}")
    found[key] = name


def every_state_is_visited(subject: Subject) -> None:
    """Over a run's worth of starts each task visits each of its states, equally often."""
    spec, states = subject.spec, min(subject.profile.states, 20) or _TRIED_STATES
    starts = Starts(_cyclic(len(spec.tasks), states))
    env, visits = subject.make(), dict[tuple[int, bytes], int]()
    for _ in range(2 * states * len(spec.tasks)):
        start, _ = starts.next(EnvNumber(0))
        env.reset(start, 0)
        key = (start.task, seen(env))
        visits[key] = visits.get(key, 0) + 1
    wanted = states * len(spec.tasks)
    require(len(visits) == wanted, f"{wanted} initial states were started, {len(visits)} different ones seen")
    require(set(visits.values()) == {2}, "initial states are not visited equally often")


def _cyclic(tasks: int, states: int) -> TaskSettings:
    return TaskSettings(
        sampling="round_robin",
        weights=(1.0,) * tasks,
        order=(),
        floor=0.1,
        seed=0,
        states=states,
    )


def solved_starts_are_told(subject: Subject) -> None:
    """``reset`` says so where the initial state solves the task already: such a success is nobody's."""
    env = subject.make()
    for task in range(len(subject.spec.tasks)):
        for state in range(min(_TRIED_STATES, subject.profile.states or _TRIED_STATES)):
            solved = env.reset(Start(task=task, split="train", state=state), 0)
            told = solved is None or isinstance(solved, bool | np.bool_)
            require(told, f"reset must return a bool or None, returned {solved!r}")
            step = stepped(env, subject.still(1)[0])
            require(
                bool(solved) or not step.success,
                f"task {task}, state {state}: a zero action succeeds at once; reset must return True there",
            )


def actions_are_clipped(subject: Subject) -> None:
    """Actions beyond [-1, 1] act as 1 and -1."""
    env, start = subject.make(), Start(task=0, split="train", state=2 % (subject.profile.states or 3))
    most = np.ones((3, subject.spec.action_dim), np.float32)
    equal = fingerprint(env, start, np.full_like(most, 9)) == fingerprint(env, start, most)
    require(equal, "an action of 9 must act like 1: clip it to [-1, 1]")


def an_expert_succeeds(subject: Subject) -> None:
    """The scripted expert stays in [-1, 1] and solves most held-out states."""
    env = subject.make()
    expert = expert_of(subject, env)
    for task in range(len(subject.spec.tasks)):
        solved = 0
        for state in range(_TRIED_STATES):
            env.reset(Start(task=task, split="held_out", state=state), 0)
            solved += _expert_solves(expert, env)
        require(solved >= _TRIED_STATES - 1, f"the expert solves {solved} of {_TRIED_STATES} in task {task}")


def _expert_solves(expert: object, env: Env) -> bool:
    for _ in range(1000):
        action = expert.act()  # type: ignore[attr-defined]
        fits = action.dtype == np.float32 and bool(np.abs(action).max() <= 1)
        require(fits, "an expert's action must be float32 in [-1, 1]")
        step = stepped(env, action)
        if step.success or step.terminated or step.truncated:
            return bool(step.success)
    return False


def expert_of(subject: Subject, env: Env) -> object:
    """The expert of an env.

    Raises:
        Skipped: the adapter has none.
    """
    try:
        return subject.simulator.expert(env)
    except LookupError as error:
        raise Skipped(f"it has no expert: {error}") from error
