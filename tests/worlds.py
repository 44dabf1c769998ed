"""Engine settings and virtual workloads for tests: small defaults, any part replaceable."""

from rlvla3.core.batcher import ORDERS
from rlvla3.core.settings import (
    BatchingSettings,
    EngineSettings,
    EvaluationSettings,
    EvaluationStart,
    HealthSettings,
    SlotSettings,
    TaskSettings,
    Topology,
    TrainingSettings,
)
from rlvla3.core.sharding import shard_sizes
from rlvla3.costs import Costs
from rlvla3.messages import Env, Member, Slot, Start
from rlvla3.runtime.virtual import Workload


def topology(simulators=2, envs=4, batches=1, slots=2, generators=1, trainers=1, together=False) -> Topology:
    """``simulators`` members of ``batches`` env batches of ``envs`` envs in ``slots`` slots."""
    made, env, slot = [], 0, 0
    names = [Member(f"simulator-{i}") for i in range(simulators)]
    for member in names:
        for stage in range(batches):
            for size in shard_sizes(envs, slots):
                ids = tuple(Env(e) for e in range(env, env + size))
                made.append(SlotSettings(slot=Slot(slot), member=member, envs=ids, stage=stage))
                env, slot = env + size, slot + 1
    return Topology(
        simulators=tuple(names),
        generators=tuple(Member(f"generator-{i}") for i in range(generators)),
        trainers=tuple(Member(f"trainer-{i}") for i in range(trainers)),
        slots=tuple(made),
        together=together,
    )


def slots_of(sizes, stages) -> tuple[SlotSettings, ...]:
    """Slots of given sizes and stages, all of one Simulator."""
    first = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(
        SlotSettings(
            slot=Slot(i),
            member=Member("simulator-0"),
            envs=tuple(Env(e) for e in range(first[i], first[i] + size)),
            stage=stages[i],
        )
        for i, size in enumerate(sizes)
    )


def batching(**changes) -> BatchingSettings:
    values = {
        "max_batch_size": 32,
        "batch_timeout_s": 0.2,
        "linger_s": 0.008,
        "order": ORDERS["arrival"],
        "lockstep": False,
        "routing": "least_loaded",
        "pins": {},
    }
    return BatchingSettings(**(values | changes))


def tasks(*weights, **changes) -> TaskSettings:
    values = {
        "sampling": "round_robin",
        "weights": weights or (1.0,),
        "order": (),
        "floor": 0.1,
        "seed": 0,
        "states": 0,
    }
    return TaskSettings(**(values | changes))


def training(**changes) -> TrainingSettings:
    values = {
        "batch": 8,
        "max_lag": 1,
        "on_stale": "wait",
        "micro_batch": 4,
        "updates": 10,
        "bootstrap": "generator",
        "checkpoint_every": 0,
        "quota": 0,
        "max_skipped": 3,
        "step_limits": (0,),
        "tasks": tasks(),
        "group_size": 1,
        "group_score": "success",
        "group_replacements": 0,
        "ordered": False,
    }
    return TrainingSettings(**(values | changes))


def evaluation(episodes=0, **changes) -> EvaluationSettings:
    starts = tuple(
        EvaluationStart(start=Start(task=0, split="held_out", state=i), step_limit=0, video="")
        for i in range(episodes)
    )
    values = {"every_versions": 0, "at_start": False, "starts": starts, "max_envs": 3}
    return EvaluationSettings(**(values | changes))


def health(**changes) -> HealthSettings:
    values = {
        "heartbeat_timeout_s": 5.0,
        "startup_timeout_s": 60.0,
        "step_timeout_s": 30.0,
        "inference_timeout_s": 30.0,
        "update_timeout_s": 600.0,
        "restarts": 100,
        "restart_window_s": 1e9,
        "start_attempts": 3,
    }
    return HealthSettings(**(values | changes))


def settings(topo=None, batch=None, train=None, evaluate=None, watch=None) -> EngineSettings:
    topo = topo or topology()
    train = train or training()
    evaluate = evaluate or evaluation()
    envs = sum(len(slot.envs) for slot in topo.slots)
    rows = train.batch * (train.max_lag + 1) + envs + (evaluate.max_envs if evaluate.starts else 0)
    return EngineSettings(
        topology=topo,
        batching=batch or batching(),
        training=train,
        evaluation=evaluate,
        health=watch or health(),
        rows=rows,
    )


def costs(**changes) -> Costs:
    values = {
        "sub_step_s": 0.005,
        "sub_step_cv": 1.0,
        "inference_s": 0.02,
        "inference_per_sample_s": 0.001,
        "train_per_chunk_s": 0.0023,
    }
    return Costs(**(values | changes))


def workload(**changes) -> Workload:
    values = {
        "chunk": 1,
        "max_chunks": 10,
        "episode_chunks": lambda task, episode: 10**9,
        "success": lambda task, episode: True,
        "lanes": 32,
        "streaming": False,
    }
    return Workload(**(values | changes))
