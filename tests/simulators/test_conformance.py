"""Every adapter of this package keeps the rules of ``rlvla3.conformance``; others run them over theirs."""

import dataclasses
from importlib.util import find_spec

import pytest

from rlvla3.conformance import CHECKS, LIVE, Profile, Subject

pytestmark = pytest.mark.parallel
SPLITS = ("train", "held_out", "demonstration")
ADAPTERS = {
    "delay": ("synthetic", {"task": "delay", "mean_ms": [0.01, 0.02], "latency": "log_normal", "cv": 0.5}),
    "reach": ("synthetic", {"task": "reach"}),
    "solved": ("synthetic", {"task": "reach", "solved_states": [0, 2]}),
    "pendulum": ("gymnasium", {"env_id": "Pendulum-v1"}),
    "metaworld": ("metaworld", {"image_size": 32}),
    "maniskill": ("maniskill", {"tasks": ["PickCube-v1", "PushCube-v1"], "image_size": 32}),
    "maniskill_state": ("maniskill", {"observation": "state", "control": "pd_ee_delta_pos"}),
    "pusht-state": ("gymnasium", {"env_id": "gym_pusht/PushT-v0", "arguments": {"obs_type": "state"}}),
    "pusht-pixels": (
        "gymnasium",
        {
            "env_id": "gym_pusht/PushT-v0",
            "arguments": {"obs_type": "environment_state_agent_pos"},
            "observation": {
                "images": {"image": {"source": "_render()", "size": 64}},
                "state": ["agent_pos"],
            },
            "expert": "pusht",
        },
    ),
    "libero": ("libero", {"tasks": [0, 7], "image_size": 32}),
    "robocasa": ("robocasa", {"image_size": 48, "kitchens": {split: [[1, 1]] for split in SPLITS}}),
}


def needing(package, extra):
    """Marks of a simulator that is skipped where it is not installed."""
    missing = find_spec(package) is None
    reason = f"{package} is not installed: pip install 'rlvla3[{extra}]'"
    return (getattr(pytest.mark, extra), pytest.mark.skipif(missing, reason=reason))


IN_ITS_ENVIRONMENT = pytest.mark.skipif(
    find_spec("robocasa") is None, reason="test_robocasa.py runs these in RoboCasa's own environment"
)
PARAMETERS = [
    "delay",
    "reach",
    "solved",
    pytest.param("pendulum", marks=pytest.mark.metaworld),
    pytest.param("metaworld", marks=pytest.mark.metaworld),
    pytest.param("maniskill", marks=pytest.mark.maniskill),
    pytest.param("maniskill_state", marks=pytest.mark.maniskill),
    pytest.param("pusht-state", marks=(pytest.mark.pusht, pytest.mark.live)),
    pytest.param("pusht-pixels", marks=(pytest.mark.pusht, pytest.mark.live)),
    pytest.param("libero", marks=needing("libero", "libero")),
    pytest.param("robocasa", marks=[pytest.mark.robocasa, IN_ITS_ENVIRONMENT]),
]
PROFILES = {
    "delay": Profile(images=(), seeded=False, deadline_s=2),
    "reach": Profile(lift=(0, 1), deadline_s=2),
    "solved": Profile(lift=(0, 1), deadline_s=2),
    "pendulum": Profile(deadline_s=5),
    "metaworld": Profile(lift=(0, 0, 1, 0), deadline_s=10),
    "pusht-state": Profile(deadline_s=5),
    "pusht-pixels": Profile(deadline_s=5, lift=(0, -1)),
    "maniskill": Profile(lift=(0, 0, 1, 0, 0, 0, 0), deadline_s=60),
    "maniskill_state": Profile(deadline_s=60),
    "libero": Profile(lift=(0, 0, 1, 0, 0, 0, 0), deadline_s=120),
    "robocasa": Profile(lift=(0, 0, 1, *[0] * 9), deadline_s=30),
}
"""What the checks cannot find out by themselves; an adapter without an entry has the defaults."""
MANY_RESETS = 200
UNSAID = ("delay", "pendulum", "pusht-state", "pusht-pixels")
"""What nobody can say of any environment, or of one that only emulates latencies."""


def subject(name: str, **changes: object) -> Subject:
    kind, settings = ADAPTERS[name]
    return Subject(kind, settings, dataclasses.replace(PROFILES.get(name, Profile()), **changes))


def checks() -> list:
    return [pytest.param(name, marks=pytest.mark.live if name in LIVE else ()) for name in CHECKS]


@pytest.mark.parametrize("check", checks())
@pytest.mark.parametrize("name", PARAMETERS)
def test_an_adapter_keeps_the_rule(name: str, check: str) -> None:
    with subject(name) as adapter:
        CHECKS[check](adapter)


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.parametrize("name", PARAMETERS)
def test_memory_is_flat_over_many_resets(name: str) -> None:
    with subject(name, resets=MANY_RESETS) as adapter:
        CHECKS["memory_is_flat_over_resets"](adapter)


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_the_fields_mean_agrees_with_the_fields(name: str) -> None:
    with subject(name) as adapter:
        spec = adapter.spec
        if name in UNSAID:
            assert spec.meaning is None
        else:
            assert spec.meaning.faults(spec.observation, spec.action_dim) == []
