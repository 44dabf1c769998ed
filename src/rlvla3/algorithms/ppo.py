"""Proximal policy optimisation with a chunk-level actor and critic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from rlvla3.algorithms.api import Estimates, Figures, LossInputs, Needs, Rollouts
from rlvla3.algorithms.policy_gradient import PolicyGradientSettings, policy_loss, regularisers

if TYPE_CHECKING:
    from torch import Tensor


class PPOSettings(PolicyGradientSettings):
    """Settings of PPO."""

    gamma: float = Field(default=0.97, ge=0, le=1)
    """Discount of one chunk."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """λ of generalised advantage estimation (and of V-trace), for each chunk."""
    normalise_advantages: bool = True
    """Whether advantages get mean 0 and deviation 1 over an update."""
    value_clip: float = Field(default=0.0, ge=0)
    """How far a value may move from the behaviour value with gain; 0: off."""
    huber_delta: float = Field(default=1.0, gt=0)
    """Value errors beyond it count linearly."""
    value_coefficient: float = Field(default=1.0, ge=0)
    """Weight of the value loss."""
    correction: Literal["none", "decoupled", "vtrace", "truncated_is", "gaussian"] = "decoupled"
    """What trajectories of an earlier version are corrected by. ``none``: the trust region lies around the
    behaviour policy, so that with a lag of one version two updates have the room of one. ``decoupled``:
    it lies around the policy at the start of the update, and each chunk is weighted by how much more (or
    less) likely that policy was to act so. ``vtrace``: value targets and advantages are weighted along the
    trajectory. ``truncated_is``: no clip; every gradient by its truncated weight. ``gaussian``: no clip; a
    smooth trust weight. The first three are equal without lag (vtrace: with gae_lambda 1)."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL from the reference is estimated; k1 goes into the reward, k2 and k3 into the loss."""

    @model_validator(mode="after")
    def _check(self) -> PPOSettings:
        self.check_dual_clip()
        return self


class PPO:
    """Clipped policy loss, Huber value loss, GAE or V-trace."""

    Settings: ClassVar[type[PPOSettings]] = PPOSettings

    def __init__(self, settings: PPOSettings) -> None:
        self.settings = settings
        self.needs = Needs(
            proximal=settings.correction in ("decoupled", "vtrace"),
            reference=settings.kl_coefficient > 0,
            linear=settings.correction != "none",
            normalised=settings.normalise_advantages,
        )

    def estimates(self, rollouts: Rollouts) -> tuple[Estimates, Figures]:
        """GAE or V-trace of padded trajectories; ``return_mean``: mean value target of a trajectory [N]."""
        from rlvla3.algorithms.advantage import generalised_advantage, valid_mask, vtrace

        settings = self.settings
        reward = rollouts.reward
        if settings.kl_coefficient and settings.kl_estimator == "k1":
            reward = reward - settings.kl_coefficient * rollouts.reference_gap
        inputs = (reward, rollouts.value, rollouts.bootstrap_value, rollouts.length, rollouts.terminated)
        if settings.correction == "vtrace":
            advantage, returns = vtrace(
                *inputs,
                rollouts.log_weight.clamp(-settings.log_ratio_limit, settings.log_ratio_limit),
                gamma=settings.gamma,
                trace_lambda=settings.gae_lambda,
                weight_limit=settings.weight_limit,
            )
        else:
            advantage, returns = generalised_advantage(
                *inputs, gamma=settings.gamma, gae_lambda=settings.gae_lambda
            )
        valid = valid_mask(rollouts.length, rollouts.reward.shape[1])
        figures = {"return_mean": (returns * valid).sum(1) / rollouts.length}
        return Estimates(advantage=advantage, returns=returns), figures

    def loss(self, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, Figures]:
        """Policy, value and entropy loss of each chunk."""
        from rlvla3.algorithms.loss import value_loss

        settings = self.settings
        policy, figures = policy_loss(inputs, settings, settings.correction)
        more, more_figures = regularisers(inputs, settings, settings.kl_estimator)
        value = value_loss(
            inputs.value,
            inputs.behaviour_value,
            inputs.returns,
            clip=settings.value_clip,
            huber_delta=settings.huber_delta,
        )
        total = settings.value_coefficient * value
        if not value_only:
            total = total + policy + more
        figures |= more_figures
        figures |= {
            "policy_loss": policy.detach(),
            "value_loss": value.detach(),
            "loss": total.detach(),
        }
        return total, figures
