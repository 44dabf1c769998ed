"""The virtual runtime itself: what it objects to, that it repeats itself, how fast it is."""

import time

import pytest
import worlds as w

from rlvla3.messages import (
    ApplyActions,
    CancelRequests,
    Member,
    RunInference,
    Slot,
    StartTrajectories,
    TrainMicroBatch,
)
from rlvla3.runtime.virtual import Fault, VirtualRuntime


def tampered(kind, change, settings=None, skip=0):
    """A runtime whose engine's commands of one kind are changed from the ``skip``-th on."""
    runtime = VirtualRuntime(settings or w.settings(), w.costs(), w.workload())
    original, seen = runtime.engine.on, 0

    def on(event, now_s):
        nonlocal seen
        commands = []
        for command in original(event, now_s):
            if isinstance(command, kind):
                seen += 1
                commands += change(command) if seen > skip else [command]
            else:
                commands.append(command)
        return commands

    runtime.engine.on = on
    return runtime


def twice(command):
    return [command, command]


def elsewhere(command):
    return [
        ApplyActions(member=command.member, slots=tuple((Slot((s + 1) % 4), q) for s, q in command.slots))
    ]


def another_seq(command):
    return [ApplyActions(member=command.member, slots=tuple((s, q + 1) for s, q in command.slots))]


@pytest.mark.parametrize(
    ("kind", "change", "complaint"),
    [
        (ApplyActions, twice, "got actions for"),
        (ApplyActions, another_seq, "got actions for"),
        (RunInference, twice, "while it runs another one"),
        (StartTrajectories, twice, "while in use"),
        (TrainMicroBatch, twice, "is trained twice"),
        (
            RunInference,
            lambda c: [c, ApplyActions(member=Member("simulator-0"), slots=((Slot(0), 0),))],
            "got no actions for chunk",
        ),
        (
            RunInference,
            lambda c: [CancelRequests(member=Member("simulator-0"), slots=((Slot(0), 7),), reason="")],
            "was told that 7 is cancelled",
        ),
    ],
)
def test_members_object_to_what_breaks_a_rule(kind, change, complaint):
    with pytest.raises(RuntimeError, match=complaint):
        tampered(kind, change).run()


def test_a_batch_that_is_never_run_is_noticed():
    runtime = tampered(RunInference, lambda command: [])
    runtime.run(until_s=31.0)
    assert runtime.report.replaced == [(Member("generator-0"), "an inference batch has taken more than 30 s")]


def test_a_run_is_a_function_of_its_seed():
    faults = (
        Fault(at_s=0.7, kind="crash", member=Member("simulator-0")),
        Fault(at_s=1.5, kind="hang", member=Member("generator-0")),
    )

    def run(seed):
        return VirtualRuntime(w.settings(), w.costs(), w.workload(), seed=seed, faults=faults).run()

    assert run(1) == run(1)
    assert run(1).seconds != run(2).seconds


@pytest.mark.live  # alone on the machine, because it measures processor time
def test_a_hundred_thousand_requests_take_less_than_five_seconds_of_processor_time():
    settings = w.settings(
        w.topology(simulators=4, envs=8, slots=8),
        train=w.training(batch=160, updates=64, bootstrap="trainer", micro_batch=160),
    )
    runtime = VirtualRuntime(settings, w.costs(train_per_chunk_s=0.0), w.workload())

    def processor_s():
        before_s, requests = time.process_time(), runtime.engine.statistics.requests
        runtime.run(until_s=runtime.report.seconds + 30.0)
        return (time.process_time() - before_s) / (runtime.engine.statistics.requests - requests)

    pieces = [processor_s()]
    while not runtime.engine.stopped:
        pieces.append(processor_s())
    assert runtime.engine.statistics.requests > 100_000
    assert sorted(pieces)[len(pieces) // 2] * 100_000 < 5.0
