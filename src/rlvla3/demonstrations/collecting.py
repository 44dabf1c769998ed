"""Demonstrations from scripted experts.

The expert is slowed down on purpose (like a person at a teleoperation device), so that
imitation gives a policy that solves the tasks but has speed to gain by reinforcement. Each
episode draws a speed from a range; the label of a sub-step is the expert's clipped
action times that speed; what is executed is the label plus noise, so that the labels show how to
recover. Every ``stride``-th observation is stored with the labels of the C sub-steps from there.

Past the end of an episode the last label is repeated: episodes end at success, in the middle of a
motion, and a policy that was taught to stop there would stop short. ``valid`` says which
sub-steps are labels of the expert, for losses that want to leave the others out.

Nothing here imports torch: worker processes are cheap to start.
"""

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.demonstrations.dataset import FORMAT, Dataset
from rlvla3.elsewhere import adapter_class
from rlvla3.errors import UserError
from rlvla3.lifetime import begin_worker
from rlvla3.messages import Start
from rlvla3.plugins import guarded

_RETRIES = 4
_OWN_LIMIT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is demonstrated, and how. Plain values: worker processes are given it.

    Raises:
        UserError: a value out of range, or tasks that the simulator does not have.
    """

    kind: str
    """Simulator: a built-in name or ``module:attribute``."""
    settings: Mapping[str, Any]
    """The simulator's settings as plain values."""
    tasks: tuple[int, ...]
    """Task indices."""
    per_task: int
    """Successful episodes of each task."""
    speed: tuple[float, float]
    """Lowest and highest factor on the expert's actions, within (0, 1]."""
    noise: float
    """Standard deviation of what is added to executed actions (clipped to [-1, 1])."""
    stride: int
    """Every so-manieth sub-step's observation is stored."""
    chunk: int
    """C."""
    seed: int
    """Of speeds and noise."""
    python: str = ""
    """Interpreter of the Python environment that demonstrates; empty: this one. The episodes do not depend
    on where it lies."""

    def __post_init__(self) -> None:
        low, high = self.speed
        rules = (
            (self.per_task >= 1, f"per_task must be 1 or more; it is {self.per_task}"),
            (0 < low <= high <= 1, f"speed must satisfy 0 < low <= high <= 1; it is {low}, {high}"),
            (self.noise >= 0, f"noise must be 0 or more; it is {self.noise}"),
            (self.stride >= 1, f"stride must be 1 or more; it is {self.stride}"),
            (self.chunk >= 1, f"chunk must be 1 or more; it is {self.chunk}"),
        )
        for holds, message in rules:
            if not holds:
                raise UserError(f"imitation.demonstrations: {message}")
        count = len(self.simulator().spec.tasks)
        if not self.tasks or not all(0 <= task < count for task in self.tasks):
            raise UserError(f"tasks must be among 0…{count - 1}; they are {list(self.tasks)}")

    def simulator(self) -> Any:
        """The simulator, made from its settings."""
        cls = adapter_class(self.kind, self.python)
        return cls(cls.Settings.model_validate(dict(self.settings)))

    def header(self) -> dict[str, Any]:
        """All of a data set's header that is known before anything is collected."""
        spec = self.simulator().spec
        return {
            "format": FORMAT,
            "tasks": list(spec.tasks),
            "fingerprint": dict(spec.fingerprint),
            "plan": {name: value for name, value in asdict(self).items() if name != "python"},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One successful episode, as samples."""

    task: int
    length: int
    failures: int
    observation: dict[str, npt.NDArray[Any]]
    actions: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


Job = tuple[Plan, int, int]
"""A plan, a task and the episode's first initial state."""


def collect(plan: Plan, workers: int) -> Dataset:
    """Demonstrate ``per_task`` successful episodes of each task, on ``workers`` processes (0: this one).

    Episode e of a task starts from initial state e of the split ``demonstration``; if it fails,
    from state e + per_task, e + 2·per_task, … (five tries). Everything about an episode is seeded
    by (seed, task, state), so the result does not depend on ``workers``.

    Raises:
        UserError: no expert, an expert that fails five times in a row, or a worker that died.
    """
    header = plan.header()
    tasks = sorted(set(plan.tasks))
    episodes = _run([(plan, task, first) for task in tasks for first in range(plan.per_task)], workers)
    failures = {header["tasks"][task]: sum(e.failures for e in episodes if e.task == task) for task in tasks}
    return _join(episodes, {**header, "failures": failures})


def differing(dataset: Dataset, plan: Plan) -> list[str]:
    """What ``collect`` would make otherwise by this plan than this data set was made."""
    wanted, stored = (json.loads(json.dumps(dict(each))) for each in (plan.header(), dataset.header))
    pairs = {name: (stored.get(name), value) for name, value in wanted.items() if name != "plan"}
    pairs |= {name: (stored["plan"].get(name), value) for name, value in wanted["plan"].items()}
    return [name for name, (there, here) in pairs.items() if there != here]


def _run(jobs: Sequence[Job], workers: int) -> list[Episode]:
    if jobs[0][0].python:
        from rlvla3.demonstrations.elsewhere import demonstrate_elsewhere

        return demonstrate_elsewhere(_parts(jobs, max(workers, 1)), max(workers, 1))
    if workers == 0:
        try:
            return [_demonstrate(job) for job in jobs]
        finally:
            _close_made()
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=begin_worker,
        initargs=(os.getpid(),),
    ) as pool:
        try:
            with _interrupts_wait():
                # Not ``pool.map``: it cancels what is left, and a pool that breaks trips over that.
                futures = [pool.submit(demonstrate_all, part) for part in _parts(jobs, workers)]
            return [episode for future in futures for episode in future.result()]
        except BrokenProcessPool as error:
            raise UserError(
                "demonstrations: a worker process died (out of memory, or a crash of the simulator); "
                "set imitation.demonstrations.workers lower"
            ) from error
        except BaseException:
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()  # in the middle of its episodes
            raise


def _parts(jobs: Sequence[Job], workers: int) -> list[Sequence[Job]]:
    """Runs of neighbouring episodes, which share a task, so that each worker loads few models."""
    share = max(1, min(8, len(jobs) // (2 * workers)))
    return [jobs[first : first + share] for first in range(0, len(jobs), share)]


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back: a process that starts meanwhile does not see it before it can ignore it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


_made: dict[str, tuple[Any, Any]] = {}


def _env_and_expert(plan: Plan) -> tuple[Any, Any]:
    """This process's env, built at the first episode."""
    key = json.dumps([plan.kind, dict(plan.settings)], sort_keys=True)
    if key not in _made:
        simulator = plan.simulator()
        env = simulator.make()
        try:
            _made[key] = (env, simulator.expert(env))
        except LookupError as error:
            raise UserError(f"demonstrations: {error}") from error
    return _made[key]


def _close_made() -> None:
    while _made:
        _made.popitem()[1][0].close()


def demonstrate_all(jobs: Sequence[Job]) -> list[Episode]:
    """Do them in this process, one after the other; its env stays for the next ones.

    Raises:
        UserError: no expert, or an expert that fails five times in a row.
    """
    return [_demonstrate(job) for job in jobs]


def _demonstrate(job: Job) -> Episode:
    with guarded("simulator.kind", job[0].kind):
        return _demonstrated(job)


def _demonstrated(job: Job) -> Episode:
    plan, task, first = job
    env, expert = _env_and_expert(plan)
    for failures in range(_RETRIES + 1):
        start = Start(task=task, split="demonstration", state=first + failures * plan.per_task)
        episode = _try(plan, env, expert, start, failures)
        if episode is not None:
            return episode
    raise UserError(
        f"demonstrations: the expert failed task {task} from {_RETRIES + 1} initial states in a row "
        f"(the last: state {start.state}); raise imitation.demonstrations.speed, "
        "lower imitation.demonstrations.noise or choose another task"
    )


def _try(plan: Plan, env: Any, expert: Any, start: Start, failures: int) -> Episode | None:
    random = np.random.default_rng([plan.seed, start.task, start.state])
    speed = random.uniform(*plan.speed)
    env.reset(start, _OWN_LIMIT)
    frames: list[Mapping[str, npt.NDArray[Any]]] = []
    labels: list[npt.NDArray[np.float32]] = []
    while True:
        if len(labels) % plan.stride == 0:
            frames.append(env.observe())
        label = np.float32(speed) * expert.act()
        labels.append(label)
        noise = random.normal(0.0, plan.noise, label.shape).astype(np.float32)
        step = env.step(np.clip(label + noise, -1.0, 1.0))
        if step.success:
            return _pack(plan, start.task, failures, frames, np.stack(labels))
        if step.terminated or step.truncated:
            return None


def _pack(
    plan: Plan,
    task: int,
    failures: int,
    frames: Sequence[Mapping[str, npt.NDArray[Any]]],
    labels: npt.NDArray[np.float32],
) -> Episode:
    at = np.arange(len(frames))[:, None] * plan.stride + np.arange(plan.chunk)
    return Episode(
        task=task,
        length=len(labels),
        failures=failures,
        observation={name: np.stack([frame[name] for frame in frames]) for name in frames[0]},
        actions=labels[np.minimum(at, len(labels) - 1)],
        valid=at < len(labels),
    )


def _join(episodes: Sequence[Episode], header: Mapping[str, Any]) -> Dataset:
    counts = [len(episode.actions) for episode in episodes]
    names = episodes[0].observation
    return Dataset(
        observation={name: np.concatenate([e.observation[name] for e in episodes]) for name in names},
        actions=np.concatenate([e.actions for e in episodes]),
        valid=np.concatenate([e.valid for e in episodes]),
        task=np.repeat(np.array([e.task for e in episodes], np.int64), counts),
        episode=np.repeat(np.arange(len(episodes), dtype=np.int64), counts),
        lengths=np.array([e.length for e in episodes], np.int64),
        episode_task=np.array([e.task for e in episodes], np.int64),
        header=header,
    )
