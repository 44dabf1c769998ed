"""PPO as an algorithm object, and the registry."""

import pytest
import torch

from rlvla3.algorithms.api import LossInputs, Rollouts
from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.algorithms.registry import algorithm_class
from rlvla3.errors import UserError


def inputs() -> LossInputs:
    return LossInputs(
        log_prob=torch.tensor([1.5, 0.5]).log().requires_grad_(True),
        behaviour_log_prob=torch.zeros(2),
        proximal_log_prob=torch.zeros(2),
        value=torch.tensor([0.5, 3.0], requires_grad=True),
        behaviour_value=torch.zeros(2),
        entropy=torch.tensor([2.0, 4.0]),
        advantage=torch.tensor([1.0, -1.0]),
        returns=torch.zeros(2),
        mask=torch.ones(2, dtype=torch.bool),
    )


def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    loss, metrics = PPO(PPOSettings(value_coefficient=0.5, entropy_coefficient=0.1)).loss(
        inputs(), value_only=False
    )
    # policy (−1.2 + .8)/2, value 1.3125, entropy 3
    assert float(loss.detach()) == pytest.approx(-0.2 + 0.5 * 1.3125 - 0.3)
    assert {k: round(float(v), 4) for k, v in metrics.items() if k.endswith("_loss")} == {
        "policy_loss": -0.2,
        "value_loss": 1.3125,
    }


@pytest.mark.parametrize("correction", ["none", "decoupled"])
def test_only_the_decoupled_correction_asks_for_a_proximal_policy(correction) -> None:
    assert PPO(PPOSettings(correction=correction)).needs.proximal == (correction == "decoupled")


def test_value_only_holds_the_policy() -> None:
    given = inputs()
    loss, _ = PPO(PPOSettings()).loss(given, value_only=True)
    torch.autograd.backward(loss)
    assert given.log_prob.grad is None or not given.log_prob.grad.any()
    assert given.value.grad.all()


def test_estimates_use_its_own_discounts() -> None:
    rollouts = Rollouts(
        reward=torch.tensor([[1.0, 2.0, 3.0]]),
        value=torch.tensor([[0.5, 1.0, 1.5]]),
        bootstrap_value=torch.tensor([2.0]),
        length=torch.tensor([3]),
        terminated=torch.tensor([False]),
    )
    found, metrics = PPO(PPOSettings(gamma=0.5, gae_lambda=0.5)).estimates(rollouts)
    torch.testing.assert_close(found.advantage, torch.tensor([[1.59375, 2.375, 2.5]]))
    assert metrics["return_mean"] == pytest.approx((2.09375 + 3.375 + 4.0) / 3)


def test_registry() -> None:
    assert algorithm_class("ppo") is PPO
    assert algorithm_class("rlvla3.algorithms.ppo:PPO") is PPO
    with pytest.raises(UserError, match="did you mean 'ppo'"):
        algorithm_class("pppo")
