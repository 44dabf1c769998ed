"""The Trainer role: what it publishes, reports and saves, and what it refuses."""

import numpy as np
import pytest
from role_worlds import slab_of

from rlvla3.errors import UserError
from rlvla3.learner.api import UpdateReport
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.messages import (
    CheckpointSaved,
    Episode,
    FinishUpdate,
    Member,
    MemberReady,
    MicroBatchDone,
    PublishWeights,
    Row,
    SaveBest,
    SaveCheckpoint,
    Start,
    Stop,
    TrainMicroBatch,
    Trajectory,
    UpdateDone,
    Version,
    WeightsPublished,
)
from rlvla3.roles.trainer import TrainerRole

MEMBER = Member("trainer-0")


class World:
    """A Trainer with lists instead of shared memory, disk and controller."""

    def __init__(self, *, first: bool = True) -> None:
        self.events: list = []
        self.reports: list = []
        self.written: list = []
        self.kept: list = []
        self.role = TrainerRole(
            member=MEMBER,
            first=first,
            build=lambda: EmulatedLearner(EmulatedLearnerSettings(ms_per_sample=0), streaming=False),
            weights=self,
            keeper=self,
            slab=slab_of((), ()),
            emit=self.events.append,
            report=lambda source, values: self.reports.append((source, dict(values))),
        )
        self.role.start()
        assert self.events.pop() == MemberReady(member=MEMBER)

    def write(self, channel, buffer, version, weights) -> None:
        self.written.append((channel, buffer, version, weights["weights"].tolist()))

    def save(self, learner, version, engine_state) -> None:
        self.kept.append((learner.version, version, engine_state))

    def save_rejected(self, learner) -> None:
        self.kept.append(("rejected", learner.version))

    def save_best(self, version, weights, score) -> None:
        self.kept.append((version, weights["weights"].tolist(), score))

    def update(self, number: int) -> None:
        self.role.handle(TrainMicroBatch(member=MEMBER, update=number, trajectories=(trajectory(),)))
        self.role.handle(FinishUpdate(member=MEMBER, update=number))

    def publish(self, version: int, channel="rollout", buffer=1) -> None:
        self.role.handle(
            PublishWeights(member=MEMBER, channel=channel, version=Version(version), buffer=buffer)
        )


def trajectory() -> Trajectory:
    return Trajectory(
        row=Row(0),
        episode=Episode(0),
        group=0,
        start=Start(task=0, split="train", state=0),
        first_chunk=0,
        chunks=2,
        sub_steps=4,
        end="terminated",
        success=True,
        solved_at_reset=False,
        total_reward=1.0,
        oldest_version=Version(0),
    )


def test_an_update_is_reported_before_it_is_done() -> None:
    world = World()
    world.update(1)
    assert world.events == [
        MicroBatchDone(member=MEMBER, update=1),
        UpdateDone(member=MEMBER, update=1, skipped=""),
    ]
    assert world.reports == [("update", {"sub_steps": 4.0, "trajectories": 1.0})]


def test_of_several_members_only_the_first_writes_and_tells() -> None:
    world = World(first=False)
    gathered: list = []
    weights = world.role.learner.weights
    world.role.learner.weights = lambda channel: gathered.append(channel) or weights(channel)  # type: ignore
    world.role.handle(TrainMicroBatch(member=MEMBER, update=1, trajectories=()))
    world.role.handle(FinishUpdate(member=MEMBER, update=1))
    world.publish(1)
    world.role.handle(SaveCheckpoint(member=MEMBER, version=Version(1), engine_state="{}"))
    assert world.events == [
        MicroBatchDone(member=MEMBER, update=1),
        UpdateDone(member=MEMBER, update=1, skipped=""),
    ]
    assert gathered == ["rollout"], "gathering weights may need every member"
    assert world.reports == world.written == world.kept == []


def test_only_the_version_that_is_held_is_published() -> None:
    world = World()
    world.update(1)
    world.publish(1)
    assert world.written == [("rollout", 1, 1, [1.0])]
    assert world.events[-1] == WeightsPublished(
        member=MEMBER, channel="rollout", version=Version(1), buffer=1
    )
    with pytest.raises(RuntimeError, match="asked to publish version 0, holds 1"):
        world.publish(0)
    assert len(world.written) == 1


def test_the_best_weights_are_those_that_were_evaluated() -> None:
    world = World()
    world.update(1)
    world.publish(1, "evaluation", 0)
    world.update(2)
    world.role.handle(SaveBest(member=MEMBER, version=Version(1), score=0.5))
    assert world.kept == [(1, [1.0], 0.5)]
    world.role.handle(SaveBest(member=MEMBER, version=Version(2), score=0.9))
    assert len(world.kept) == 1, "version 2 was never evaluated"


def test_a_checkpoint_is_acknowledged_when_it_is_complete() -> None:
    world = World()
    world.update(1)
    world.role.handle(SaveCheckpoint(member=MEMBER, version=Version(1), engine_state="{}"))
    assert world.kept == [(1, 1, "{}")]
    assert world.events[-1] == CheckpointSaved(member=MEMBER, version=Version(1))


def test_strange_commands_are_refused() -> None:
    with pytest.raises(TypeError, match="a Trainer cannot do Stop"):
        World().role.handle(Stop(reason="", failed=False))


@pytest.mark.parametrize(("rejected", "first"), [(True, True), (False, True), (True, False)])
def test_a_rejected_batch_is_kept_before_its_rows_are_given_away(rejected, first) -> None:
    world = World(first=first)
    outcome = UpdateReport(skipped="too far", rejected=rejected, metrics={})
    world.role.learner.update = lambda: outcome  # type: ignore[method-assign]
    world.update(1)
    assert world.kept == ([("rejected", 0)] if rejected and first else [])
    assert world.events[-1] == UpdateDone(member=MEMBER, update=1, skipped="too far")


@pytest.mark.parametrize("channel", ["rollout", "evaluation"])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_never_published(broken, channel) -> None:
    world = World()
    world.role.learner.weights = lambda channel: {  # type: ignore[method-assign]
        "head": np.zeros(3, np.float32),
        "body": np.array([1, broken], np.float32),
    }
    with pytest.raises(UserError, match="version 0 is not published: body holds numbers that are not finite"):
        world.publish(0, channel)
    assert world.written == []


def test_pinned_weights_are_a_copy() -> None:
    world = World()
    learner = world.role.learner
    shared = np.zeros(1, np.float32)
    learner.weights = lambda channel: {"weights": shared}  # type: ignore[method-assign]
    world.publish(0, "evaluation", 0)
    shared[:] = 9
    world.role.handle(SaveBest(member=MEMBER, version=Version(0), score=0.1))
    assert world.kept == [(0, [0.0], 0.1)]
