"""The engine's settings: plain frozen values, checked where they are built (``config``)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from rlvla3.messages import Env, Member, Slot, Start


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """One shard of an env batch."""

    slot: Slot
    member: Member
    envs: tuple[Env, ...]
    stage: int
    """Index of its env batch within the Simulator; lockstep serves stages cyclically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Who exists. ``trainers`` is empty for a pure evaluation; the first one writes what is written."""

    simulators: tuple[Member, ...]
    generators: tuple[Member, ...]
    trainers: tuple[Member, ...]
    slots: tuple[SlotSettings, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """When waiting requests become an inference batch."""

    max_batch_size: int
    """Samples (active envs) in a batch, never exceeded."""
    batch_timeout_s: float
    """No request waits longer while a Generator could start."""
    linger_s: float
    """How long a free Generator lets the rest of the previous batch come back."""
    order: Callable[[Any], Any]
    """Sort key of a ``batcher.Pending``; smallest first."""
    lockstep: bool
    """Flush a stage only when all its slots are there."""
    routing: Literal["pinned", "least_loaded", "any"]
    pins: dict[Slot, int]
    """Slot -> Generator index, for ``pinned``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Which tasks the training episodes are of, and where they start."""

    sampling: Literal["round_robin", "uniform", "success_weighted", "list"]
    """The law, ``sampling.LAWS``."""
    weights: tuple[float, ...]
    """Share of the starts of each task, before the law changes it."""
    order: tuple[int, ...]
    """Tasks one after the other, again and again (``list``)."""
    floor: float
    """Least part of its weight that a task keeps (``success_weighted``)."""
    seed: int
    """Of random draws (``uniform``)."""
    states: int
    """Training states used of each task, cyclically; 0: a new one for each start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """How finished trajectories become versions."""

    batch: int
    """B: trajectories of one version; a multiple of ``group_size``."""
    max_lag: int
    """L: bound of (Trainer version at use - behaviour version)."""
    on_stale: Literal["wait", "drop"]
    micro_batch: int
    """Trajectories sent to a Trainer member together; a multiple of ``group_size``."""
    updates: int
    """Versions to train; the run ends there."""
    bootstrap: Literal["generator", "trainer"]
    """Who computes the value of a truncated trajectory's last observation."""
    checkpoint_every: int
    """Versions between checkpoints; 0: only at the end."""
    quota: int
    """Trajectories each env runs for one version (``deterministic``); 0: no quota."""
    max_skipped: int
    """Skipped updates in a row after which the run stops."""
    step_limits: tuple[int, ...]
    """Sub-step limit of each task; 0: the simulator's own."""
    tasks: TaskSettings
    group_size: int
    """G: episodes that share their start and are trained together; 1: no groups."""
    group_score: Literal["success", "return"]
    """What the members of a group are compared by."""
    group_replacements: int
    """Groups with equal scores that are replaced by fresh ones for each version; further ones are trained."""
    ordered: bool
    """Send nothing of an update before all of it is there, then in the order of its episodes."""

    @property
    def units(self) -> int:
        """Groups of one version; trajectories where there are no groups."""
        return self.batch // self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStart:
    """One evaluation episode."""

    start: Start
    step_limit: int
    video: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """Evaluation episodes with a pinned version, among the rollouts."""

    every_versions: int
    """0: never during training."""
    at_start: bool
    starts: tuple[EvaluationStart, ...]
    max_envs: int
    """Envs that evaluate at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Deadlines after which a member counts as hanging, and how often it is replaced."""

    heartbeat_timeout_s: float
    startup_timeout_s: float
    step_timeout_s: float
    """From a slot's actions (or start) to its next observation."""
    inference_timeout_s: float
    update_timeout_s: float
    restarts: int
    """Replacements of each member within ``restart_window_s``."""
    restart_window_s: float
    """After so long a replacement no longer counts."""
    start_attempts: int
    """Times an episode start is tried before it is dropped."""
    recycle_after: int = 0
    """Episodes that a Simulator's process begins before a fresh one takes its place; 0: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything the engine needs to know."""

    topology: Topology
    batching: BatchingSettings
    training: TrainingSettings
    evaluation: EvaluationSettings
    health: HealthSettings
    rows: int
    """Rows of the trajectory slab."""
    weight_buffers: int = field(default=3)
    """Buffers of the rollout weights: newest, being read, being written."""
