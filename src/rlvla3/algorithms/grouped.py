"""Algorithms that compare the members of a group, and need no values: GRPO and RLOO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from rlvla3.algorithms.api import Estimates, Figures, Groups, LossInputs, Needs, Rollouts
from rlvla3.algorithms.policy_gradient import PolicyGradientSettings, policy_loss, regularisers

if TYPE_CHECKING:
    from torch import Tensor


class GroupedSettings(PolicyGradientSettings):
    """Settings of an algorithm with groups."""

    group_size: int = Field(default=8, ge=2)
    """G: trajectories that share task and initial state; must divide trainer.batch and micro_batch."""
    score: Literal["success", "return"] = "success"
    """What members are compared by: success, or the undiscounted return to the first end."""
    replacements: int = Field(default=0, ge=0)
    """Groups of one version with nothing but equal scores that may be replaced by fresh ones (dynamic
    sampling); further ones are trained as they are, with advantages of 0."""
    start_tolerance: float = Field(default=0.0, ge=0)
    """Largest difference between the first observations of a group's members that is still one initial
    state, of any number (pixels: parts of 255); more ends the run. 0: equal bits, which a hard reset
    gives. The greatest difference met is logged."""
    correction: Literal["none", "decoupled", "truncated_is", "gaussian"] = "decoupled"
    """What trajectories of an earlier version are corrected by; as for PPO. vtrace needs values."""
    kl_estimator: Literal["k2", "k3"] = "k3"
    """How the KL from the reference is estimated (k1 belongs into a reward for each chunk, and a group has
    one score for each episode)."""

    @model_validator(mode="after")
    def _check(self) -> GroupedSettings:
        self.check_dual_clip()
        return self


class Grouped(ABC):
    """Every chunk of a trajectory has the trajectory's advantage over its group."""

    Settings: ClassVar[type[GroupedSettings]] = GroupedSettings

    def __init__(self, settings: GroupedSettings) -> None:
        self.settings = settings
        self.needs = Needs(
            proximal=settings.correction == "decoupled",
            reference=settings.kl_coefficient > 0,
            linear=settings.correction != "none",
            values=False,
            groups=Groups(
                size=settings.group_size,
                score=settings.score,
                replacements=settings.replacements,
                tolerance=settings.start_tolerance,
            ),
        )

    @abstractmethod
    def advantage(self, score: Tensor, group: Tensor) -> Tensor:
        """Advantage of each trajectory [N] from scores [N] and group numbers [N]."""

    def estimates(self, rollouts: Rollouts) -> tuple[Estimates, Figures]:
        """Advantages of whole groups; figures of each trajectory: ``group/score_mean``, ``group/score_std``
        and ``group/equal`` (1 where all members of its group scored the same)."""
        from rlvla3.algorithms.advantage import group_statistics, valid_mask

        found = group_statistics(rollouts.score, rollouts.group)
        valid = valid_mask(rollouts.length, rollouts.reward.shape[1])
        advantage = self.advantage(rollouts.score, rollouts.group)[:, None].float() * valid
        figures = {
            "group/score_mean": rollouts.score,
            "group/score_std": found.std,
            "group/equal": (found.std == 0).to(rollouts.score.dtype),
        }
        returns = rollouts.score[:, None].float() * valid
        return Estimates(advantage=advantage, returns=returns), figures

    def loss(self, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, Figures]:
        """Policy loss of each chunk; there are no values to train alone."""
        policy, figures = policy_loss(inputs, self.settings, self.settings.correction)
        more, more_figures = regularisers(inputs, self.settings, self.settings.kl_estimator)
        total = policy + more
        return total, figures | more_figures | {"policy_loss": policy.detach(), "loss": total.detach()}


class GRPO(Grouped):
    """Group relative policy optimisation (DeepSeekMath, arXiv 2402.03300)."""

    def advantage(self, score: Tensor, group: Tensor) -> Tensor:
        """(score − mean) / (deviation + 1e-6) within the group."""
        from rlvla3.algorithms.advantage import group_relative

        return group_relative(score, group)


class RLOO(Grouped):
    """REINFORCE with a leave-one-out baseline (arXiv 2402.14740)."""

    def advantage(self, score: Tensor, group: Tensor) -> Tensor:
        """Score − mean of the group's other members."""
        from rlvla3.algorithms.advantage import leave_one_out

        return leave_one_out(score, group)
