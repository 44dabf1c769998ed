"""Demonstrations from scripted experts, and how they are kept.

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
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.lifetime import begin_worker
from rlvla3.messages import Start
from rlvla3.simulators.registry import simulator_class

_FORMAT = 1
_RETRIES = 4
_OWN_LIMIT = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """M stored frames of E successful episodes, ordered by task, then episode, then time."""

    observation: Mapping[str, npt.NDArray[Any]]
    """Raw observation fields by name, each [M, ...]."""
    actions: npt.NDArray[np.float32]
    """[M, C, A] labels in env units, in [-1, 1]."""
    valid: npt.NDArray[np.bool_]
    """[M, C]: false where the episode was over and the last label is repeated."""
    task: npt.NDArray[np.int64]
    """[M]: task index of each frame."""
    episode: npt.NDArray[np.int64]
    """[M]: which of the E episodes each frame is from."""
    lengths: npt.NDArray[np.int64]
    """[E]: sub-steps to success of each episode."""
    episode_task: npt.NDArray[np.int64]
    """[E]: task index of each episode."""
    header: Mapping[str, Any]
    """How it was made: simulator, settings, tasks, fingerprint, recipe, ``failures`` for each task
    that was demonstrated."""

    def success_steps(self, quantile: float) -> dict[str, int]:
        """For each task the ``quantile`` of its episodes' sub-steps to success, rounded up (step budgets)."""
        tasks = self.header["tasks"]
        return {
            name: math.ceil(np.quantile(self.lengths[self.episode_task == index], quantile))
            for index, name in enumerate(tasks)
            if (self.episode_task == index).any()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """What a worker needs; picklable."""

    kind: str
    settings: Mapping[str, Any]
    speed_range: tuple[float, float]
    noise: float
    stride: int
    chunk: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    task: int
    length: int
    failures: int
    observation: dict[str, npt.NDArray[Any]]
    actions: npt.NDArray[np.float32]
    valid: npt.NDArray[np.bool_]


def collect(
    simulator_kind: str,
    settings: Mapping[str, Any],
    tasks: Sequence[int],
    per_task: int,
    speed_range: tuple[float, float],
    noise: float,
    stride: int,
    chunk: int,
    seed: int,
    workers: int,
) -> Dataset:
    """Demonstrate ``per_task`` successful episodes of each task.

    Episode e of a task starts from initial state e of the split ``demonstration``; if it fails,
    from state e + per_task, e + 2·per_task, … (five tries). Everything about an episode is seeded
    by (seed, task, state), so the result does not depend on ``workers``.

    Args:
        simulator_kind: built-in name or ``module:attribute``.
        settings: the simulator's settings as plain values.
        tasks: task indices.
        per_task: successful episodes of each task.
        speed_range: lowest and highest factor on the expert's actions, within (0, 1].
        noise: standard deviation of what is added to executed actions (clipped to [-1, 1]).
        stride: every ``stride``-th sub-step's observation is stored.
        chunk: C.
        seed: of speeds and noise.
        workers: processes; 0 works in the calling process.

    Raises:
        UserError: a bad argument, no expert, an expert that fails five times in a row, or a
            worker that died.
    """
    _check(per_task, speed_range, noise, stride, chunk, workers)
    recipe, header = _planned(
        simulator_kind, settings, tasks, per_task, speed_range, noise, stride, chunk, seed
    )
    jobs = [(recipe, task, first, per_task) for task in header["demonstrated"] for first in range(per_task)]
    episodes = _run(jobs, workers)
    failures = {
        header["tasks"][task]: sum(e.failures for e in episodes if e.task == task)
        for task in header["demonstrated"]
    }
    return _join(episodes, {**header, "failures": failures})


def differing(
    dataset: Dataset,
    simulator_kind: str,
    settings: Mapping[str, Any],
    tasks: Sequence[int],
    per_task: int,
    speed_range: tuple[float, float],
    noise: float,
    stride: int,
    chunk: int,
    seed: int,
) -> list[str]:
    """What ``collect`` with these arguments would make otherwise than this data set was made.

    Raises:
        UserError: tasks that the simulator does not have.
    """
    _, header = _planned(simulator_kind, settings, tasks, per_task, speed_range, noise, stride, chunk, seed)
    wanted, stored = (json.loads(json.dumps(dict(each))) for each in (header, dataset.header))
    pairs = {name: (stored.get(name), value) for name, value in wanted.items() if name != "recipe"}
    pairs |= {name: (stored["recipe"].get(name), value) for name, value in wanted["recipe"].items()}
    return [name for name, (there, here) in pairs.items() if there != here]


def _planned(
    simulator_kind: str,
    settings: Mapping[str, Any],
    tasks: Sequence[int],
    per_task: int,
    speed_range: tuple[float, float],
    noise: float,
    stride: int,
    chunk: int,
    seed: int,
) -> tuple[_Recipe, dict[str, Any]]:
    """The recipe, and all of the header that is known before anything is collected."""
    cls = simulator_class(simulator_kind)
    parsed = cls.Settings.model_validate(dict(settings))
    spec = cls(parsed).spec
    wrong = [task for task in tasks if not 0 <= task < len(spec.tasks)]
    if wrong or not tasks:
        raise UserError(f"tasks must be among 0…{len(spec.tasks) - 1}; they are {list(tasks)}")
    recipe = _Recipe(
        kind=simulator_kind,
        settings=parsed.model_dump(mode="json"),
        speed_range=(float(speed_range[0]), float(speed_range[1])),
        noise=noise,
        stride=stride,
        chunk=chunk,
        seed=seed,
    )
    return recipe, {
        "format": _FORMAT,
        "tasks": list(spec.tasks),
        "fingerprint": dict(spec.fingerprint),
        "recipe": asdict(recipe),
        "per_task": per_task,
        "demonstrated": sorted(set(tasks)),
    }


def _check(
    per_task: int, speed_range: tuple[float, float], noise: float, stride: int, chunk: int, workers: int
) -> None:
    low, high = speed_range
    rules = (
        (per_task >= 1, f"per_task must be 1 or more; it is {per_task}"),
        (0 < low <= high <= 1, f"speed must satisfy 0 < low <= high <= 1; it is {low}, {high}"),
        (noise >= 0, f"noise must be 0 or more; it is {noise}"),
        (stride >= 1, f"stride must be 1 or more; it is {stride}"),
        (chunk >= 1, f"chunk must be 1 or more; it is {chunk}"),
        (workers >= 0, f"workers must be 0 or more; it is {workers}"),
    )
    for holds, message in rules:
        if not holds:
            raise UserError(f"imitation.demonstrations: {message}")


def _run(jobs: Sequence[tuple[_Recipe, int, int, int]], workers: int) -> list[_Episode]:
    if workers == 0:
        try:
            return [_demonstrate(job) for job in jobs]
        finally:
            _close_made()
    # Runs of neighbouring episodes share a task, so each worker loads few models.
    share = max(1, min(8, len(jobs) // (2 * workers)))
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=begin_worker,
        initargs=(os.getpid(),),
    ) as pool:
        try:
            with _interrupts_wait():
                parts = [jobs[first : first + share] for first in range(0, len(jobs), share)]
                # Not ``pool.map``: it cancels what is left, and a pool that breaks trips over that.
                futures = [pool.submit(_demonstrate_all, part) for part in parts]
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


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back: a process that starts meanwhile does not see it before it can ignore it."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


_made: dict[str, tuple[Any, Any]] = {}


def _env_and_expert(recipe: _Recipe) -> tuple[Any, Any]:
    """This process's env, built at the first episode."""
    key = json.dumps([recipe.kind, recipe.settings], sort_keys=True)
    if key not in _made:
        cls = simulator_class(recipe.kind)
        simulator = cls(cls.Settings.model_validate(recipe.settings))
        env = simulator.make()
        try:
            _made[key] = (env, simulator.expert(env))
        except LookupError as error:
            raise UserError(f"demonstrations: {error}") from error
    return _made[key]


def _close_made() -> None:
    while _made:
        _made.popitem()[1][0].close()


def _demonstrate_all(jobs: Sequence[tuple[_Recipe, int, int, int]]) -> list[_Episode]:
    return [_demonstrate(job) for job in jobs]


def _demonstrate(job: tuple[_Recipe, int, int, int]) -> _Episode:
    recipe, task, first, per_task = job
    env, expert = _env_and_expert(recipe)
    for failures in range(_RETRIES + 1):
        start = Start(task=task, split="demonstration", state=first + failures * per_task)
        episode = _try(recipe, env, expert, start, failures)
        if episode is not None:
            return episode
    raise UserError(
        f"demonstrations: the expert failed task {task} from {_RETRIES + 1} initial states in a row "
        f"(the last: state {start.state}); raise imitation.demonstrations.speed, "
        "lower imitation.demonstrations.noise or choose another task"
    )


def _try(recipe: _Recipe, env: Any, expert: Any, start: Start, failures: int) -> _Episode | None:
    random = np.random.default_rng([recipe.seed, start.task, start.state])
    speed = random.uniform(*recipe.speed_range)
    env.reset(start, _OWN_LIMIT)
    frames: list[Mapping[str, npt.NDArray[Any]]] = []
    labels: list[npt.NDArray[np.float32]] = []
    while True:
        if len(labels) % recipe.stride == 0:
            frames.append(env.observe())
        label = np.float32(speed) * expert.act()
        labels.append(label)
        noise = random.normal(0.0, recipe.noise, label.shape).astype(np.float32)
        step = env.step(np.clip(label + noise, -1.0, 1.0))
        if step.success:
            return _pack(recipe, start.task, failures, frames, np.stack(labels))
        if step.terminated or step.truncated:
            return None


def _pack(
    recipe: _Recipe,
    task: int,
    failures: int,
    frames: Sequence[Mapping[str, npt.NDArray[Any]]],
    labels: npt.NDArray[np.float32],
) -> _Episode:
    at = np.arange(len(frames))[:, None] * recipe.stride + np.arange(recipe.chunk)
    return _Episode(
        task=task,
        length=len(labels),
        failures=failures,
        observation={name: np.stack([frame[name] for frame in frames]) for name in frames[0]},
        actions=labels[np.minimum(at, len(labels) - 1)],
        valid=at < len(labels),
    )


def _join(episodes: Sequence[_Episode], header: Mapping[str, Any]) -> Dataset:
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


# --- files -----------------------------------------------------------------------------------

_OWN_ARRAYS = ("actions", "valid", "task", "episode", "lengths", "episode_task")


def save(dataset: Dataset, path: Path) -> None:
    """Write one safetensors file whose metadata is the JSON header; whole or not at all.

    Raises:
        UserError: it cannot be written, or the disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {f"observation.{name}": array for name, array in dataset.observation.items()}
    arrays |= {name: getattr(dataset, name) for name in _OWN_ARRAYS}
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            partial,
            metadata={"header": json.dumps(dataset.header, sort_keys=True)},
        )
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot be written ({error}); free space or choose another folder"
        ) from error


def load(path: Path, fingerprint: Mapping[str, Any] | None = None) -> Dataset:
    """Read a file of ``save``.

    Args:
        path: the file.
        fingerprint: of the simulator that the data will be used with; compared if given.

    Raises:
        UserError: no such file, not a demonstration file, or made with another camera, rendering
            or version than ``fingerprint`` (the differing entries are named).
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})["header"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            own = {name: arrays.pop(name) for name in _OWN_ARRAYS}
    except FileNotFoundError as error:
        raise UserError(f"demonstrations {path}: no such file") from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"demonstrations {path}: not a demonstration file ({error})") from error
    if header["format"] != _FORMAT:
        raise UserError(f"demonstrations {path}: format {header['format']}, this version reads {_FORMAT}")
    _same_fingerprint(path, header["fingerprint"], fingerprint)
    prefix = "observation."
    observation = {name.removeprefix(prefix): array for name, array in arrays.items()}
    return Dataset(observation=observation, header=header, **own)


def _same_fingerprint(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> None:
    if wanted is None:
        return
    differing = [
        f"{key} {stored.get(key)!r} there, {wanted.get(key)!r} here"
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key)
    ]
    if differing:
        raise UserError(
            f"demonstrations {path}: made with another simulator set-up: {'; '.join(differing)}; "
            "collect them again or use the same settings"
        )
