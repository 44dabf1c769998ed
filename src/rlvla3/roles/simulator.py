"""The Simulator role: steps env batches, writes observations and rewards, posts requests.

Each slot belongs to one lane, a thread that builds, resets, steps and renders its envs (a GL
context belongs to the thread that made it). One lane steps its slots in turn; several lanes let
envs that wait (for a device, a network, an emulated delay) wait at the same time.
"""

import threading
from collections.abc import Sequence

from rlvla3.messages import (
    ApplyActions,
    CancelRequests,
    Member,
    MemberReady,
    Slot,
    StartTrajectories,
    TrajectoryStart,
)
from rlvla3.roles.lane import Emit, Lane
from rlvla3.roles.lane_slots import SlotPlan
from rlvla3.roles.slab import Slab
from rlvla3.simulators.api import Simulator
from rlvla3.usage import Usage


class SimulatorRole:
    """Handles commands in the caller's thread; lanes do the work and emit events."""

    def __init__(
        self,
        *,
        member: Member,
        simulator: Simulator,
        slots: Sequence[SlotPlan],
        slab: Slab,
        emit: Emit,
        round_s: float = 0.0,
        replan: int = 0,
    ) -> None:
        """``round_s``, ``replan``: see ``Lane``."""
        self._member = member
        self._emit = emit
        self._lane_of = {plan.slot: plan.lane for plan in slots}
        self._slot_of = {env: plan.slot for plan in slots for env in plan.envs}
        self._ready = threading.Semaphore(0)
        self.lanes = [
            Lane(
                member,
                simulator,
                [p for p in slots if p.lane == lane],
                slab,
                emit,
                self._ready,
                round_s,
                replan,
            )
            for lane in sorted(set(self._lane_of.values()))
        ]

    def start(self) -> None:
        """Build all envs, each in its lane; then report ready."""
        for lane in self.lanes:
            lane.start()
        for _ in self.lanes:
            self._ready.acquire()
        if not any(lane.failed for lane in self.lanes):
            self._emit(MemberReady(member=self._member))

    def handle(self, command: object) -> None:
        """Hand a command to the lanes it concerns."""
        if isinstance(command, ApplyActions):
            self._distribute(command.slots)
        elif isinstance(command, StartTrajectories):
            by_slot: dict[Slot, list[TrajectoryStart]] = {}
            for credit in command.starts:
                by_slot.setdefault(self._slot_of[credit.env], []).append(credit)
            self._distribute(tuple(by_slot.items()))
        elif not isinstance(command, CancelRequests):
            raise TypeError(f"a Simulator cannot do {type(command).__name__}")

    def _distribute(self, items: Sequence[tuple[Slot, object]]) -> None:
        for number, lane in enumerate(self.lanes):
            mine = [item for item in items if self._lane_of[item[0]] == number]
            if mine:
                lane.put(mine)

    def close(self) -> None:
        """End the lanes; one that is stuck in an env is left to the end of the process."""
        for lane in self.lanes:
            lane.put([None])
        for lane in self.lanes:
            lane.join(timeout=2.0)

    def usages(self) -> list[Usage]:
        """Time accounts of the lanes."""
        return [lane.usage for lane in self.lanes]

    def doing(self) -> list[str]:
        """What each lane that does not wait has been doing, and since when; the longest last."""
        lanes = sorted(self.lanes, key=lambda lane: lane.since_s, reverse=True)
        return [line for lane in lanes if (line := lane.describe())]
