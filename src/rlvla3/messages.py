"""Everything that crosses a role boundary: ids, payload fields, events and commands.

Only metadata is here. Observations, actions and weights stay in shared memory and are named by
(row, chunk) or (buffer, version). Events go to the engine, commands come from it. Every message
is frozen and complete: no field is optional for the sake of another mode.
"""

from typing import Literal, NewType

import msgspec

Member = NewType("Member", str)
"""One process of a role, such as ``simulator-0``."""
Env = NewType("Env", int)
"""One environment, numbered over all Simulators."""
Slot = NewType("Slot", int)
"""A shard of an env batch, numbered over all Simulators; the unit of request."""
Row = NewType("Row", int)
"""One trajectory's place in the trajectory slab."""
Version = NewType("Version", int)
"""A policy version: +1 at each publish."""
Episode = NewType("Episode", int)
"""A unique episode number; a replacement episode gets a new one. Keys the exploration noise.
An evaluation episode's number says which start it is (``core.evaluation.FIRST_EPISODE``)."""

Channel = Literal["rollout", "evaluation"]
"""Which copy of the weights a Generator uses: the newest, or the one pinned for evaluation."""
End = Literal["terminated", "truncated", "segment"]
"""Why a trajectory ended. ``segment``: its chunks are full, the episode goes on."""
Kind = Literal["act", "value"]
"""What a request asks for. ``value``: only V(s), for a bootstrap; no noise is drawn."""


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What all of them have in common: on the wire, the fields in their order."""


class FieldSpec(Record, frozen=True, kw_only=True):
    """One array of a payload: ``shape`` excludes rows and chunks; ``dtype`` is a numpy name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Start(Record, frozen=True, kw_only=True):
    """Where an episode starts: it fixes the task and the initial state, whichever env runs it."""

    task: int
    """Index into the simulator's task table."""
    split: Literal["train", "held_out", "demonstration"]
    """The family of initial states; families never share a state."""
    state: int
    """Index of the initial state within (task, split), from 0."""


class TrajectoryStart(Record, frozen=True, kw_only=True):
    """The right to run one trajectory (a credit) and the row to write it into."""

    env: Env
    row: Row
    episode: Episode
    start: Start
    channel: Channel
    step_limit: int
    """Sub-steps after which the episode is cut; 0 leaves the simulator's own limit."""
    first_chunk: int
    """Chunk index within the episode of this trajectory's first chunk; 0 resets the env."""
    video: str
    """File to write every sub-step's picture to; empty for none."""


class Request(Record, frozen=True, kw_only=True):
    """One slot's observations waiting for actions (``act``), or one for a value (``value``)."""

    slot: Slot
    seq: int
    kind: Kind
    channel: Channel
    rows: tuple[int, ...]
    """Row of each active env of the slot."""
    chunks: tuple[int, ...]
    """Position in its row of each observation."""


class Trajectory(Record, frozen=True, kw_only=True):
    """A finished trajectory, by reference."""

    row: Row
    episode: Episode
    group: int
    """Which trajectories of an update share their start; a number of its own where there are no groups,
    -1 in an evaluation."""
    start: Start
    first_chunk: int
    chunks: int
    sub_steps: int
    end: End
    success: bool
    solved_at_reset: bool
    """The initial state of its episode solves the task already: its success says nothing of the policy."""
    total_reward: float
    """Undiscounted sum of its executed sub-step rewards."""
    oldest_version: Version


# --- events: to the engine -------------------------------------------------------------------


class Tick(Record, frozen=True, kw_only=True):
    """Time passed; a deadline may be due."""


class MemberReady(Record, frozen=True, kw_only=True):
    """A member finished its set-up and can work."""

    member: Member


class Heartbeat(Record, frozen=True, kw_only=True):
    """A member's input/output thread is alive."""

    member: Member


class MemberLost(Record, frozen=True, kw_only=True):
    """A member raised, exited or was found hanging; it may still be writing."""

    member: Member
    reason: str
    refused: bool = False
    """Whether ``reason`` is a line for the user, who alone can mend it: the run ends, nothing is replaced."""


class MemberReaped(Record, frozen=True, kw_only=True):
    """The member's process is gone; nothing of it can write any more."""

    member: Member


class ObservationReady(Record, frozen=True, kw_only=True):
    """A slot's observations are in the slab and want actions."""

    member: Member
    slot: Slot
    seq: int
    rows: tuple[int, ...]
    chunks: tuple[int, ...]


class TrajectoryReady(Record, frozen=True, kw_only=True):
    """A trajectory ended; ``end == "segment"`` leaves the env in mid-episode."""

    member: Member
    env: Env
    row: Row
    chunks: int
    sub_steps: int
    end: End
    success: bool
    solved_at_reset: bool
    total_reward: float


class InferenceDone(Record, frozen=True, kw_only=True):
    """A batch's action records are in the slab, computed with ``version``."""

    member: Member
    batch: int
    version: Version


class WeightsLoaded(Record, frozen=True, kw_only=True):
    """A Generator serves ``version`` on ``channel`` from now on."""

    member: Member
    channel: Channel
    version: Version


class MicroBatchDone(Record, frozen=True, kw_only=True):
    """A Trainer member took in a micro-batch (with streaming: its gradient too)."""

    member: Member
    update: int


class UpdateDone(Record, frozen=True, kw_only=True):
    """A Trainer member finished an update. ``skipped``: why nothing changed, in one line; empty: there is a
    new version. All members skip it or none does."""

    member: Member
    update: int
    skipped: str


class WeightsPublished(Record, frozen=True, kw_only=True):
    """A version's weights are complete in a buffer; told by the first Trainer member."""

    member: Member
    channel: Channel
    version: Version
    buffer: int


class CheckpointSaved(Record, frozen=True, kw_only=True):
    """A checkpoint is complete on disk; told by the first Trainer member."""

    member: Member
    version: Version


class StopRequested(Record, frozen=True, kw_only=True):
    """Ctrl-C, SIGTERM or the end of the time budget: checkpoint, then end."""

    reason: str


Event = (
    Tick
    | MemberReady
    | Heartbeat
    | MemberLost
    | MemberReaped
    | ObservationReady
    | TrajectoryReady
    | InferenceDone
    | WeightsLoaded
    | MicroBatchDone
    | UpdateDone
    | WeightsPublished
    | CheckpointSaved
    | StopRequested
)


# --- commands: from the engine ---------------------------------------------------------------


class StartTrajectories(Record, frozen=True, kw_only=True):
    """Credits for a Simulator."""

    member: Member
    starts: tuple[TrajectoryStart, ...]


class ApplyActions(Record, frozen=True, kw_only=True):
    """The actions of these (slot, seq) are in the slab: execute them."""

    member: Member
    slots: tuple[tuple[Slot, int], ...]


class CancelRequests(Record, frozen=True, kw_only=True):
    """These (slot, seq) will never be answered."""

    member: Member
    slots: tuple[tuple[Slot, int], ...]
    reason: str


class RunInference(Record, frozen=True, kw_only=True):
    """Compute one inference batch."""

    member: Member
    batch: int
    channel: Channel
    requests: tuple[Request, ...]


class LoadWeights(Record, frozen=True, kw_only=True):
    """Read a published version from a buffer."""

    member: Member
    channel: Channel
    version: Version
    buffer: int


class TrainMicroBatch(Record, frozen=True, kw_only=True):
    """Take in these trajectories for ``update``; every Trainer member gets equally many of these commands,
    some without trajectories."""

    member: Member
    update: int
    trajectories: tuple[Trajectory, ...]


class FinishUpdate(Record, frozen=True, kw_only=True):
    """All trajectories of ``update`` were sent: run the remaining epochs. Goes to every Trainer member."""

    member: Member
    update: int


class PublishWeights(Record, frozen=True, kw_only=True):
    """Write the weights of ``version`` into ``buffer`` of ``channel``. Goes to every Trainer member, since
    gathering weights may need all of them; the first one writes."""

    member: Member
    channel: Channel
    version: Version
    buffer: int


class SaveCheckpoint(Record, frozen=True, kw_only=True):
    """Write everything needed to resume; ``engine_state`` is the engine's own part as JSON. Goes to every
    Trainer member; the first one writes."""

    member: Member
    version: Version
    engine_state: str


class SaveBest(Record, frozen=True, kw_only=True):
    """Keep the pinned evaluation weights as the best so far."""

    member: Member
    version: Version
    score: float


class ReplaceMember(Record, frozen=True, kw_only=True):
    """Kill and reap this member, report MemberReaped, start a new one if ``restart``."""

    member: Member
    reason: str
    restart: bool


class RecycleMember(Record, frozen=True, kw_only=True):
    """No fault: let this Simulator, which is idle, end; reap it, report MemberReaped, start a new one."""

    member: Member


class ReportEvaluation(Record, frozen=True, kw_only=True):
    """All episodes of an evaluation ended; one trajectory for each, in start order."""

    version: Version
    trajectories: tuple[Trajectory, ...]


class Stop(Record, frozen=True, kw_only=True):
    """The run is over. ``failed``: by a fault, with the cause in ``reason``."""

    reason: str
    failed: bool


Command = (
    StartTrajectories
    | ApplyActions
    | CancelRequests
    | RunInference
    | LoadWeights
    | TrainMicroBatch
    | FinishUpdate
    | PublishWeights
    | SaveCheckpoint
    | SaveBest
    | ReplaceMember
    | RecycleMember
    | ReportEvaluation
    | Stop
)
