"""What PPO, GRPO, RLOO and REINFORCE++ share: settings and computation of the policy loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rlvla3.algorithms.api import Figures, LossInputs
from rlvla3.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from rlvla3.algorithms.loss import Elements


class PolicyGradientSettings(Settings):
    """Settings of the policy loss."""

    clip_low: float = Field(default=0.2, gt=0, le=1)
    """A ratio below 1 − clip_low gains nothing more."""
    clip_high: float = Field(default=0.2, gt=0)
    """A ratio above 1 + clip_high gains nothing more; above clip_low lets rare actions become likely."""
    dual_clip: float = Field(default=0.0, ge=0)
    """Bound on the loss of a negative advantage, in units of the advantage (3 is usual); 0: off."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus, where the policy has an entropy."""
    log_ratio_limit: float = Field(default=20.0, gt=0)
    """Bound of every log-ratio before it is exponentiated."""
    weight_limit: float = Field(default=2.0, ge=1)
    """Bound of the importance weight (decoupled, truncated_is; for vtrace of both its weights)."""
    trust_width: float = Field(default=0.3, gt=0)
    """Width of the Gaussian trust weight, in log-ratios; only for correction: gaussian."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the policy that the run started from; 0: off."""

    def check_dual_clip(self) -> None:
        """Raises ``ValueError`` where the bound would cut the unclipped loss."""
        if 0 < self.dual_clip <= 1:
            raise ValueError(
                f"dual_clip must be above 1 (3 is usual) or 0 for none, it is {self.dual_clip:g}"
            )


def policy_loss(
    inputs: LossInputs, settings: PolicyGradientSettings, correction: str
) -> tuple[Tensor, Figures]:
    """Policy loss [B] by ``correction``, with its figures and those of the ratio.

    ``vtrace`` weighs the advantages themselves, so that the loss is clipped around the proximal policy
    without a further weight.
    """
    from rlvla3.algorithms.loss import (
        Clip,
        clipped_loss,
        gaussian_loss,
        ratio_figures,
        truncated_loss,
    )

    elements = _elements(inputs, settings, correction)
    clip = Clip(low=settings.clip_low, high=settings.clip_high, dual=settings.dual_clip)
    if correction == "truncated_is":
        loss, figures = truncated_loss(elements, settings.weight_limit)
    elif correction == "gaussian":
        loss, figures = gaussian_loss(elements, settings.trust_width)
    else:
        loss, figures = clipped_loss(elements, clip, settings.weight_limit)
    return loss, figures | ratio_figures(_elements(inputs, settings, "truncated_is"))


def _elements(inputs: LossInputs, settings: PolicyGradientSettings, correction: str) -> Elements:
    """``none`` clips around the behaviour policy, ``vtrace`` weighs nothing a second time."""
    from rlvla3.algorithms.loss import Elements

    proximal, behaviour = inputs.proximal_log_prob, inputs.behaviour_log_prob
    return Elements(
        log_prob=inputs.log_prob,
        behaviour=proximal if correction == "vtrace" else behaviour,
        proximal=behaviour if correction == "none" else proximal,
        mask=inputs.mask,
        advantage=inputs.advantage,
        limit=settings.log_ratio_limit,
    )


def regularisers(
    inputs: LossInputs, settings: PolicyGradientSettings, estimator: str
) -> tuple[Tensor, Figures]:
    """What is added to the policy loss [B]: the KL from the reference, less the entropy bonus.

    ``estimator`` k1 adds no loss: it is in the reward.
    """
    from rlvla3.algorithms.loss import reference_kl

    loss = -settings.entropy_coefficient * inputs.entropy
    figures = {"entropy": inputs.entropy.detach()}
    if settings.kl_coefficient:
        kl = reference_kl(
            inputs.log_prob,
            inputs.reference_log_prob,
            inputs.mask,
            estimator,  # type: ignore[arg-type]
            settings.log_ratio_limit,
        )
        figures["reference_kl"] = kl.detach()
        if estimator != "k1":
            loss = loss + settings.kl_coefficient * kl
    return loss, figures
