"""Every scheduling rule over random worlds: topologies, modes, lengths, costs and faults."""

import json
import os
import random

import engine_rules
import worlds as w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlvla3.core.batcher import ORDERS
from rlvla3.core.sampling import LAWS
from rlvla3.core.settings import SlotSettings, Topology
from rlvla3.messages import Env, Member, Slot
from rlvla3.runtime.virtual import Fault

THOROUGH = int(os.environ.get("RLVLA3_THOROUGH", "1"))
"""Multiplies the number of random worlds."""


def worlds_tried(examples):
    return settings(
        max_examples=examples * THOROUGH,
        deadline=None,
        derandomize=THOROUGH == 1,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@st.composite
def topologies(draw, simulators=3, generators=3):
    slots, env = [], 0
    names = [Member(f"simulator-{i}") for i in range(draw(st.integers(1, simulators)))]
    stages = draw(st.integers(1, 2))
    for member in names:
        for stage in range(stages):
            for size in draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)):
                envs = tuple(Env(e) for e in range(env, env + size))
                slots.append(SlotSettings(slot=Slot(len(slots)), member=member, envs=envs, stage=stage))
                env += size
    return Topology(
        simulators=tuple(names),
        generators=tuple(Member(f"generator-{i}") for i in range(draw(st.integers(1, generators)))),
        trainers=tuple(Member(f"trainer-{i}") for i in range(draw(st.integers(1, 3)))),
        slots=tuple(slots),
    )


@st.composite
def batchings(draw, topology):
    generators = len(topology.generators)
    return w.batching(
        max_batch_size=max(len(s.envs) for s in topology.slots) + draw(st.integers(0, 6)),
        batch_timeout_s=draw(st.sampled_from([0.0, 0.01, 0.05, 0.5])),
        linger_s=draw(st.sampled_from([0.0, 0.004, 0.02])),
        order=ORDERS[draw(st.sampled_from(sorted(ORDERS)))],
        lockstep=draw(st.booleans()),
        routing=draw(st.sampled_from(["pinned", "least_loaded", "any"])),
        pins={s.slot: draw(st.integers(0, generators - 1)) for s in topology.slots},
    )


@st.composite
def tasks(draw):
    return w.tasks(
        *(1.0, 2.0, 1.0),
        sampling=draw(st.sampled_from(sorted(LAWS))),
        order=tuple(draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))),
        floor=draw(st.sampled_from([0.05, 1.0])),
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def trainings(draw, **fixed):
    size = draw(st.integers(1, 3))
    values = {
        "batch": size * draw(st.integers(1, 6)),
        "group_size": size,
        "group_score": draw(st.sampled_from(["success", "return"])),
        "group_replacements": draw(st.integers(0, 2)),
        "ordered": draw(st.booleans()),
        "max_lag": draw(st.integers(0, 3)),
        "on_stale": draw(st.sampled_from(["wait", "drop"])),
        "micro_batch": size * draw(st.integers(1, 6)),
        "updates": draw(st.integers(1, 12)),
        "bootstrap": draw(st.sampled_from(["generator", "trainer"])),
        "checkpoint_every": draw(st.integers(0, 2)),
        "max_skipped": 1000,
        "step_limits": (0, 0, 0),
        "tasks": draw(tasks()),
    }
    return w.training(**(values | fixed))


def heavy_tail(task, episode):
    return 1 + min(60, int(random.Random(episode).paretovariate(0.9)))


LENGTHS = {
    "one": lambda task, episode: 1,
    "fixed": lambda task, episode: 4,
    "heavy": heavy_tail,
    "tasks": lambda task, episode: (1, 5, 25)[task],
}


SUCCESSES = {
    "always": lambda task, episode: True,
    "never": lambda task, episode: False,
    "tasks": lambda task, episode: task == 0 or episode % 3 == task,
    "odd": lambda task, episode: episode % 2 == 1,
}


@st.composite
def workloads(draw, whole):
    """``whole``: trajectories are episodes."""
    return w.workload(
        chunk=draw(st.integers(1, 2)),
        max_chunks=10**6 if whole else draw(st.sampled_from([3, 7, 10**6])),
        episode_chunks=LENGTHS[draw(st.sampled_from(sorted(LENGTHS)))],
        success=SUCCESSES[draw(st.sampled_from(sorted(SUCCESSES)))],
        lanes=draw(st.integers(1, 3)),
        streaming=draw(st.booleans()),
    )


@st.composite
def costs(draw):
    return w.costs(
        sub_step_s=draw(st.sampled_from([0.002, 0.005, 0.02])),
        sub_step_cv=draw(st.sampled_from([0.0, 1.0, 3.0])),
        inference_s=draw(st.sampled_from([0.001, 0.02])),
        train_per_chunk_s=draw(st.sampled_from([0.0, 0.002, 0.05])),
        publish_s=draw(st.sampled_from([0.0, 0.03])),
        load_s=draw(st.sampled_from([0.0, 0.03])),
        reset_s=draw(st.sampled_from([0.0, 0.02])),
        message_s=draw(st.sampled_from([0.0, 0.001])),
    )


@st.composite
def faults(draw, topology, kinds, most=5):
    found = []
    members = topology.simulators + topology.generators
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=most)):
        member = draw(st.sampled_from(members)) if kind in ("crash", "hang", "stuck") else Member("")
        at_s = draw(st.floats(0.0, 3.0, allow_nan=False))
        found.append(Fault(at_s=at_s, kind=kind, member=member))
    return tuple(found)


@st.composite
def runs(draw, kinds=("crash", "hang", "stuck", "skip_update"), evaluate=False, **training):
    """Arguments of ``engine_rules.run``."""
    topology = draw(topologies())
    evaluation = w.evaluation()
    if evaluate:
        evaluation = w.evaluation(
            draw(st.integers(1, 7)),
            every_versions=draw(st.integers(1, 2)),
            at_start=draw(st.booleans()),
            max_envs=draw(st.integers(1, 4)),
        )
    watch = w.health(
        heartbeat_timeout_s=2.5,
        startup_timeout_s=4.0,
        step_timeout_s=3.0,
        inference_timeout_s=3.0,
        start_attempts=draw(st.sampled_from([1, 2, 1000])),
        recycle_after=draw(st.sampled_from([0, 0, 1, 5])),
    )
    train = draw(trainings(**training))
    return {
        "settings": w.settings(topology, draw(batchings(topology)), train, evaluation, watch),
        "costs": draw(costs()),
        "workload": draw(workloads(whole=train.group_size > 1)),
        "seed": draw(st.integers(0, 3)),
        "faults": draw(faults(topology, kinds)) if kinds else (),
        "start_s": draw(st.sampled_from([0.0, 0.7])),
        "restart_s": draw(st.sampled_from([0.0, 0.7])),
        "reap_s": draw(st.sampled_from([0.0, 0.15])),
    }


def ends_well(report, settings):
    assert not report.stop.failed, report.stop
    assert report.stop.reason == f"all {settings.training.updates} versions are trained"


@worlds_tried(250)
@given(runs())
def test_any_world_keeps_the_rules_and_reaches_its_updates(arguments):
    report, _, runtime = engine_rules.run(**arguments)
    training = arguments["settings"].training
    ends_well(report, arguments["settings"])
    assert runtime.engine.statistics.trained == training.batch * training.updates
    if training.on_stale == "wait":
        assert "stale" not in runtime.engine.statistics.dropped


@worlds_tried(40)
@given(runs(evaluate=True))
def test_evaluation_reports_every_start_once_whatever_happens(arguments):
    report, _, runtime = engine_rules.run(**arguments)
    settings = arguments["settings"]
    ends_well(report, settings)
    evaluation = settings.evaluation
    versions = [r.version for r in report.evaluations]
    assert versions == sorted(set(versions))
    due = [v for v in range(settings.training.updates + 1) if v % evaluation.every_versions == 0]
    due = [v for v in due if v > 0 or evaluation.at_start]
    assert len(versions) + runtime.engine.evaluation.skipped == len(due)
    if due and due[-1] == settings.training.updates:
        assert versions[-1] == due[-1]
    numbers = {t.episode for t in report.trained}
    assert not numbers & {t.episode for r in report.evaluations for t in r.trajectories}


@worlds_tried(40)
@given(runs(kinds=("crash", "stop"), checkpoint_every=1), st.data())
def test_resume_from_any_checkpoint_keeps_the_rules(arguments, data):
    settings = arguments["settings"]
    training = settings.training
    report, _, _ = engine_rules.run(**arguments)
    assert not report.stop.failed
    if not report.checkpoints:
        return
    version, state = data.draw(st.sampled_from(report.checkpoints))
    before = {(t.episode, t.first_chunk) for t in report.trained[: version * training.batch]}
    again, _, runtime = engine_rules.run(**arguments | {"faults": (), "state": json.loads(state)})
    ends_well(again, settings)
    assert not before & {(t.episode, t.first_chunk) for t in again.trained}
    assert runtime.engine.incarnation == 1
    assert runtime.engine.statistics.trained == training.batch * training.updates
    assert len(again.trained) == training.batch * (training.updates - version)


@worlds_tried(30)
@given(runs(kinds=("crash", "stuck", "hang"), max_lag=0))
def test_without_lag_everything_is_on_policy(arguments):
    report, _, _ = engine_rules.run(**arguments)
    ends_well(report, arguments["settings"])
    assert report.lags == [0] * len(report.lags)
