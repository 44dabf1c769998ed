"""How long a policy's network takes, by batch size: prefix, one denoise step, a sample, forward and backward.

The network gets what LIBERO would give it (two cameras, proprioception, one instruction); torch runs with the
threads that it finds, one for each process unless ``OMP_NUM_THREADS`` says more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.metrics import Row
from rlvla3.policies.api import NoiseKey, Policy, PolicyInterface
from rlvla3.policies.registry import policy_class
from rlvla3.transforms.meaning import Camera, Gripper, Meaning, Numbers, Rotation

BATCHES = (1, 8, 32)
LEAST_S, LEAST_RUNS = 1.0, 3
"""Seconds and runs of each figure, at least."""
STATE, ACTION, CHUNK = 8, 7, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A policy with its settings."""

    name: str
    kind: str
    options: Mapping[str, Any]
    side: int = 64
    """Pixels of a picture's side."""


CASES = (
    Case(name="tiny", kind="tiny", options={}),
    Case(name="tiny-3.5M", kind="tiny", options={"size": "3.5M"}),
    Case(name="tiny-tokens", kind="tiny", options={"head": "tokens", "normalisation": "quantile"}),
    Case(name="pi0-tiny", kind="pi0", options={"size": "tiny"}),
    Case(name="pi05-tiny", kind="pi05", options={"size": "tiny"}),
    Case(name="pi0", kind="pi0", options={}, side=224),
    Case(name="pi05", kind="pi05", options={}, side=224),
)
"""The full sizes are measured only where they are asked for by name."""
LARGE = ("pi0", "pi05")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one batch size; medians."""

    batch: int
    prefix_s: float
    """0 where the policy has none of its own."""
    step_s: float
    """One denoise step; 0 where nothing is denoised."""
    sample_s: float
    """A whole inference batch: prefix, all steps, records."""
    update_s: float
    """Log-probs and values of the batch, and their gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One case."""

    case: Case
    parameters: int
    timings: tuple[Timing, ...]

    def costs(self) -> dict[str, float]:
        """The part of the cost model that is of policies: fixed and per-sample seconds of a batch (least
        squares over the batch sizes), seconds of training on one chunk (at the largest)."""
        sizes = np.array([t.batch for t in self.timings], float)
        spent_s = np.array([t.sample_s for t in self.timings])
        each_s, fixed_s = np.polyfit(sizes, spent_s, 1) if len(sizes) > 1 else (spent_s[0] / sizes[0], 0.0)
        last = self.timings[-1]
        return {
            "inference_s": max(float(fixed_s), 0.0),
            "inference_per_sample_s": max(float(each_s), 0.0),
            "train_per_chunk_s": last.update_s / last.batch,
        }

    def rows(self) -> list[Row]:
        """All figures."""
        name = self.case.name
        rows = [Row(name=f"{name}/parameters", value=float(self.parameters), unit="")]
        for timing in self.timings:
            for what in ("prefix", "step", "sample", "update"):
                value_ms = 1000 * getattr(timing, f"{what}_s")
                rows.append(Row(name=f"{name}/batch{timing.batch}/{what}_ms", value=value_ms, unit="ms"))
        for cost, value in self.costs().items():
            rows.append(Row(name=f"{name}/costs/{cost}", value=value, unit="s"))
        return rows


def interface(side: int) -> PolicyInterface:
    """What LIBERO gives and takes."""
    cameras = [("image", "front"), ("image_2", "wrist")]
    fields = [FieldSpec(name=name, shape=(side, side, 3), dtype="uint8") for name, _ in cameras]
    return PolicyInterface(
        observation=(*fields, FieldSpec(name="proprioception", shape=(STATE,), dtype="float32")),
        instructions=("pick up the black bowl and place it on the plate",),
        action_dim=ACTION,
        chunk=CHUNK,
        meaning=Meaning(
            cameras=tuple(Camera(field=n, role=role, height=side, width=side) for n, role in cameras),
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
        ),
    )


def observations(side: int, batch: int) -> dict[str, npt.NDArray[Any]]:
    """Random ones."""
    random = np.random.default_rng(0)
    return {
        "image": random.integers(0, 256, (batch, side, side, 3), np.uint8),
        "image_2": random.integers(0, 256, (batch, side, side, 3), np.uint8),
        "proprioception": random.normal(size=(batch, STATE)).astype(np.float32),
        "task": np.zeros(batch, np.int64),
        "elapsed": np.zeros(batch, np.float32),
    }


def measure(case: Case, batches: Sequence[int] = BATCHES, device: str = "cpu") -> Figures:
    """Measure one case.

    Raises:
        UserError: a setting does not fit the policy.
    """
    import torch

    family = policy_class(case.kind)
    policy: Policy = family(family.Settings.model_validate(case.options), interface(case.side))
    model: Any = policy.build(device, 0)
    trained = {name for name, _ in model.trainable("reinforcement")}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    clock = Clock(torch.cuda.synchronize if device.startswith("cuda") else lambda: None)
    return Figures(
        case=case,
        parameters=sum(p.numel() for p in model.parameters()),
        timings=tuple(_timing(model, case.side, batch, clock) for batch in batches),
    )


class Clock:
    """Median seconds of a computation, whatever device it runs on."""

    def __init__(self, finish: Callable[[], None]) -> None:
        """``finish``: wait until the device has done everything."""
        self._finish = finish

    def __call__(self, compute: Callable[[], object]) -> float:
        """Run it until there is enough; the first run, which warms up, does not count."""
        compute()
        spent_s: list[float] = []
        while sum(spent_s) < LEAST_S or len(spent_s) < LEAST_RUNS:
            self._finish()
            began_s = time.perf_counter()
            compute()
            self._finish()
            spent_s.append(time.perf_counter() - began_s)
        return float(np.median(spent_s))


def _timing(model: Any, side: int, batch: int, clock: Clock) -> Timing:
    import torch

    given = observations(side, batch)
    keys = tuple(NoiseKey(seed=0, episode=i, chunk=0) for i in range(batch))
    record = model.act(given, keys, True)
    kept = model.prefix(given, record)

    def update() -> None:
        found = model.evaluate(kept, given, record)
        (found.log_prob.mean() + found.value.mean()).backward()
        model.zero_grad(set_to_none=True)

    prefix_s = step_s = 0.0
    if hasattr(model, "flow_shape"):
        with torch.inference_mode():
            context = model.context(given)
            x = torch.zeros(batch, 1, *model.flow_shape, device=model.device)
            at = torch.full((batch, 1), 0.5, device=model.device)
            prefix_s = clock(lambda: model.context(given))
            step_s = clock(lambda: model.predict(x, at, context))
    return Timing(
        batch=batch,
        prefix_s=prefix_s,
        step_s=step_s,
        sample_s=clock(lambda: model.act(given, keys, True)),
        update_s=clock(update),
    )


def chosen(only: str) -> list[Case]:
    """The cases to measure.

    Raises:
        UserError: there is none of that name.
    """
    if not only:
        return [case for case in CASES if case.name not in LARGE]
    found = [case for case in CASES if case.name == only]
    if not found:
        raise UserError(f"--only: there is no case {only!r}; known: {', '.join(c.name for c in CASES)}")
    return found
