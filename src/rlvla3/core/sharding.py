"""Slots: how env batches are sharded, and where each slot is at the moment."""

from collections.abc import Iterable, Iterator
from enum import Enum

from rlvla3.core.settings import SlotSettings
from rlvla3.messages import Env, Member, Slot


def shard_sizes(envs: int, slots: int) -> tuple[int, ...]:
    """Sizes of ``slots`` shards of ``envs``, as even as possible, larger ones first.

    Raises:
        ValueError: more slots than envs, or none.
    """
    if not 1 <= slots <= envs:
        raise ValueError(f"{envs} envs can be sharded into 1 to {envs} slots, not {slots}")
    size, larger = divmod(envs, slots)
    return (size + 1,) * larger + (size,) * (slots - larger)


class At(Enum):
    """Where a slot is. ``STEPPING`` slots are those whose request could still arrive.

    ``ANSWERED`` slots have their actions and wait for the other slots of an env batch that steps as a
    whole. Nothing is to be expected of them before those are answered too.
    """

    IDLE = "idle"
    STEPPING = "stepping"
    QUEUED = "queued"
    INFERENCE = "inference"
    ANSWERED = "answered"


_CAN_STEP = (At.ANSWERED, At.IDLE)


class SlotState:
    """A slot's mutable state."""

    __slots__ = ("active", "at", "batch", "envs", "member", "seq", "served", "slot", "stage", "unanswered")

    def __init__(self, settings: SlotSettings) -> None:
        self.slot = settings.slot
        self.member = settings.member
        self.envs = settings.envs
        self.stage = settings.stage
        self.at = At.IDLE
        self.active = 0
        """Envs with a trajectory in flight."""
        self.seq = -1
        """Sequence number of the last request."""
        self.served = 0
        self.unanswered = 0
        """Parts of the present request (one for each channel) without an answer."""
        self.batch: tuple[SlotState, ...] = (self,)
        """The slots that step at the same time as this one, itself included."""


class SlotTable:
    """All slots, with the counts that flush rules need."""

    def __init__(self, slots: Iterable[SlotSettings], together: bool = False) -> None:
        """``together``: see ``Topology``."""
        self._slots: dict[Slot, SlotState] = {s.slot: SlotState(s) for s in slots}
        if together:
            self._join_batches()
        self._of_env: dict[Env, SlotState] = {e: s for s in self._slots.values() for e in s.envs}
        self.stages = 1 + max((s.stage for s in self._slots.values()), default=0)
        self.largest = max((len(s.envs) for s in self._slots.values()), default=1)
        """Envs of the largest slot."""
        self.stepping_since: dict[Slot, float] = {}
        """Stepping slots in order of time: the first has waited longest."""
        self._stepping = [0] * self.stages
        self._busy = [0] * self.stages

    def _join_batches(self) -> None:
        batches: dict[tuple[Member, int], list[SlotState]] = {}
        for slot in self._slots.values():
            batches.setdefault((slot.member, slot.stage), []).append(slot)
        for batch in batches.values():
            for slot in batch:
                slot.batch = tuple(batch)

    def ready(self, slots: Iterable[SlotState]) -> list[SlotState]:
        """The slots that can step now, of these and those that step together with them.

        None of a batch while one of its slots is being reset, about to ask or asks: stepping without it
        would move its envs on without their actions. Slots without an episode are not waited for.
        """
        ready: dict[Slot, SlotState] = {}
        for slot in slots:
            if all(other.at in _CAN_STEP for other in slot.batch):
                ready |= {other.slot: other for other in slot.batch if other.at is At.ANSWERED}
        return list(ready.values())

    def __getitem__(self, slot: Slot) -> SlotState:
        return self._slots[slot]

    def __iter__(self) -> Iterator[SlotState]:
        return iter(self._slots.values())

    def of_env(self, env: Env) -> SlotState:
        """The slot that holds ``env``."""
        return self._of_env[env]

    def of_member(self, member: Member) -> list[SlotState]:
        """The slots of a Simulator."""
        return [s for s in self._slots.values() if s.member == member]

    def stepping(self, stage: int | None) -> int:
        """Slots whose request could still arrive (of one stage, or of all)."""
        return len(self.stepping_since) if stage is None else self._stepping[stage]

    def busy(self, stage: int) -> int:
        """Slots of a stage that are anywhere but idle."""
        return self._busy[stage]

    def move(self, state: SlotState, to: At, now_s: float) -> None:
        """Record a slot's move."""
        if state.at is to:
            return
        if state.at is At.STEPPING:
            del self.stepping_since[state.slot]
            self._stepping[state.stage] -= 1
        elif state.at is At.IDLE:
            self._busy[state.stage] += 1
        if to is At.STEPPING:
            self.stepping_since[state.slot] = now_s
            self._stepping[state.stage] += 1
        elif to is At.IDLE:
            self._busy[state.stage] -= 1
        state.at = to
