"""π0 and π0.5 agree with the reference implementation on equal weights and noise (tools/fixtures/pi.py)."""

import json
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixture_weights import told, weight

from rlvla3.policies import flow
from rlvla3.policies.blocks.sizes import GemmaSizes, VisionSizes
from rlvla3.policies.pi.network import Pi0Network, Pi05Network
from rlvla3.policies.pi.settings import Pi0Settings, Pi05Settings
from rlvla3.policies.pi.sizes import FULL, PiSizes

FIXTURES = Path(__file__).parent / "fixtures"
HORIZON, STEPS = 4, 4
SIZES = PiSizes(
    vision=VisionSizes(width=32, depth=2, mlp=48, heads=4, patch=14, image=28),
    language=GemmaSizes(width=48, depth=3, mlp=64, heads=8, groups=1, head_size=8),
    expert=GemmaSizes(width=32, depth=3, mlp=40, heads=8, groups=1, head_size=8),
    vocabulary=64,
    state_width=6,
    action_width=5,
    horizon=HORIZON,
    value_head=(8,),
)
FAMILIES = {"pi0": (Pi0Network, Pi0Settings), "pi05": (Pi05Network, Pi05Settings)}
UNUSED = ("lm_head.",)
"""Parameters of the reference that no action needs."""


class Given:
    """What a network reads, as the fixture has it, in place of a simulator's observations."""

    horizon, state_size, action_size = HORIZON, 6, 5

    def __init__(self, arrays):
        self.arrays = arrays

    def pictures(self, observation):
        views = (self.arrays[name].transpose(0, 2, 3, 1) for name in ("front", "wrist"))
        return [np.ascontiguousarray(view) for view in views], [True, False]

    def state(self, observation):
        return self.arrays["state"]

    def instruction_tokens(self, observation):
        return self.arrays["tokens"], self.arrays["there"]

    def state_tokens(self, observation, state):
        return self.instruction_tokens(observation)


def network(family, arrays, **settings):
    """The small network with the fixture's weights."""
    network_class, settings_class = FAMILIES[family]
    interface = SimpleNamespace(chunk=HORIZON, action_dim=5, instructions=("",))
    chosen = settings_class(denoise_steps=STEPS, **settings)
    made = network_class(chosen, SIZES, interface, Given(arrays))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if not name.startswith("value_head"):
                parameter.copy_(torch.from_numpy(weight(name, tuple(parameter.shape))))
    return made


@pytest.fixture(params=FAMILIES)
def case(request):
    with np.load(FIXTURES / f"{request.param}.npz") as file:
        arrays = dict(file)
    return request.param, arrays, {"elapsed": np.zeros(2, np.float32), "task": np.zeros(2, np.int64)}


def test_sampled_actions_are_the_references(case):
    family, arrays, observation = case
    made = network(family, arrays)
    with torch.inference_mode():
        context = made.context(observation)
        x = torch.from_numpy(arrays["noise"])
        for step in range(STEPS):
            time = torch.full((2, 1), 1.0 - step / STEPS)
            x = flow.ode_mean(x, made.predict(x[:, None], time, context)[0][:, 0], STEPS)
    np.testing.assert_allclose(x.numpy(), arrays["sampled"], atol=1e-5, rtol=1e-5)


def test_loss_and_gradients_are_the_references(case):
    family, arrays, observation = case
    made = network(family, arrays)
    actions, noise, time = (torch.from_numpy(arrays[name]) for name in ("actions", "noise", "time"))
    x, goal = flow.imitation_pair(actions, noise, time)
    velocity = made.predict(x[:, None], time[:, None], made.context(observation))[0][:, 0]
    loss = (velocity - goal).square()
    np.testing.assert_allclose(loss.detach().numpy(), arrays["loss"], atol=1e-5, rtol=1e-5)
    loss.mean().backward()
    wanted = dict(zip(arrays["gradient_names"].tolist(), arrays["gradients"], strict=True))
    found = {
        name: told(p.grad.numpy(), name)
        for name, p in made.named_parameters()
        if p.grad is not None and not name.startswith("value_head")
    }
    # The reference runs the whole last block of the prefix, of which nothing but keys and values is read.
    idle = {name for name, (length, _) in wanted.items() if length == 0}
    assert found.keys() == wanted.keys() - idle
    largest = max(length for length, _ in wanted.values())
    for name, numbers in found.items():
        np.testing.assert_allclose(numbers, wanted[name], atol=1e-5 * largest, rtol=1e-4, err_msg=name)


def test_samples_of_one_observation_do_not_see_each_other(case):
    family, arrays, observation = case
    made = network(family, arrays)
    with torch.no_grad():
        context = made.context(observation)
        x = torch.randn(2, 3, HORIZON, 5)
        time = torch.tensor([[0.1, 0.5, 1.0]]).expand(2, 3)
        together = made.predict(x, time, context)[0]
        alone = torch.cat(
            [made.predict(x[:, i : i + 1], time[:, i : i + 1], context)[0] for i in range(3)], dim=1
        )
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "billions", "share"), [("pi0", 3.24, 0.02), ("pi05", 3.3, 0.03)])
def test_the_full_size_has_the_names_and_shapes_of_the_reference(family, billions, share):
    network_class, settings_class = FAMILIES[family]
    interface = SimpleNamespace(chunk=50, action_dim=7, instructions=("",))
    processing = SimpleNamespace(horizon=50, state_size=8, action_size=7)
    with torch.device("meta"):
        made = network_class(settings_class(), FULL, interface, processing)
    found = {name: list(p.shape) for name, p in made.named_parameters() if not name.startswith("value_head")}
    wanted = json.loads((FIXTURES / f"{family}_full.json").read_text())
    assert found == {name: shape for name, shape in wanted.items() if not any(u in name for u in UNUSED)}
    assert sum(map(prod, found.values())) == pytest.approx(billions * 1e9, rel=share)
