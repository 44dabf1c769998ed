"""What a lane knows of each of its slots: touched by its lane only."""

from collections.abc import Generator
from dataclasses import dataclass

from rlvla3.messages import Env, Row, Slot, TrajectoryStart
from rlvla3.simulators.api import EnvBatch, Observation
from rlvla3.simulators.chunking import ChunkResult
from rlvla3.video import VideoWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """One slot of this Simulator."""

    slot: Slot
    envs: tuple[Env, ...]
    lane: int


class Flight:
    """A trajectory being written."""

    __slots__ = ("credit", "position", "reward", "sub_steps", "success", "video")

    def __init__(self, credit: TrajectoryStart) -> None:
        self.credit = credit
        self.position = 0
        """Chunks done in this trajectory."""
        self.sub_steps = 0
        self.reward = 0.0
        self.success = False
        self.video: VideoWriter | None = None


class LaneSlot:
    """A slot and its envs; touched by its lane only."""

    def __init__(self, plan: SlotPlan, batch: EnvBatch) -> None:
        self.slot = plan.slot
        self.batch = batch
        self.envs = plan.envs
        self.index = {env: i for i, env in enumerate(plan.envs)}
        self.flights: dict[int, Flight] = {}
        """By index of the env in the batch."""
        self.asked: list[int] = []
        """Indices of the present request."""
        self.elapsed = dict.fromkeys(range(len(plan.envs)), 0)
        """Sub-steps of each env's episode."""
        self.solved = dict.fromkeys(range(len(plan.envs)), False)
        """Whether each env's episode began in a state that solves its task."""
        self.kept: dict[int, Observation] = {}
        """Last observation of a segment, first of the next one."""
        self.seq = -1
        self.waiting = False
        """A request is out."""
        self.stepping = False
        """A chunk is begun and not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk that is being executed."""

    steps: Generator[float, None, list[ChunkResult]]
    places: list[tuple[Row, int]]
