"""A one-step problem on a slab, without a simulator: reward is high near a target action."""

import numpy as np

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


def build(seed=0, settings=SMALL):
    return Tiny(settings, INTERFACE).build("cpu", seed)


def observations(count, seed=0):
    random = np.random.default_rng(seed)
    return {
        "image": random.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8),
        "state": random.standard_normal((count, 3)).astype(np.float32),
        "task": random.integers(0, 2, count),
        "elapsed": random.random(count).astype(np.float32),
    }


def keys(count, first=0):
    return tuple(NoiseKey(seed=7, episode=first + i, chunk=i % 3) for i in range(count))


def rollout(model, rows, chunks, version=0, first=0, reward=None):
    """A slab of ``rows`` trajectories and their metadata; rewards by ``reward(action)``."""
    count = rows * (chunks + 1)
    flat = observations(count, seed=first)
    slab = {f"observation.{n}": a.reshape(rows, chunks + 1, *a.shape[1:]) for n, a in flat.items()}
    episode = np.repeat(np.arange(first, first + rows), chunks)
    chunk = np.tile(np.arange(chunks), rows)
    inputs = {n: a.reshape(rows, chunks + 1, *a.shape[1:])[:, :chunks].reshape(rows * chunks, *a.shape[1:])
              for n, a in flat.items()}  # fmt: skip
    record = model.act(
        inputs, tuple(NoiseKey(seed=1, episode=int(e), chunk=int(c)) for e, c in zip(episode, chunk, strict=True)), True
    )  # fmt: skip
    slab |= {f"record.{n}": a.reshape(rows, chunks, *a.shape[1:]) for n, a in record.items()}
    action = slab["record.action"]
    score = reward(action) if reward else np.tanh(action.sum((2, 3)))
    slab["reward"] = np.repeat(score[..., None] / CHUNK, CHUNK, axis=2).astype(np.float32)
    slab["sub_steps"] = np.full((rows, chunks), CHUNK, np.int32)
    slab["version"] = np.full((rows, chunks), version, np.int64)
    slab["bootstrap_value"] = np.full(rows, np.nan, np.float32)
    slab["episode"] = np.arange(first, first + rows)
    trajectories = [
        Trajectory(
            row=Row(row),
            episode=Episode(first + row),
            start=Start(task=0, split="train", state=row),
            first_chunk=0,
            chunks=chunks,
            sub_steps=chunks * CHUNK,
            end="terminated",
            success=bool(score[row, -1] > 0),
            total_reward=float(score[row].sum()),
            oldest_version=Version(version),
        )
        for row in range(rows)
    ]
    return trajectories, slab
