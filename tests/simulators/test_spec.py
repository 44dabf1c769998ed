"""What a simulator says of itself has to hold together, whoever wrote it."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from rlvla3.roles.slab import misfit
from rlvla3.simulators.api import SimulatorSpec
from rlvla3.simulators.registry import simulator_class
from rlvla3.transforms.meaning import Meaning


def reach() -> SimulatorSpec:
    cls = simulator_class("synthetic")
    spec: SimulatorSpec = cls(cls.Settings.model_validate({"task": "reach"})).spec
    return spec


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"observation": ()},
            "observation must have one field or more, each with a name of its own; it has []",
        ),
        ({"observation": reach().observation[:1] * 2}, "it has ['image', 'image']"),
        ({"action_dim": 0, "meaning": None}, "action_dim must be 1 or more; it is 0"),
        ({"tasks": ()}, "tasks must be one name or more, all different; they are ()"),
        ({"tasks": "push"}, "tasks must be one name or more, all different; they are 'push'"),
        ({"tasks": ("a", "b"), "instructions": ("a",), "step_limits": (1, 1)}, "they are 2, 1 and 2"),
        ({"tasks": ("a", "a")}, "all different; they are ('a', 'a')"),
        ({"tasks": ("a",), "instructions": ("a",), "step_limits": (-1,)}, "step_limits must be 0 or more"),
        ({"fingerprint": {"x": object(), "y": 1}}, "true or false; x is none of these"),
        ({"meaning": Meaning(cameras=(), state={}, action=())}, "; mend its meaning"),
    ],
)
def test_a_spec_that_contradicts_itself_is_told(changes: dict[str, Any], fault: str) -> None:
    assert list(reach().faults()) == []
    assert any(fault in found for found in dataclasses.replace(reach(), **changes).faults())


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (np.zeros((2, 3), np.float32), ""),
        (np.zeros((1, 3), np.float32), "is float32 [1, 3], the simulator's spec says float32 [2, 3]"),
        (np.zeros(3, np.float32), "is float32 [3], the simulator's spec says float32 [2, 3]"),
        (np.zeros((2, 3)), "is float64 [2, 3], the simulator's spec says float32 [2, 3]"),
        (np.full((2, 3), np.inf, np.float32), "holds inf"),
        ([[0.0] * 3] * 2, "is list, which is no array"),
    ],
)
def test_an_observation_is_what_the_spec_says(value: Any, wrong: str) -> None:
    assert misfit(value, np.zeros((5, 4, 2, 3), np.float32)) == wrong
