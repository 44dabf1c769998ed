"""The Generator role: stamps, versions, values, padding, and whose actions they are."""

import queue
import random

import numpy as np
import pytest
from echo import EchoSimulator
from role_worlds import UNWRITTEN, Driven, credit, slab_of

from rlvla3.messages import (
    ApplyActions,
    Channel,
    FieldSpec,
    InferenceDone,
    LoadWeights,
    Member,
    MemberReady,
    ObservationReady,
    Request,
    RunInference,
    Slot,
    Stop,
    TrajectoryReady,
    Version,
    WeightsLoaded,
)
from rlvla3.policies.api import PolicyInterface
from rlvla3.policies.emulated import Emulated, EmulatedModel, EmulatedSettings
from rlvla3.roles.generator import GeneratorRole
from rlvla3.roles.slab import stamp
from rlvla3.simulators.synthetic import SyntheticSettings

MEMBER = Member("generator-0")
ECHO = (FieldSpec(name="echo", shape=(4,), dtype="float32"),)
POLICY = Emulated(
    EmulatedSettings(base_ms=0, per_sample_ms=0),
    PolicyInterface(observation=ECHO, instructions=("go",), action_dim=4, chunk=2),
)


class Model(EmulatedModel):
    """Answers with what it serves; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(POLICY.settings, POLICY.interface)
        self.calls: list[tuple] = []

    def act(self, observation, keys, explore):
        self.calls.append((keys, explore, {n: len(a) for n, a in observation.items()}))
        return super().act(observation, keys, explore) | {
            "value": np.full(len(keys), self._weights[0], np.float32)
        }

    def values(self, observation):
        self.calls.append(("values", len(observation["task"])))
        return observation["echo"][:, 0] + self._weights[0]


class Weights:
    """Published weights: every number is the version."""

    def read(self, channel: Channel, buffer: int, version: Version):
        return {"weights": np.full(1, version + (100 if channel == "evaluation" else 0), np.float32)}


class Served:
    """A Generator role with a slab."""

    def __init__(self, pad_to=0, initial=None) -> None:
        self.slab = slab_of(ECHO, POLICY.record_spec)
        for row in range(8):
            self.slab["observation.echo"][row] = row
            self.slab["episode"][row] = 20 + row
            self.slab["chunk_index"][row] = np.arange(4) + 10
        self.models: list[Model] = []
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.role = GeneratorRole(
            member=MEMBER,
            build=self.build,
            weights=Weights(),
            slab=self.slab,
            seed=3,
            emit=self.events.put,
            initial=initial,
            pad_to=pad_to,
        )
        self.role.start()
        assert isinstance(self.events.get(timeout=1), MemberReady)

    def build(self) -> Model:
        self.models.append(Model())
        return self.models[-1]

    def load(self, version, channel="rollout") -> None:
        self.role.handle(LoadWeights(member=MEMBER, channel=channel, version=Version(version), buffer=0))
        loaded = self.events.get(timeout=1)
        assert loaded == WeightsLoaded(member=MEMBER, channel=channel, version=Version(version))

    def run(self, *requests, channel="rollout", batch=1) -> InferenceDone:
        self.role.handle(RunInference(member=MEMBER, batch=batch, channel=channel, requests=tuple(requests)))
        done = self.events.get(timeout=1)
        assert isinstance(done, InferenceDone)
        return done


def request(rows, chunks, kind="act", channel="rollout", slot=0) -> Request:
    return Request(slot=Slot(slot), seq=0, kind=kind, channel=channel, rows=tuple(rows), chunks=tuple(chunks))


def test_records_carry_stamp_and_version_and_touch_nothing_else() -> None:
    served = Served()
    served.load(4)
    done = served.run(request([2, 5], [0, 1]), request([3], [2], slot=1), batch=9)
    assert (done.batch, done.version) == (9, 4)
    written = np.zeros((8, 3), bool)
    for row, chunk in ((2, 0), (5, 1), (3, 2)):
        written[row, chunk] = True
        assert served.slab["stamp"][row, chunk] == stamp(20 + row, 10 + chunk)
        assert served.slab["version"][row, chunk] == 4
        assert served.slab["record.value"][row, chunk] == 4
        assert (served.slab["record.action"][row, chunk] == row).all()
    for name in ("stamp", "version", "record.value", "record.log_prob", "record.action"):
        assert (served.slab[name][~written] == UNWRITTEN).all(), name
    ((keys, explore, _),) = served.models[0].calls
    assert [(k.seed, k.episode, k.chunk) for k in keys] == [(3, 22, 10), (3, 25, 11), (3, 23, 12)]
    assert explore


def test_values_go_to_their_rows_and_are_no_actions() -> None:
    served = Served()
    served.load(1)
    served.run(request([6], [3], kind="value"), request([0], [0]), request([4], [1], kind="value"))
    assert served.slab["bootstrap_value"].tolist() == [UNWRITTEN] * 4 + [5, UNWRITTEN, 7, UNWRITTEN]
    assert (served.slab["stamp"][[4, 6]] == UNWRITTEN).all()
    assert served.slab["stamp"][0, 0] == stamp(20, 10)


def test_values_alone() -> None:
    served = Served()
    served.load(1)
    served.run(request([6], [3], kind="value"))
    assert served.models[0].calls == [("values", 1)]


def test_every_batch_has_one_shape_where_it_is_padded() -> None:
    plain, padded = Served(), Served(pad_to=5)
    for served in (plain, padded):
        served.load(1)
        served.run(request([2, 3], [0, 0]), request([4], [1], kind="value"))
    (_, _, sizes), value_call = padded.models[0].calls
    assert set(sizes.values()) == {5}
    assert value_call == ("values", 5)
    assert len(padded.models[0].calls[0][0]) == 5
    for name, array in plain.slab.items():
        assert np.array_equal(array, padded.slab[name]), name


def test_channels_keep_their_own_weights() -> None:
    served = Served()
    served.load(1)
    served.load(1, "evaluation")
    served.load(2)
    assert served.run(request([0], [0])).version == 2
    assert served.run(request([1], [0], channel="evaluation"), channel="evaluation").version == 1
    assert served.slab["record.value"][:2, 0].tolist() == [2, 101]
    assert [call[1] for model in served.models for call in model.calls] == [True, False]


def test_a_pure_evaluation_serves_its_weights_from_the_start() -> None:
    served = Served(initial=(Version(7), {"weights": np.full(1, 7, np.float32)}))
    assert served.events.get(timeout=1) == WeightsLoaded(
        member=MEMBER, channel="evaluation", version=Version(7)
    )
    assert served.run(request([0], [0], channel="evaluation"), channel="evaluation").version == 7


def test_strange_commands_are_refused() -> None:
    with pytest.raises(TypeError, match="a Generator cannot do Stop"):
        Served().role.handle(Stop(reason="", failed=False))


@pytest.mark.parametrize("seed", range(3))
def test_actions_are_applied_where_they_were_asked_for(seed: int) -> None:
    """Batches of random composition and order: each env checks that its action echoes its tag."""
    order = random.Random(seed)
    settings = SyntheticSettings(task="delay", success_at=7)
    driver = Driven(EchoSimulator(settings), slots=((0, 1), (2,), (3, 4, 5)), lanes=2, rows=12, chunks=4)
    for field in POLICY.record_spec:
        driver.slab.setdefault(f"record.{field.name}", np.zeros((12, 4, *field.shape), np.dtype(field.dtype)))
    served: queue.SimpleQueue = queue.SimpleQueue()
    generator = GeneratorRole(
        member=MEMBER,
        build=lambda: POLICY.build("cpu", 0),
        weights=Weights(),
        slab=driver.slab,
        seed=0,
        emit=served.put,
        initial=None,
        pad_to=0,
    )
    driver.start()
    generator.start()
    generator.handle(LoadWeights(member=MEMBER, channel="rollout", version=Version(0), buffer=0))
    driver.begin(*(credit(env=e, row=e, episode=e, state=e) for e in range(6)))
    waiting, ended, episodes, batch = [], 0, 6, 0
    while ended < 30:
        event = driver.events.get(timeout=10)
        if isinstance(event, TrajectoryReady):
            ended += 1
            assert (event.end, event.chunks, event.sub_steps) == ("terminated", 4, 7)
            row = event.row + 6 if event.row < 6 else event.row - 6
            driver.begin(credit(env=event.env, row=row, episode=episodes, state=episodes))
            episodes += 1
            continue
        assert isinstance(event, ObservationReady), event
        waiting.append(event)
        if driver.events.empty() or len(waiting) == 3:
            chosen = order.sample(waiting, order.randint(1, len(waiting)))
            batch += 1
            generator.handle(
                RunInference(
                    member=MEMBER,
                    batch=batch,
                    channel="rollout",
                    requests=tuple(request(e.rows, e.chunks, slot=e.slot) for e in chosen),
                )
            )
            for done in chosen:
                waiting.remove(done)
                driver.role.handle(ApplyActions(member=driver.role._member, slots=((done.slot, done.seq),)))
    driver.role.close()
