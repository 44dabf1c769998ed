"""Members that start, hang, die and come back.

``lose``: the member is not used any more from this moment, and whatever waits for it goes elsewhere.
``reaped``: its process is gone, so what it might still have been writing is free as well.
"""

from rlvla3.core.ending import Ending
from rlvla3.core.flights import Flights
from rlvla3.core.health import Health, Up
from rlvla3.core.inference import Inference
from rlvla3.core.outbox import Outbox
from rlvla3.core.recycling import Recycling
from rlvla3.core.settings import EngineSettings
from rlvla3.core.sharding import At, SlotTable
from rlvla3.core.statistics import Statistics
from rlvla3.core.weights import Weights
from rlvla3.messages import Member, RecycleMember, ReplaceMember


class Membership:
    """Who works, who is replaced, and when the run cannot go on without somebody."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        health: Health,
        slots: SlotTable,
        flights: Flights,
        inference: Inference,
        weights: Weights,
        ending: Ending,
        statistics: Statistics,
        outbox: Outbox,
        recycling: Recycling,
    ) -> None:
        self._recycling = recycling
        self._settings = settings
        self._health = health
        self._slots = slots
        self._flights = flights
        self._inference = inference
        self._weights = weights
        self._ending = ending
        self._statistics = statistics
        self._outbox = outbox
        self._restarting: set[Member] = set()

    def deadline_s(self) -> float:
        """When ``check`` must be called if nothing else happens."""
        return min(self._health.deadline_s(), self._stuck_s())

    def check(self, now_s: float) -> None:
        """Lose every member that missed a deadline."""
        for overdue in self._health.overdue(now_s):
            self.lose(overdue.member, overdue.reason, now_s)
        while now_s >= self._stuck_s():
            slot, since_s = next(iter(self._slots.stepping_since.items()))
            reason = f"slot {slot} has been stepping for {now_s - since_s:.1f} s"
            self.lose(self._slots[slot].member, reason, now_s)

    def _stuck_s(self) -> float:
        for since_s in self._slots.stepping_since.values():
            return since_s + self._settings.health.step_timeout_s
        return float("inf")

    def ready(self, member: Member, now_s: float) -> bool:
        """The member finished its set-up; False if it had been lost meanwhile."""
        if self._health.state[member] is not Up.STARTING:
            return False
        self._health.ready(member, now_s)
        self._recycling.renewed(member)
        if member in self._settings.topology.generators:
            self._inference.set_free(member, now_s)
        for slot in self._slots.of_member(member):
            slot.seq = -1
            for env in slot.envs:
                self._flights.wait(env)
        return True

    def lose(self, member: Member, reason: str, now_s: float, *, refused: bool = False) -> None:
        """Stop using a member and have it replaced while its budget lasts.

        ``refused``: it would only fail again, so the run ends (after a checkpoint if it has a Trainer).
        """
        if self._health.state[member] not in (Up.UP, Up.STARTING):
            return
        if refused:
            self._ending.ask(reason)
        replace = self._health.lost(member, now_s)
        if member in self._settings.topology.trainers:
            self._ending.stop(f"{member} was lost: {reason}", failed=True)
            return
        restart = replace and not self._ending.reason
        if restart:
            self._restarting.add(member)
            self._statistics.replaced[member] = self._health.restarts[member]
        self._outbox.send(ReplaceMember(member=member, reason=reason, restart=restart))
        if member in self._settings.topology.generators:
            self._inference.reroute(member)
            return
        self._flights.suspend(member)
        self._inference.cancel(member)
        for slot in self._slots.of_member(member):
            slot.active = 0
            self._slots.move(slot, At.IDLE, now_s)

    def recycle(self) -> None:
        """Replace the process of a retiring Simulator as soon as its envs are idle."""
        member = self._recycling.retiring
        if member is None or not self._health.up(member) or not self._flights.retire(member):
            return
        self._health.retire(member)
        self._restarting.add(member)
        recycled = self._statistics.recycled
        recycled[member] = recycled.get(member, 0) + 1
        self._outbox.send(RecycleMember(member=member))

    def reaped(self, member: Member, now_s: float) -> None:
        """The member's process is gone."""
        if self._health.state[member] is not Up.LOST:
            raise RuntimeError(f"{member} was reaped while {self._health.state[member].value}")
        restarting = member in self._restarting
        self._restarting.discard(member)
        self._health.reaped(member, restarting, now_s)
        if not restarting:
            self._recycling.renewed(member)
        if member in self._settings.topology.generators:
            self._weights.gone(member)
            self._inference.requeue(member)
        else:
            self._inference.free_rows(self._flights.discard(member))
        if not restarting and not self._ending.reason:
            self._stop_without(member)

    def _stop_without(self, member: Member) -> None:
        topology, state = self._settings.topology, self._health.state
        role = topology.generators if member in topology.generators else topology.simulators
        name = role[0].rpartition("-")[0]
        if all(state[m] is Up.GONE for m in role):
            self._ending.stop(f"no {name} is left: {member} was lost too often", failed=True)
        elif self._settings.training.quota and member in topology.simulators:
            self._ending.stop(f"{member} was lost too often, and every env has a quota to fill", failed=True)
