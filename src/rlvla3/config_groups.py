"""The groups of ``config.Config`` but those that choose a component (``config_components``)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from rlvla3.config_components import build_options
from rlvla3.core.batcher import ORDERS, Pending
from rlvla3.core.sharding import shard_sizes
from rlvla3.elsewhere import adapter_class
from rlvla3.elsewhere.interpreter import located
from rlvla3.errors import UserError
from rlvla3.learner.settings import ImitationSettings
from rlvla3.messages import Member, Request, Slot, Version
from rlvla3.plugins import USERS_FAULTS, in_words, permit, resolve
from rlvla3.settings import Settings

Mode = Literal["ss", "as", "aa_barrier", "aa"]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|mps|(cuda|xpu|npu)(:[0-9]+)?)$")]
"""``auto`` or a device of torch."""
MOST_ENVS = 1_000_000
"""Envs of a run; the controller keeps a note of each."""
_MOST_MEMBERS = 4096
_MOST_EPISODES = 100_000


class SimulatorConfig(Settings):
    """The Simulators and how their envs are sharded."""

    kind: str = "synthetic"
    """Adapter: a built-in name (see ``rlvla3 envs``) or ``module:attribute``."""
    python: str = ""
    """Interpreter of another Python environment that has the simulator, such as ``ENV/bin/python``; its
    processes run there. Empty: this environment."""
    options: Any = Field(default_factory=dict)
    """The adapter's own settings."""
    members: int = Field(default=1, ge=1, le=_MOST_MEMBERS)
    """Simulator processes."""
    envs: int = Field(default=4, ge=1, le=MOST_ENVS)
    """Envs of each env batch."""
    batches: int = Field(default=1, ge=1, le=MOST_ENVS)
    """Env batches of each process; lockstep serves them cyclically (``pipe``)."""
    slots: int | tuple[int, ...] = 1
    """Shards of each env batch: how many (as even as possible), or their sizes."""
    lanes: int = Field(default=1, ge=1, le=_MOST_MEMBERS)
    """Threads of one process, each stepping its slots in turn: 1 for simulators that compute; more for
    envs that block while they wait. Envs that say how long they wait (``WaitingEnv``) need one."""
    round_ms: float = Field(default=0.0, ge=0, le=1000)
    """Waits of envs that say how long they wait end at multiples of this: fewer wake-ups, and so less CPU
    time, for half of it as much more delay of a step; 0: each wait ends by itself."""
    chunk: int = Field(default=5, ge=1, le=1000)
    """C: actions executed for one inference."""
    render_devices: tuple[int, ...] = ()
    """CUDA numbers (as without CUDA_VISIBLE_DEVICES) of the GPUs that render with EGL, dealt out to the
    processes in turn; empty: the visible ones."""
    recycle_after: int | Literal["auto"] = "auto"
    """Episodes that one process begins, all its envs together, before a fresh one takes its place once they
    have ended: for simulators that leak. 0: any number; ``auto``: what the adapter asks for."""

    @classmethod
    def option_types(cls, values: Mapping[str, Any]) -> dict[str, type[Settings]]:
        """The settings class of the chosen adapter."""
        kind, python = str(values.get("kind", "synthetic")), str(values.get("python", ""))
        if python and ":" in kind:
            return {}  # only that environment knows
        return {"options": adapter_class(kind).Settings}

    @field_validator("python")
    @classmethod
    def _executable(cls, value: str) -> str:
        if not value:
            return value
        permit("simulator.python", value)
        return located(value)

    @model_validator(mode="after")
    def _check(self) -> "SimulatorConfig":
        build_options(self, adapter_class(self.kind, self.python).Settings)
        if self.total_envs > MOST_ENVS:
            raise ValueError(
                f"members x batches x envs = {self.members} x {self.batches} x {self.envs} must be at most "
                f"{MOST_ENVS} envs; use fewer"
            )
        self._check_slots()
        self._check_recycling()
        return self

    def _check_recycling(self) -> None:
        envs = self.batches * self.envs
        if self.recycle_after not in ("auto", 0) and int(self.recycle_after) < envs:
            raise ValueError(
                f"recycle_after must be auto, 0, or at least {envs} (an episode for each env of a process); "
                f"it is {self.recycle_after}"
            )

    def _check_slots(self) -> None:
        sizes, even = self.slot_sizes, min(len(self.slot_sizes), self.envs)
        if not sizes or min(sizes) < 1:
            raise ValueError(
                f"slots {list(sizes)} must each have at least one env; leave out those that have none, or "
                f"use slots={max(even, 1)} for even shards"
            )
        if sum(sizes) != self.envs:
            raise ValueError(
                f"slots {list(sizes)} must add up to envs = {self.envs}, they give {sum(sizes)}; nearest: "
                f"envs={sum(sizes)}, or slots={even} for even shards"
            )

    @property
    def slot_sizes(self) -> tuple[int, ...]:
        """Envs of each slot of one env batch."""
        if isinstance(self.slots, tuple):
            return self.slots
        if not 1 <= self.slots <= self.envs:
            raise ValueError(f"slots must lie in 1…envs = {self.envs}, got {self.slots}")
        return shard_sizes(self.envs, self.slots)

    @property
    def total_envs(self) -> int:
        """Envs over all processes."""
        return self.members * self.batches * self.envs


def try_order(name: str, key: Any) -> None:
    """Make sure that ``key`` orders requests, by two of them.

    Raises:
        ValueError: it is no function from a Pending to a sort key.
    """
    two = []
    for seq in (0, 1):
        request = Request(slot=Slot(seq), seq=seq, kind="act", channel="rollout", rows=(seq,), chunks=(0,))
        two.append(
            Pending(
                request,
                member=Member("simulator-0"),
                stage=0,
                arrival_s=float(seq),
                served=seq,
                oldest_version=Version(0),
            )
        )
    try:
        sorted(two, key=key)
    except USERS_FAULTS as error:
        raise ValueError(
            f"{name} must be a function from a rlvla3.core.batcher.Pending to a sort key; called with one "
            f"it fails: {in_words(error, key)}"
        ) from error


class GeneratorConfig(Settings):
    """The Generators, dynamic batching and routing."""

    members: int = Field(default=1, ge=1, le=_MOST_MEMBERS)
    """Generator processes."""
    device: Device = "auto"
    """Torch device (cpu, cuda, cuda:N); ``auto`` takes CUDA when there is one."""
    threads: int = Field(default=1, ge=1, le=_MOST_MEMBERS)
    """Torch threads of each process; more than one oversubscribes a small machine."""
    max_batch_size: int = Field(default=64, ge=1)
    """Samples (active envs) of an inference batch, never exceeded."""
    batch_timeout_ms: float = Field(default=200.0, ge=0)
    """No request waits longer while a Generator could start."""
    linger_ms: float = Field(default=5.0, ge=0)
    """How long a free Generator waits for the rest of the previous batch to come back."""
    order: str = "arrival"
    """Which requests go first: arrival, round_robin, shortest_slot, oldest_version, or
    ``module:function`` (a sort key of ``rlvla3.core.batcher.Pending``)."""
    routing: Literal["any", "least_loaded", "pinned"] = "any"
    """Which Generator serves a slot: whichever is free, the one with the shortest queue, or a fixed
    one (slot number modulo Generators, or ``pins``)."""
    pins: dict[int, int] = Field(default_factory=dict)
    """Slot -> Generator, for ``routing: pinned``."""

    @field_validator("order")
    @classmethod
    def _known_order(cls, value: str) -> str:
        if value not in ORDERS:
            built_in = {name: f"rlvla3.core.batcher:{name}" for name in ORDERS}
            try:
                found = resolve("generator.order", value, built_in)
            except UserError as error:
                # Here the field is known, and so the place where it was written.
                raise ValueError(str(error).removeprefix("generator.order = ")) from error
            try_order(value, found)
        return value


class TrainerConfig(Settings):
    """What makes a version."""

    members: int = Field(default=1, ge=1, le=_MOST_MEMBERS)
    """Trainer processes (ranks) that share the trajectories of an update."""
    sharing: Literal["none", "weights"] = "none"
    """What several members share besides: nothing (each holds all weights), or the weights, their gradients
    and the optimiser's state (FSDP)."""
    device: Device = "auto"
    """Torch device (cpu, cuda, cuda:N); ``auto`` takes CUDA when there is one. With ``auto`` or ``cuda`` each
    member has a card of its own while there are enough."""
    threads: int = Field(default=1, ge=1, le=_MOST_MEMBERS)
    """Torch threads of each process; more than one oversubscribes a small machine."""
    batch: int = Field(default=16, ge=1, le=MOST_ENVS)
    """B: trajectories of one version."""
    micro_batch: int = Field(default=4, ge=1)
    """Trajectories handed to a Trainer process together, as they finish."""
    trajectory: Literal["episode", "segment"] = "episode"
    """What the Trainer consumes: whole episodes, or segments of ``chunks`` chunks of them."""
    chunks: int = Field(default=0, ge=0, le=MOST_ENVS)
    """Chunks of a segment; for episodes 0 (taken from the longest step limit)."""
    updates: int = Field(default=10, ge=1)
    """Versions to train."""
    bootstrap: Literal["generator", "trainer"] = "generator"
    """Who computes the value of a truncated trajectory's last observation."""
    max_skipped: int = Field(default=3, ge=1)
    """Updates in a row that may be skipped (not finite, or too far from the policy that acted) before the
    run stops."""


class ScheduleConfig(Settings):
    """How asynchronous the run is."""

    mode: Mode = "aa"
    """ss: lockstep rollout, then training. as: asynchronous rollout, then training. aa_barrier:
    training overlaps the rollout of the same version. aa: no barrier, bounded by max_lag."""
    max_lag: int = Field(default=1, ge=1)
    """L: versions that a trajectory may be behind when it is trained; used by ``aa`` only."""
    streaming: bool = False
    """Whether ``aa`` starts the gradient of an update before all its trajectories are there."""
    on_stale: Literal["wait", "drop"] = "wait"
    """What happens to slow trajectories: their update waits for them, or they are dropped."""
    deterministic: bool = False
    """Bit-equal trajectories whatever the processes and arrival order; needs max_lag 0 modes."""

    @property
    def lockstep(self) -> bool:
        """Whether inference waits for a whole stage."""
        return self.mode == "ss"

    @property
    def lag(self) -> int:
        """The bound in force: 0 but for ``aa``."""
        return self.max_lag if self.mode == "aa" else 0

    @property
    def streams(self) -> bool:
        """Whether gradients start as micro-batches arrive."""
        return self.mode == "aa_barrier" or (self.mode == "aa" and self.streaming)

    @model_validator(mode="after")
    def _check(self) -> "ScheduleConfig":
        if self.deterministic and self.mode == "aa":
            raise ValueError("deterministic needs a mode without lag: ss, as or aa_barrier, not aa")
        return self


class TasksConfig(Settings):
    """Which tasks the training episodes are of, and where they start."""

    sampling: Literal["round_robin", "uniform", "success_weighted", "list"] = "round_robin"
    """Whose turn it is. round_robin: each task as close to its weight as whole numbers allow. uniform: at
    random by weight. success_weighted: more of what succeeds now and then. list: ``list``, in its order."""
    weights: tuple[float, ...] = ()
    """Share of each task among the starts; empty: equal. Success_weighted changes it by what it learns."""
    list: tuple[str, ...] = ()
    """Names of tasks, for ``sampling: list``: taken one after the other, again and again."""
    floor: float = Field(default=0.1, gt=0, le=1)
    """Least part of its weight that a task keeps with ``sampling: success_weighted``, solved or hopeless."""
    states: int = Field(default=0, ge=0)
    """Training states of each task, used cyclically; 0: a new one for each start."""


class EvaluationConfig(Settings):
    """Evaluation on held-out initial states."""

    every_versions: int = Field(default=0, ge=0)
    """Versions between evaluations during training; 0: none."""
    at_start: bool = False
    """Whether training begins with an evaluation."""
    episodes: int = Field(default=10, ge=1, le=_MOST_EPISODES)
    """Episodes of each task."""
    replan: int = Field(default=0, ge=0)
    """Sub-steps executed of each action chunk by ``rlvla3 eval``; 0: all of them, as in training."""
    max_envs: int = Field(default=0, ge=0)
    """Envs that evaluate at the same time while rollouts go on; 0: half of them."""
    step_limit: Literal["task", "none"] | tuple[int, ...] = "task"
    """``task``: the step limits of the simulator's settings; ``none``: only its own limit; or one limit
    for each task, such as a budget that training, with more slack, works towards."""
    videos: int = Field(default=0, ge=0)
    """Episodes of each task recorded as mp4."""


class CheckpointConfig(Settings):
    """What is kept on disk."""

    every_versions: int = Field(default=20, ge=0)
    """Versions between checkpoints; 0: only at the end. The best version is kept besides."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""


class HealthConfig(Settings):
    """When a member counts as hanging, and how often it is replaced."""

    heartbeat_timeout_s: float = Field(default=15.0, gt=0)
    """Silence after which a member is lost."""
    startup_timeout_s: float = Field(default=300.0, gt=0)
    """Time a member may take to get ready."""
    step_timeout_s: float = Field(default=60.0, gt=0)
    """Time a slot may take from its actions to its next observation."""
    inference_timeout_s: float = Field(default=120.0, gt=0)
    """Time an inference batch may take."""
    update_timeout_s: float = Field(default=1800.0, gt=0)
    """Time an update may take."""
    restarts: int = Field(default=3, ge=0)
    """Replacements of each member within ``restart_window_s``."""
    restart_window_s: float = Field(default=3600.0, gt=0)
    """Seconds after which a replacement is forgiven: a run of days meets a fault now and then, a member
    that fails again and again is another matter."""
    start_attempts: int = Field(default=2, ge=1)
    """Times an episode start is tried before it is given up."""


class LogConfig(Settings):
    """Where figures go, besides ``metrics.jsonl``."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Log to Weights & Biases, if it is installed."""
    trace: bool = False
    """Write a timeline ``trace.json`` that Perfetto opens."""


class DemonstrationsConfig(Settings):
    """Scripted demonstrations for the warm start."""

    per_task: int = Field(default=40, ge=1)
    """Successful episodes of each task."""
    speed: tuple[float, float] = (0.6, 0.9)
    """Range of the factor that slows each episode's expert down (1: as the expert moves)."""
    noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise on executed actions (labels have none)."""
    stride: int = Field(default=3, ge=1)
    """Every so-manieth sub-step becomes a sample."""
    workers: int = Field(default=2, ge=1, le=_MOST_MEMBERS)
    """Processes that collect."""
    simulator: dict[str, Any] = Field(default_factory=dict)
    """Options of the simulator that are different while demonstrating (another camera, say)."""

    @field_validator("speed")
    @classmethod
    def _a_range(cls, value: tuple[float, float]) -> tuple[float, float]:
        low, high = value
        if not 0 < low <= high:
            raise ValueError(
                f"must be a range [lowest, highest] with 0 < lowest <= highest, it is [{low:g}, {high:g}]"
            )
        return value


class ImitationConfig(Settings):
    """The supervised warm start."""

    demonstrations: DemonstrationsConfig = DemonstrationsConfig()
    """What is imitated."""
    options: ImitationSettings = ImitationSettings()
    """Settings of the optimisation."""
