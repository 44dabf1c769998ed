"""Every way to choose actions, and every way to train a part, learns: a one-step problem by its reward."""

from typing import Any

import bandit
import pytest

from rlvla3.algorithms.ppo import PPO, PPOSettings
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.policies.building import build_model
from rlvla3.policies.settings import LoraSettings, ModelSettings
from rlvla3.policies.tiny import Tiny, TinySettings

BFLOAT16: dict[str, Any] = {"precision": "bfloat16", "activation_checkpointing": True}


def learner(head: dict[str, Any], around: dict[str, Any]) -> Reinforcement:
    policy = Tiny(TinySettings(**{**bandit.SMALL.model_dump(), **head}), bandit.INTERFACE)
    model = build_model(policy, ModelSettings(**around), "cpu", 0, "train")
    settings = ReinforcementSettings(lr=3e-3, value_warm_up=0, minibatch=64)
    return Reinforcement(model, PPO(PPOSettings(gamma=0.0)), settings, seed=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("head", "around"),
    [
        ({"method": "sde", "window": 4, "denoise_reduce": "mean"}, {}),
        ({"method": "cps", "noise_level": 0.5, "window": 2}, {}),
        ({"method": "noise", "noise_std": (0.1, 0.4)}, {}),
        ({"head": "tokens", "ratio_level": "token_level"}, {}),
        ({}, {"lora": LoraSettings(rank=4)}),
        ({}, {"lora": LoraSettings(rank=4), "publish": "trained", **BFLOAT16}),
        (
            {"head": "tokens", "ratio_level": "token_level"},
            {"lora": LoraSettings(rank=4, train=("token_out",))},
        ),
    ],
)
def test_reward_rises(head, around) -> None:
    trained = learner(head, around)
    rewards = []
    for update in range(12):
        trained.ingest(*bandit.rollout(trained.model, 48, 2, version=trained.version, first=48 * update))
        rewards.append(trained.update().metrics["reward_mean"])
    assert rewards[-1] > rewards[0] + 0.3 * abs(rewards[0]), rewards
