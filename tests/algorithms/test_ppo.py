"""Algorithms as objects, and the registry."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from rlvla3.algorithms.api import LossInputs, Rollouts
from rlvla3.algorithms.grouped import GRPO, RLOO, GroupedSettings
from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.algorithms.registry import algorithm_class
from rlvla3.algorithms.reinforce import ReinforcePlusPlus, ReinforcePlusPlusSettings
from rlvla3.errors import UserError


def inputs() -> LossInputs:
    return LossInputs(
        log_prob=torch.tensor([1.5, 0.5]).log().requires_grad_(True),
        behaviour_log_prob=torch.zeros(2),
        proximal_log_prob=torch.zeros(2),
        reference_log_prob=torch.tensor([0.75, 0.5]).log(),
        value=torch.tensor([0.5, 3.0], requires_grad=True),
        behaviour_value=torch.zeros(2),
        entropy=torch.tensor([2.0, 4.0]),
        advantage=torch.tensor([1.0, -1.0]),
        returns=torch.zeros(2),
        mask=torch.ones(2, dtype=torch.bool),
    )


ROLLOUTS = Rollouts(
    reward=torch.tensor([[1.0, 2.0, 3.0], [4.0, 9.0, 9.0]]),
    value=torch.tensor([[0.5, 1.0, 1.5], [2.0, 9.0, 9.0]]),
    bootstrap_value=torch.tensor([2.0, 0.0]),
    length=torch.tensor([3, 1]),
    terminated=torch.tensor([False, True]),
    log_weight=torch.tensor([[2.0, 0.5, 1.0], [1.0, 1.0, 1.0]]).log(),
    reference_gap=torch.tensor([[1.0, 0.0, 2.0], [5.0, 0.0, 0.0]]),
    score=torch.tensor([1.0, 0.0]),
    group=torch.tensor([7, 7]),
)


def test_the_loss_is_the_weighted_sum_of_its_parts() -> None:
    loss, figures = PPO(PPOSettings(value_coefficient=0.5, entropy_coefficient=0.1)).loss(
        inputs(), value_only=False
    )
    # policy −1.2 and .8, value .125 and 2.5, entropy 2 and 4
    torch.testing.assert_close(loss.detach(), torch.tensor([-1.2 + 0.0625 - 0.2, 0.8 + 1.25 - 0.4]))
    torch.testing.assert_close(figures["policy_loss"], torch.tensor([-1.2, 0.8]))
    torch.testing.assert_close(figures["value_loss"], torch.tensor([0.125, 2.5]))


def test_the_kl_from_the_reference_is_added_but_for_k1() -> None:
    plain, _ = PPO(PPOSettings()).loss(inputs(), value_only=False)
    for estimator, expected in (("k1", [0.0, 0.0]), ("k3", [0.2 * (0.5 - 1 + 0.6931472), 0.0])):
        settings = PPOSettings(kl_coefficient=0.2, kl_estimator=estimator)
        assert PPO(settings).needs.reference
        loss, figures = PPO(settings).loss(inputs(), value_only=False)
        torch.testing.assert_close((loss - plain).detach(), torch.tensor(expected))
        assert "reference_kl" in figures


@pytest.mark.parametrize("correction", ["none", "decoupled", "vtrace", "truncated_is", "gaussian"])
def test_what_each_correction_needs(correction) -> None:
    needs = PPO(PPOSettings(correction=correction)).needs
    assert needs.proximal == (correction in ("decoupled", "vtrace"))
    assert needs.linear == (correction != "none")
    assert needs.values and needs.normalised


def test_vtrace_weighs_no_chunk_a_second_time() -> None:
    given = replace(inputs(), proximal_log_prob=torch.tensor([4.0, 0.25]).log())
    loss, figures = PPO(PPOSettings(correction="vtrace", value_coefficient=0)).loss(given, value_only=False)
    # π/π_prox = .375 and 2: −min(.375, .8) and max(2, 1.2)
    torch.testing.assert_close(loss.detach(), torch.tensor([-0.375, 2.0]))
    assert figures["weight_mean"].tolist() == [1.0, 1.0]
    torch.testing.assert_close(figures["ratio_mean"], torch.tensor([1.5, 0.5]))


def test_value_only_holds_the_policy() -> None:
    given = inputs()
    loss, _ = PPO(PPOSettings()).loss(given, value_only=True)
    torch.autograd.backward(loss.sum())
    assert given.log_prob.grad is None or not given.log_prob.grad.any()
    assert given.value.grad.all()


def test_estimates_use_its_own_discounts() -> None:
    found, figures = PPO(PPOSettings(gamma=0.5, gae_lambda=0.5)).estimates(ROLLOUTS)
    torch.testing.assert_close(found.advantage, torch.tensor([[1.59375, 2.375, 2.5], [2.0, 0.0, 0.0]]))
    torch.testing.assert_close(figures["return_mean"], torch.tensor([(2.09375 + 3.375 + 4.0) / 3, 4.0]))


def test_k1_goes_into_the_reward() -> None:
    settings = PPOSettings(gamma=0.5, gae_lambda=0.0, kl_coefficient=0.1, kl_estimator="k1")
    found, _ = PPO(settings).estimates(ROLLOUTS)
    # δ = 1 − .1 + .5 − .5, 2 + .75 − 1, 3 − .2 + 1 − 1.5; 4 − .5 − 2
    torch.testing.assert_close(found.advantage, torch.tensor([[0.9, 1.75, 2.3], [1.5, 0.0, 0.0]]))


def test_grouped_algorithms_need_no_values_and_give_each_chunk_its_trajectory_s_advantage() -> None:
    for kind, advantage in ((GRPO, 0.5 / (0.5 + 1e-6)), (RLOO, 1.0)):
        algorithm = kind(GroupedSettings(group_size=2, replacements=3, score="return"))
        assert not algorithm.needs.values
        assert algorithm.needs.groups.size == 2
        assert algorithm.needs.groups.replacements == 3
        assert algorithm.needs.groups.score == "return"
        found, figures = algorithm.estimates(ROLLOUTS)
        expected = torch.tensor([[advantage] * 3, [-advantage, 0.0, 0.0]])
        torch.testing.assert_close(found.advantage, expected)
        assert figures["group/equal"].tolist() == [0.0, 0.0]
        loss, _ = algorithm.loss(inputs(), value_only=False)
        torch.testing.assert_close(loss.detach(), torch.tensor([-1.2, 0.8]))


def test_reinforce_takes_returns_and_leaves_normalising_to_the_learner() -> None:
    algorithm = ReinforcePlusPlus(ReinforcePlusPlusSettings(gamma=0.5, kl_coefficient=0.1))
    assert algorithm.needs.normalised and not algorithm.needs.values
    found, _ = algorithm.estimates(ROLLOUTS)
    # rewards less .1·gap: .9, 2, 2.8 and 3.5; from the end 2.8, 2 + 1.4, .9 + 1.7
    torch.testing.assert_close(found.advantage, torch.tensor([[2.6, 3.4, 2.8], [3.5, 0.0, 0.0]]))


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(ValidationError, match="dual_clip must be above 1"):
        PPOSettings(dual_clip=0.5)
    with pytest.raises(ValidationError, match="k1"):
        GroupedSettings(kl_estimator="k1")
    with pytest.raises(ValidationError, match="vtrace"):
        ReinforcePlusPlusSettings(correction="vtrace")


def test_registry() -> None:
    assert algorithm_class("ppo") is PPO
    assert algorithm_class("grpo") is GRPO
    assert algorithm_class("rlvla3.algorithms.ppo:PPO") is PPO
    with pytest.raises(UserError, match="did you mean 'ppo'"):
        algorithm_class("pppo")
