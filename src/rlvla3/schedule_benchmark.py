"""The scheduling benchmark: what a schedule gains when nothing else can differ.

32 envs, each a slot of its own, sleep log-normally (mean 5 ms, CV 1) per step; one exclusive device
infers a batch of n in 20 ms + 1 ms * n; an update takes 160 segments of 10 steps at 2.3 ms a step, on
a device of its own. The same settings are run by the virtual runtime (a prediction) and by real
processes.
"""

from dataclasses import dataclass
from typing import Literal

from rlvla3.core.batcher import ORDERS
from rlvla3.core.settings import (
    BatchingSettings,
    EngineSettings,
    EvaluationSettings,
    HealthSettings,
    SlotSettings,
    TaskSettings,
    Topology,
    TrainingSettings,
)
from rlvla3.costs import Costs
from rlvla3.messages import Command, Env, Event, Member, Slot, UpdateDone
from rlvla3.runtime.virtual import VirtualRuntime, Workload

Mode = Literal["ss", "rollout_only", "aa", "aa_2gen"]

REFERENCE_STEPS_S: dict[Mode, float] = {"ss": 217.0, "rollout_only": 495.0, "aa": 434.0, "aa_2gen": 700.0}
"""Steps/s of a perfect implementation of each schedule: simulated optima; 434 is the training bound."""

SIMULATORS = 4
ENVS = 32
BATCH = 160
CHUNKS = 10
WARM_UP_VERSIONS = 2
"""Versions before the measurement begins: the pipeline fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All that a runtime needs to run one schedule."""

    engine: EngineSettings
    costs: Costs
    workload: Workload


def schedule_settings(mode: Mode, *, updates: int = 12) -> Schedule:
    """Settings of one row of the benchmark.

    ``ss``: lockstep, then training. ``rollout_only``: updates cost nothing. ``aa``: rollouts and training
    overlap without a barrier (max_lag 1). ``aa_2gen``: ``rollout_only`` with two Generators.
    """
    two = mode == "aa_2gen"
    batching = BatchingSettings(
        max_batch_size=16 if two else ENVS,
        batch_timeout_s=0.2,
        linger_s=0.009 if two else 0.011,
        order=ORDERS["arrival"],
        lockstep=mode == "ss",
        routing="any" if two else "least_loaded",
        pins={},
    )
    max_lag = 0 if mode == "ss" else 1
    engine = EngineSettings(
        topology=_topology(generators=2 if two else 1),
        batching=batching,
        training=_training(max_lag, updates),
        evaluation=EvaluationSettings(every_versions=0, at_start=False, starts=(), max_envs=1),
        health=HealthSettings(
            heartbeat_timeout_s=30.0,
            startup_timeout_s=120.0,
            step_timeout_s=60.0,
            inference_timeout_s=60.0,
            update_timeout_s=600.0,
            restarts=0,
            restart_window_s=3600.0,
            start_attempts=1,
        ),
        rows=BATCH * (max_lag + 1) + ENVS,
    )
    costs = Costs(
        sub_step_s=0.005,
        sub_step_cv=1.0,
        inference_s=0.020,
        inference_per_sample_s=0.001,
        train_per_chunk_s=0.0023 if mode in ("ss", "aa") else 0.0,
    )
    workload = Workload(
        chunk=1,
        max_chunks=CHUNKS,
        episode_chunks=_endless,
        success=lambda task, episode: True,
        lanes=ENVS // SIMULATORS,
        streaming=False,
    )
    return Schedule(engine=engine, costs=costs, workload=workload)


def predicted_steps_s(mode: Mode, *, updates: int = 12, seed: int = 0) -> float:
    """Trained steps/s after the warm-up versions, in virtual time."""
    schedule = schedule_settings(mode, updates=updates)
    ends_s: list[float] = []

    def watch(now_s: float, event: Event, commands: list[Command]) -> None:
        if isinstance(event, UpdateDone):
            ends_s.append(now_s)

    runtime = VirtualRuntime(schedule.engine, schedule.costs, schedule.workload, seed=seed, watch=watch)
    runtime.run()
    steps = (updates - WARM_UP_VERSIONS) * BATCH * CHUNKS
    return steps / (ends_s[-1] - ends_s[WARM_UP_VERSIONS - 1])


def _endless(task: int, episode: int) -> int:
    return 1 << 60


def _topology(generators: int) -> Topology:
    simulators = tuple(Member(f"simulator-{i}") for i in range(SIMULATORS))
    per_simulator = ENVS // SIMULATORS
    return Topology(
        simulators=simulators,
        generators=tuple(Member(f"generator-{i}") for i in range(generators)),
        trainers=(Member("trainer-0"),),
        slots=tuple(
            SlotSettings(slot=Slot(i), member=simulators[i // per_simulator], envs=(Env(i),), stage=0)
            for i in range(ENVS)
        ),
    )


def _training(max_lag: int, updates: int) -> TrainingSettings:
    return TrainingSettings(
        batch=BATCH,
        max_lag=max_lag,
        on_stale="wait",
        micro_batch=BATCH,
        updates=updates,
        bootstrap="trainer",
        checkpoint_every=0,
        quota=0,
        max_skipped=3,
        step_limits=(0,),
        tasks=TaskSettings(sampling="round_robin", weights=(1.0,), order=(), floor=0.1, seed=0, states=0),
        group_size=1,
        group_score="success",
        group_replacements=0,
        ordered=False,
    )
