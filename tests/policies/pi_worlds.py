"""An interface that π0 and π0.5 fit, and observations for it."""

import numpy as np

from rlvla3.messages import FieldSpec
from rlvla3.policies.api import NoiseKey, PolicyInterface
from rlvla3.policies.pi.family import Pi0, Pi05
from rlvla3.transforms.meaning import Camera, Gripper, Meaning, Numbers, Rotation

FAMILIES = {"pi0": Pi0, "pi05": Pi05}
MEANING = Meaning(
    cameras=(
        Camera(field="image", role="front", height=40, width=48),
        Camera(field="image_2", role="wrist", height=32, width=32),
    ),
    state={
        "proprioception": (
            Numbers(name="eef_position", size=3),
            Rotation(name="eef_rotation", form="axis_angle"),
            Gripper(open=(0.04, -0.04), closed=(0.0, 0.0)),
        )
    },
    action=(
        Numbers(name="delta_position", size=3, scale=0.05, frame="base"),
        Rotation(name="delta_rotation", form="axis_angle", scale=0.5, frame="base"),
        Gripper(open=(-1.0,), closed=(1.0,)),
    ),
)
INTERFACE = PolicyInterface(
    observation=(
        FieldSpec(name="image", shape=(40, 48, 3), dtype="uint8"),
        FieldSpec(name="image_2", shape=(32, 32, 3), dtype="uint8"),
        FieldSpec(name="proprioception", shape=(8,), dtype="float32"),
    ),
    instructions=("pick up the mug", "put the black bowl on the plate next to the stove"),
    action_dim=7,
    chunk=5,
    meaning=MEANING,
)


def build(family, seed=0, interface=INTERFACE, **settings):
    """A tiny network of a family."""
    policy = FAMILIES[family]
    return policy(policy.Settings(size="tiny", **settings), interface).build("cpu", seed)


def observations(batch, seed=0):
    """Random ones of both tasks, so that prompts have different lengths."""
    stream = np.random.default_rng(seed)
    return {
        "image": stream.integers(0, 256, (batch, 40, 48, 3), np.uint8),
        "image_2": stream.integers(0, 256, (batch, 32, 32, 3), np.uint8),
        "proprioception": stream.normal(size=(batch, 8)).astype(np.float32),
        "task": np.arange(batch, dtype=np.int64) % 2,
        "elapsed": stream.uniform(size=batch).astype(np.float32),
    }


def keys(batch):
    """Of different episodes."""
    return tuple(NoiseKey(seed=1, episode=i, chunk=0) for i in range(batch))
