"""A slab and a driven Simulator for tests of roles: the test plays controller and Generator."""

import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rlvla3.messages import (
    ApplyActions,
    Env,
    Episode,
    FieldSpec,
    Member,
    MemberReady,
    ObservationReady,
    Row,
    Slot,
    Start,
    StartTrajectories,
    TrajectoryStart,
)
from rlvla3.roles.lane_slots import SlotPlan
from rlvla3.roles.simulator import SimulatorRole
from rlvla3.roles.slab import stamp
from rlvla3.runtime.payloads import SlabLayout, create_memory, map_slab
from rlvla3.simulators.synthetic import Synthetic, SyntheticSettings

MEMBER = Member("simulator-0")
WAIT_S = 10.0
UNWRITTEN = 77


def slab_of(observation, record, rows=8, chunks=3, chunk=2):
    """A slab full of a number that nobody writes."""
    layout = SlabLayout.make(rows=rows, chunks=chunks, chunk=chunk, observation=observation, record=record)
    fd = create_memory("test-slab", layout.size)
    slab = map_slab(fd, layout)
    os.close(fd)
    for array in slab.values():
        array[...] = UNWRITTEN
    return slab


def delay(**settings) -> Synthetic:
    return Synthetic(SyntheticSettings(task="delay", **settings))


class Driven:
    """A Simulator role with everything it emitted, in order."""

    def __init__(
        self,
        simulator,
        slots=((0, 1),),
        lanes=1,
        rows=8,
        chunks=3,
        chunk=2,
        round_s=0.0,
        replan=0,
        batches=None,
    ) -> None:
        """``batches``: number of each slot's env batch; one for all of them by default."""
        spec = simulator.spec
        record = [FieldSpec(name="action", shape=(chunk, spec.action_dim), dtype="float32")]
        self.slab = slab_of(spec.observation, record, rows, chunks, chunk)
        self.events: queue.Queue = queue.Queue()
        plans = [
            SlotPlan(
                slot=Slot(i), envs=tuple(map(Env, envs)), lane=i % lanes, batch=batches[i] if batches else 0
            )
            for i, envs in enumerate(slots)
        ]
        self.role = SimulatorRole(
            member=MEMBER,
            simulator=simulator,
            slots=plans,
            slab=self.slab,
            emit=self._emit,
            round_s=round_s,
            replan=replan,
        )

    def _emit(self, *events) -> None:
        for event in events:
            self.events.put(event)

    def start(self) -> "Driven":
        self.role.start()
        assert self.event(MemberReady).member == MEMBER
        return self

    def event(self, kind):
        """The next event, which must be of this kind."""
        event = self.events.get(timeout=WAIT_S)
        assert isinstance(event, kind), event
        return event

    def begin(self, *starts) -> None:
        self.role.handle(StartTrajectories(member=MEMBER, starts=starts))

    def apply(self, asked: ObservationReady) -> None:
        self.role.handle(ApplyActions(member=MEMBER, slots=((asked.slot, asked.seq),)))

    def answer(self, asked: ObservationReady, action=0.0) -> None:
        """Write the records that were asked for, as a Generator does, and have them executed."""
        for row, chunk in zip(asked.rows, asked.chunks, strict=True):
            self.slab["record.action"][row, chunk] = action
            episode = int(self.slab["episode"][row])
            self.slab["stamp"][row, chunk] = stamp(episode, int(self.slab["chunk_index"][row, chunk]))
        self.apply(asked)


def credit(env=0, row=0, episode=5, state=3, **changes) -> TrajectoryStart:
    values = {
        "start": Start(task=0, split="train", state=state),
        "channel": "rollout",
        "step_limit": 0,
        "first_chunk": 0,
        "video": "",
    }
    return TrajectoryStart(env=Env(env), row=Row(row), episode=Episode(episode), **(values | changes))


@contextmanager
def driven(simulator, **shape) -> Iterator[Driven]:
    made = Driven(simulator, **shape).start()
    yield made
    made.role.close()
    for lane in made.role.lanes:
        assert not lane.is_alive(), f"{lane.name} does not end"


def tags(driver: Driven, row: int) -> list[float]:
    """The sub-step of each observation of a row."""
    return np.asarray(driver.slab["observation.tag"][row, :, 3]).tolist()
