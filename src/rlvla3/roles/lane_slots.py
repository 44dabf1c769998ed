"""What a lane knows of each of its slots: touched by its lane only."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlvla3.messages import Env, Row, Slot, TrajectoryStart
from rlvla3.simulators.api import EnvBatch, Observation, Simulator
from rlvla3.simulators.chunking import ChunkResult, SerialBatch
from rlvla3.video import VideoWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """One slot of this Simulator."""

    slot: Slot
    envs: tuple[Env, ...]
    lane: int
    batch: int = 0
    """Its env batch; where batches step as a whole, all slots of one are in the same lane."""


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

    def __init__(self, plan: SlotPlan, group: "Group", first: int) -> None:
        """``first``: index of its first env in the batch of its group."""
        self.slot = plan.slot
        self.group = group
        self.batch = group.batch
        self.index = {env: first + i for i, env in enumerate(plan.envs)}
        self.env = {index: env for env, index in self.index.items()}
        """By index of the env in the batch, as everything below."""
        self.flights: dict[int, Flight] = {}
        self.asked: list[int] = []
        """Indices of the present request."""
        self.elapsed = dict.fromkeys(self.env, 0)
        """Sub-steps of each env's episode."""
        self.solved = dict.fromkeys(self.env, False)
        """Whether each env's episode began in a state that solves its task."""
        self.kept: dict[int, Observation] = {}
        """Last observation of a segment, first of the next one."""
        self.seq = -1
        self.waiting = False
        """A request is out."""
        self.answered = False
        """It has the actions of its request, and waits for the rest of its group."""


class Group:
    """Slots that step at the same time: one, or all of an env batch that steps as a whole."""

    def __init__(self, batch: EnvBatch, plans: Sequence[SlotPlan], together: bool) -> None:
        self.batch = batch
        self.together = together
        self.slots: list[LaneSlot] = []
        first = 0
        for plan in plans:
            self.slots.append(LaneSlot(plan, self, first))
            first += len(plan.envs)
        self.stepping = False
        """A chunk is begun and not finished."""
        self.newcomers: list[tuple[LaneSlot, list[TrajectoryStart]]] = []
        """Starts that wait for the end of the chunk: it would move their envs on."""

    @property
    def complete(self) -> bool:
        """Whether every slot that asked has its actions."""
        return not any(slot.waiting for slot in self.slots)

    def must_wait(self, slot: LaneSlot) -> bool:
        """Whether a start in this slot has to wait until the group has stepped."""
        return self.together and (self.stepping or slot.waiting or slot.answered)

    def take_newcomers(self, slot: LaneSlot) -> list[list[TrajectoryStart]]:
        """The starts in this slot that waited."""
        mine = [credits for other, credits in self.newcomers if other is slot]
        self.newcomers = [item for item in self.newcomers if item[0] is not slot]
        return mine


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A chunk that is being executed."""

    group: Group
    slots: list[LaneSlot]
    """Those of the group that asked."""
    steps: Generator[float, None, list[ChunkResult]]
    places: list[tuple[Row, int]]


def filming(batch: EnvBatch, flights: Mapping[int, Flight]) -> Callable[[int], None] | None:
    """What adds an env's picture to its video after a sub-step; None where there are no videos.

    ``flights``: by index of the env in the batch.
    """
    if not any(flight.video for flight in flights.values()):
        return None

    def add_frame(index: int) -> None:
        video = flights[index].video
        if video is not None:
            video.add(batch.picture(index))

    return add_frame


def build_groups(simulator: Simulator, plans: Sequence[SlotPlan]) -> list[Group]:
    """Build the envs of a lane."""
    if not simulator.spec.steps_together:
        return [Group(SerialBatch([simulator.make() for _ in p.envs]), [p], False) for p in plans]
    batches: dict[int, list[SlotPlan]] = {}
    for plan in plans:
        batches.setdefault(plan.batch, []).append(plan)
    whole: Any = simulator
    sizes = {number: sum(len(plan.envs) for plan in mine) for number, mine in batches.items()}
    return [Group(whole.make_batch(sizes[number]), mine, True) for number, mine in batches.items()]
