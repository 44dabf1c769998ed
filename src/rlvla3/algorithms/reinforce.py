"""REINFORCE++: returns normalised over the batch, a clipped loss, no critic (arXiv 2501.03262)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from rlvla3.algorithms.api import Estimates, Figures, LossInputs, Needs, Rollouts
from rlvla3.algorithms.policy_gradient import PolicyGradientSettings, policy_loss, regularisers

if TYPE_CHECKING:
    from torch import Tensor


class ReinforcePlusPlusSettings(PolicyGradientSettings):
    """Settings of REINFORCE++."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of one chunk."""
    normalise_advantages: bool = True
    """Whether returns get mean 0 and deviation 1 over an update: the baseline of this algorithm."""
    correction: Literal["none", "decoupled", "truncated_is", "gaussian"] = "decoupled"
    """What trajectories of an earlier version are corrected by; as for PPO. vtrace needs values."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """How the KL from the reference is estimated; k1 goes into the reward, k2 and k3 into the loss."""

    @model_validator(mode="after")
    def _check(self) -> ReinforcePlusPlusSettings:
        self.check_dual_clip()
        return self


class ReinforcePlusPlus:
    """Every chunk's advantage is its return to the end of the episode."""

    Settings: ClassVar[type[ReinforcePlusPlusSettings]] = ReinforcePlusPlusSettings

    def __init__(self, settings: ReinforcePlusPlusSettings) -> None:
        self.settings = settings
        self.needs = Needs(
            proximal=settings.correction == "decoupled",
            reference=settings.kl_coefficient > 0,
            linear=settings.correction != "none",
            values=False,
            normalised=settings.normalise_advantages,
        )

    def estimates(self, rollouts: Rollouts) -> tuple[Estimates, Figures]:
        """Discounted returns, the KL from the reference taken off where it belongs into the reward;
        ``return_mean``: of the first chunk [N]."""
        from rlvla3.algorithms.advantage import discounted_returns

        settings, reward = self.settings, rollouts.reward
        if settings.kl_coefficient and settings.kl_estimator == "k1":
            reward = reward - settings.kl_coefficient * rollouts.reference_gap
        returns = discounted_returns(reward, rollouts.length, gamma=settings.gamma)
        return Estimates(advantage=returns, returns=returns), {"return_mean": returns[:, 0]}

    def loss(self, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, Figures]:
        """Policy loss of each chunk; there are no values to train alone."""
        policy, figures = policy_loss(inputs, self.settings, self.settings.correction)
        more, more_figures = regularisers(inputs, self.settings, self.settings.kl_estimator)
        total = policy + more
        return total, figures | more_figures | {"policy_loss": policy.detach(), "loss": total.detach()}
