"""A one-step problem on a slab, without a simulator: reward by the action alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.messages import Episode, FieldSpec, Row, Start, Trajectory, Version
from rlvla3.policies.api import NoiseKey, PolicyInterface
from rlvla3.policies.tiny import Tiny, TinySettings

CHUNK, ACTION = 2, 2
INTERFACE = PolicyInterface(
    observation=(
        FieldSpec(name="image", shape=(16, 16, 3), dtype="uint8"),
        FieldSpec(name="state", shape=(3,), dtype="float32"),
    ),
    instructions=("press the button", "open the quux"),
    action_dim=ACTION,
    chunk=CHUNK,
)
SMALL = TinySettings(width=32, expert_width=32, layers=2, heads=2)
Arrays = dict[str, npt.NDArray[Any]]
Reward = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


def build(seed: int = 0, settings: TinySettings = SMALL, interface: PolicyInterface = INTERFACE) -> Any:
    """A small network."""
    return Tiny(settings, interface).build("cpu", seed)


def observations(count: int, seed: int = 0) -> Arrays:
    """Random raw observations of ``INTERFACE``."""
    random = np.random.default_rng(seed)
    return {
        "image": random.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8),
        "state": random.standard_normal((count, 3)).astype(np.float32),
        "task": random.integers(0, 2, count),
        "elapsed": random.random(count).astype(np.float32),
    }


def keys(count: int) -> tuple[NoiseKey, ...]:
    """Different noise keys."""
    return tuple(NoiseKey(seed=7, episode=i // 3, chunk=i % 3) for i in range(count))


def take(arrays: Arrays, index: Any) -> Arrays:
    """Every array at ``index``."""
    return {name: array[index] for name, array in arrays.items()}


def near_half(action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Highest where every number of the chunk is 0.5."""
    distance: npt.NDArray[np.float32] = -np.square(action - 0.5).mean((2, 3))
    return distance


def rollout(
    model: Any,
    rows: int,
    chunks: int,
    *,
    version: int = 0,
    first: int = 0,
    reward: Reward = near_half,
    group: int = 1,
) -> tuple[list[Trajectory], Arrays]:
    """A slab with ``rows`` terminated trajectories of ``chunks`` chunks, and their metadata; ``group`` of
    them after each other belong together."""
    observation = {
        name: array.reshape(rows, chunks + 1, *array.shape[1:])
        for name, array in observations(rows * (chunks + 1), seed=first).items()
    }
    for name in observation:  # members of a group begin alike
        observation[name][:, 0] = observation[name][np.arange(rows) // group * group, 0]
    inputs = {name: array[:, :chunks].reshape(-1, *array.shape[2:]) for name, array in observation.items()}
    noise = tuple(
        NoiseKey(seed=1, episode=first + row, chunk=chunk) for row in range(rows) for chunk in range(chunks)
    )
    record = model.act(inputs, noise, True)
    slab: Arrays = {f"observation.{name}": array for name, array in observation.items()}
    slab |= {
        f"record.{name}": array.reshape(rows, chunks, *array.shape[1:]) for name, array in record.items()
    }
    score = reward(slab["record.action"])
    slab["reward"] = np.repeat(score[..., None] / CHUNK, CHUNK, axis=2).astype(np.float32)
    slab["sub_steps"] = np.full((rows, chunks), CHUNK, np.int32)
    slab["version"] = np.full((rows, chunks), version, np.int64)
    slab["bootstrap_value"] = np.full(rows, np.nan, np.float32)
    slab["episode"] = np.arange(first, first + rows)
    trajectories = [
        Trajectory(
            row=Row(row),
            episode=Episode(first + row),
            group=first + row // group,
            start=Start(task=0, split="train", state=row // group),
            first_chunk=0,
            chunks=chunks,
            sub_steps=chunks * CHUNK,
            end="terminated",
            success=bool(score[row, -1] > -0.1),
            solved_at_reset=False,
            total_reward=float(score[row].sum()),
            oldest_version=Version(version),
        )
        for row in range(rows)
    ]
    return trajectories, slab
