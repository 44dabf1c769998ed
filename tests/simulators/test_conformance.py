"""What every simulator adapter must keep; run over all of them."""

import hashlib
import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from rlvla3.messages import Start
from rlvla3.simulators.chunking import SerialBatch, chunk_step
from rlvla3.simulators.registry import simulator_class

SPLITS = ("train", "held_out", "demonstration")
ADAPTERS = {
    "delay": ("synthetic", {"task": "delay", "mean_ms": [0.01, 0.02], "latency": "log_normal", "cv": 0.5}),
    "reach": ("synthetic", {"task": "reach"}),
    "pendulum": ("gymnasium", {"env_id": "Pendulum-v1"}),
    "metaworld": ("metaworld", {"image_size": 32}),
    "libero": ("libero", {"tasks": [0, 4], "image_size": 32}),
}


def needing(package, extra):
    """Marks of a simulator that is skipped where it is not installed."""
    missing = importlib.util.find_spec(package) is None
    reason = f"{package} is not installed: pip install 'rlvla3[{extra}]'"
    return (getattr(pytest.mark, extra), pytest.mark.skipif(missing, reason=reason))


PARAMETERS = [
    "delay",
    "reach",
    pytest.param("pendulum", marks=pytest.mark.metaworld),
    pytest.param("metaworld", marks=pytest.mark.metaworld),
    pytest.param("libero", marks=needing("libero", "libero")),
]


def build(name, **changes):
    kind, settings = ADAPTERS[name]
    cls = simulator_class(kind)
    return cls(cls.Settings.model_validate({**settings, **changes}))


@pytest.fixture
def make():
    envs = []

    def make_env(name, **changes):
        simulator = build(name, **changes)
        envs.append(simulator.make())
        return simulator, envs[-1]

    yield make_env
    for env in envs:
        env.close()


def fingerprint_of_episode(env, start, actions):
    """Hash of every observation and outcome."""
    digest = hashlib.sha256()
    env.reset(start, 0)
    for action in (None, *actions):
        if action is not None:
            digest.update(repr(env.step(action)).encode())
        for name, array in sorted(env.observe().items()):
            digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def actions_of(simulator, count=6):
    random = np.random.default_rng(1)
    return random.uniform(-1, 1, (count, simulator.spec.action_dim)).astype(np.float32)


def last_task(simulator):
    return len(simulator.spec.tasks) - 1


@pytest.mark.parametrize("name", PARAMETERS)
def test_observations_are_as_specified(name, make):
    simulator, env = make(name)
    spec = simulator.spec
    assert len(spec.tasks) == len(spec.instructions) == len(spec.step_limits)
    for task in range(len(spec.tasks)):
        env.reset(Start(task=task, split="train", state=0), 0)
        observation = env.observe()
        assert set(observation) == {field.name for field in spec.observation}
        for field in spec.observation:
            assert observation[field.name].shape == field.shape
            assert observation[field.name].dtype == np.dtype(field.dtype)


@pytest.mark.parametrize("name", PARAMETERS)
def test_equal_starts_give_equal_episodes_whatever_happened_before(name, make):
    simulator, env = make(name)
    actions = actions_of(simulator)
    start = Start(task=last_task(simulator), split="train", state=7)
    first = fingerprint_of_episode(env, start, actions)
    fingerprint_of_episode(env, Start(task=0, split="held_out", state=3), -actions)
    assert fingerprint_of_episode(env, start, actions) == first
    _, other = make(name)
    assert fingerprint_of_episode(other, start, actions) == first
    # Interleaved envs of one thread must not touch each other.
    env.reset(start, 0)
    other.reset(Start(task=start.task, split="train", state=8), 0)
    env.step(actions[0])
    other.step(-actions[0])
    alone = {k: v.copy() for k, v in env.observe().items()}
    env.reset(start, 0)
    env.step(actions[0])
    for field, array in env.observe().items():
        np.testing.assert_array_equal(array, alone[field])


_IN_ANOTHER_PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from test_conformance import *
simulator = build({name!r})
env = simulator.make()
start = Start(task=last_task(simulator), split="train", state=7)
sys.stdout.write(fingerprint_of_episode(env, start, actions_of(simulator)))
env.close()
"""


@pytest.mark.live
@pytest.mark.parametrize("name", PARAMETERS)
def test_equal_starts_give_equal_episodes_in_another_process(name, make):
    simulator, env = make(name)
    start = Start(task=last_task(simulator), split="train", state=7)
    here = fingerprint_of_episode(env, start, actions_of(simulator))
    code = _IN_ANOTHER_PROCESS.format(folder=__file__.rsplit("/", 1)[0], name=name)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == here, run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("name", PARAMETERS)
def test_states_and_splits_differ(name, make):
    _, env = make(name)
    seen = {}
    for split in SPLITS:
        for state in (0, 1, 49, 50, 51, 120):
            env.reset(Start(task=0, split=split, state=state), 0)
            env.step(np.zeros(build(name).spec.action_dim, np.float32))
            privileged = getattr(env, "privileged", None)
            arrays = env.observe().values() if privileged is None else [privileged]
            key = b"".join(array.tobytes() for array in arrays)
            assert key not in seen, f"{split} {state} equals {seen[key]}"
            seen[key] = (split, state)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("limit_is", ["terminated", "truncated"])
@pytest.mark.parametrize("limit", [1, 4, 5, 7])
def test_step_limit_is_exact(name, limit, limit_is, make):
    simulator, env = make(name, limit_is=limit_is)
    batch = SerialBatch([env])
    batch.reset(0, Start(task=0, split="train", state=0), limit)
    executed = 0
    for _ in range(10):
        actions = np.zeros((1, 5, simulator.spec.action_dim), np.float32)
        [result] = chunk_step(batch, [0], actions)
        executed += result.sub_steps
        if result.terminated or result.truncated:
            break
    assert executed == limit
    assert (result.terminated, result.truncated) == (limit_is == "terminated", limit_is == "truncated")


@pytest.mark.parametrize("name", PARAMETERS)
def test_actions_are_clipped(name, make):
    simulator, env = make(name)
    start = Start(task=0, split="train", state=2)
    huge = np.full((3, simulator.spec.action_dim), 9, np.float32)
    assert fingerprint_of_episode(env, start, huge) == fingerprint_of_episode(env, start, huge / 9)


@pytest.mark.parametrize("name", ["reach", pytest.param("metaworld", marks=pytest.mark.metaworld)])
def test_expert_succeeds(name, make):
    simulator, env = make(name)
    expert = simulator.expert(env)
    for task in range(len(simulator.spec.tasks)):
        successes = 0
        for state in range(5):
            env.reset(Start(task=task, split="held_out", state=state), 0)
            for _ in range(150):
                action = expert.act()
                assert action.dtype == np.float32 and np.abs(action).max() <= 1
                step = env.step(action)
                if step.terminated or step.truncated:
                    break
            successes += step.success and step.terminated
        assert successes >= 4


@pytest.mark.live
@pytest.mark.parametrize("name", PARAMETERS)
def test_torch_is_not_imported(name):
    kind, settings = ADAPTERS[name]
    code = (
        "import sys\nfrom rlvla3.simulators.registry import simulator_class\n"
        "import rlvla3.simulators.chunking, rlvla3.demonstrations, rlvla3.video\n"
        f"cls = simulator_class({kind!r}); simulator = cls(cls.Settings.model_validate({settings!r}))\n"
        "simulator.spec; env = simulator.make(); env.close()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
