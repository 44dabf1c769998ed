"""Proximal policy optimisation with a chunk-level actor and critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from rlvla3.algorithms.api import Estimates, LossInputs, Needs, Rollouts
from rlvla3.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


class PPOSettings(Settings):
    """Settings of PPO."""

    gamma: float = Field(default=0.97, ge=0, le=1)
    """Discount of one chunk."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """λ of generalised advantage estimation, for each chunk."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """A ratio below 1 − clip_low gains nothing more."""
    clip_high: float = Field(default=0.2, gt=0)
    """A ratio above 1 + clip_high gains nothing more."""
    dual_clip: float = Field(default=0.0, ge=0)
    """Bound on the loss of a negative advantage, in units of the advantage (3 is usual); 0: off."""
    value_clip: float = Field(default=0.0, ge=0)
    """How far a value may move from the behaviour value with gain; 0: off."""
    huber_delta: float = Field(default=1.0, gt=0)
    """Value errors beyond it count linearly."""
    value_coefficient: float = Field(default=1.0, ge=0)
    """Weight of the value loss."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus, where the policy has an entropy."""
    log_ratio_limit: float = Field(default=20.0, gt=0)
    """Bound of the log-ratio before it is exponentiated."""
    correction: Literal["none", "decoupled"] = "decoupled"
    """What trajectories of an earlier version are corrected by. ``none``: the trust region lies around the
    behaviour policy, so that with a lag of one version two updates have the room of one. ``decoupled``:
    it lies around the policy at the start of the update, and each chunk is weighted by how much more (or
    less) likely that policy was to act so. Equal without lag."""
    weight_limit: float = Field(default=2.0, ge=1)
    """Bound of that weight."""


class PPO:
    """Clipped policy loss, Huber value loss, GAE."""

    Settings: ClassVar[type[Settings]] = PPOSettings

    def __init__(self, settings: PPOSettings) -> None:
        self.settings = settings
        self.needs = Needs(proximal=settings.correction == "decoupled")

    def estimates(self, rollouts: Rollouts) -> tuple[Estimates, dict[str, float]]:
        """GAE of padded trajectories; metrics: the mean discounted return of a chunk."""
        from rlvla3.algorithms.advantage import generalised_advantage, valid_mask

        advantage, returns = generalised_advantage(
            rollouts.reward,
            rollouts.value,
            rollouts.bootstrap_value,
            rollouts.length,
            rollouts.terminated,
            gamma=self.settings.gamma,
            gae_lambda=self.settings.gae_lambda,
        )
        valid = valid_mask(rollouts.length, rollouts.reward.shape[1])
        metrics = {"return_mean": float(returns[valid].mean())}
        return Estimates(advantage=advantage, returns=returns), metrics

    def loss(self, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Policy, value and entropy loss, a mean over unmasked chunks."""
        from rlvla3.algorithms.loss import clipped_policy_loss, masked_mean, value_loss

        settings = self.settings
        policy, metrics = clipped_policy_loss(
            inputs.log_prob,
            inputs.behaviour_log_prob,
            inputs.proximal_log_prob,
            inputs.advantage,
            inputs.mask,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            log_ratio_limit=settings.log_ratio_limit,
            weight_limit=settings.weight_limit,
        )
        value = value_loss(
            inputs.value,
            inputs.behaviour_value,
            inputs.returns,
            inputs.mask,
            clip=settings.value_clip,
            huber_delta=settings.huber_delta,
        )
        entropy = masked_mean(inputs.entropy, inputs.mask)
        total = settings.value_coefficient * value
        if not value_only:
            total = total + policy - settings.entropy_coefficient * entropy
        metrics |= {
            "policy_loss": policy.detach(),
            "value_loss": value.detach(),
            "entropy": entropy.detach(),
            "loss": total.detach(),
        }
        return total, metrics
