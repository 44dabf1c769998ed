"""The emulated policy and the policy registry."""

import time

import numpy as np
import pytest
from pi_worlds import INTERFACE as PI_INTERFACE

from rlvla3.errors import UserError
from rlvla3.policies.api import NoiseKey, PolicyInterface
from rlvla3.policies.emulated import Emulated, EmulatedSettings
from rlvla3.policies.registry import BUILT_IN, policy_class

INTERFACE = PolicyInterface(observation=(), instructions=("go",), action_dim=3, chunk=2)
KEYS = tuple(NoiseKey(seed=0, episode=e, chunk=0) for e in range(2))


def test_it_takes_the_time_of_its_batch_and_answers_the_echo() -> None:
    model = Emulated(EmulatedSettings(base_ms=10, per_sample_ms=5), INTERFACE).build("cpu", 0)
    start_s = time.monotonic()
    record = model.act({"echo": np.array([[1.0, 2.0], [3.0, 4.0]]), "task": np.zeros(2)}, KEYS, True)
    assert time.monotonic() - start_s >= 0.02
    assert record["action"].tolist() == [[[1, 2, 0]] * 2, [[3, 4, 0]] * 2]
    spec = {f.name: f for f in Emulated(EmulatedSettings(), INTERFACE).record_spec}
    assert {n: (a.shape[1:], a.dtype.name) for n, a in record.items()} == {
        n: (f.shape, f.dtype) for n, f in spec.items()
    }


def test_echo_must_fit_an_action() -> None:
    model = Emulated(EmulatedSettings(base_ms=0, per_sample_ms=0), INTERFACE).build("cpu", 0)
    with pytest.raises(ValueError, match="echo has 4 numbers"):
        model.act({"echo": np.zeros((2, 4))}, KEYS, True)


def test_weights_are_copied() -> None:
    model = Emulated(EmulatedSettings(weight_count=2), INTERFACE).build("cpu", 0)
    weights = {"weights": np.array([1.0, 2.0], np.float32)}
    model.load_arrays(weights)
    weights["weights"][:] = 0
    assert model.arrays()["weights"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", list(BUILT_IN))
def test_built_in_policies_construct_from_default_settings(kind) -> None:
    family = policy_class(kind)
    interface = PI_INTERFACE if kind.startswith("pi") else INTERFACE
    policy = family(family.Settings(), interface)
    assert {"action", "log_prob", "value"} <= {field.name for field in policy.record_spec}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tinny", "did you mean 'tiny'"),
        ("nowhere.at_all:Thing", "no module 'nowhere'"),
        ("rlvla3.policies.tiny:Tinny", "has no attribute 'Tinny'"),
    ],
)
def test_unknown_policies_are_one_clear_line(kind, message) -> None:
    with pytest.raises(UserError, match=message):
        policy_class(kind)


def test_out_of_tree_policies_load_by_path() -> None:
    assert policy_class("rlvla3.policies.emulated:Emulated") is Emulated
