"""What an algorithm provides to the learner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from rlvla3.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor


Score = Literal["success", "return"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Trajectories that share their start and are compared with each other."""

    size: int
    """G: members of a group."""
    score: Score = "success"
    """What members are compared by: 1 for a success, or the undiscounted return to the first end."""
    replacements: int = 0
    """Groups of one version whose members all have the same score, and teach nothing, that may be
    replaced by fresh ones; further ones are trained as they are."""
    tolerance: float = 0.0
    """Largest difference between the first observations of two members that still counts as one initial
    state: of any number, pixels as parts of 255."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an algorithm asks of the rest."""

    proximal: bool = False
    """Log-probs under the policy at the start of the update."""
    reference: bool = False
    """Log-probs under the policy that the run started from."""
    values: bool = True
    """Values of the observations, and with them a value head; without, trajectories are whole episodes."""
    normalised: bool = False
    """Advantages with mean 0 and deviation 1 over an update (streamed: by statistics of earlier ones)."""
    groups: Groups | None = None
    """Groups of trajectories with one start; None: each trajectory for itself."""
    linear: bool = False
    """Whether the loss is linear in the advantage as long as the policy has not moved since the start of
    the update: normalisation can then be put in after a streamed pass."""
    whole_batch: bool = False
    """Whether ``estimates`` must be given a whole update at once: nothing can be streamed then, and
    there is one Trainer member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Padded trajectories: N trajectories, T chunks; positions from ``length`` on hold anything."""

    reward: Tensor
    """Chunk rewards [N, T] float32."""
    value: Tensor
    """V of each chunk's observation [N, T] float32: the behaviour policy's, or the present one's where
    the learner recomputes them; anything where no values are needed."""
    bootstrap_value: Tensor
    """V of the final observation [N]; anything where ``terminated``."""
    length: Tensor
    """Valid chunks of each trajectory [N] int64."""
    terminated: Tensor
    """Whether the task truly ended [N] bool: nothing is bootstrapped then."""
    log_weight: Tensor
    """log π_proximal − log π_behaviour of each chunk [N, T]; 0 where nobody needs the proximal policy."""
    reference_gap: Tensor
    """log π_behaviour − log π_reference of each chunk [N, T]; 0 where nobody needs a reference."""
    score: Tensor
    """What members of a group are compared by [N]: success (0 or 1) or undiscounted return."""
    group: Tensor
    """Which group each belongs to [N] int64; every group is whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What the loss compares with, [N, T] float32, 0 on padding."""

    advantage: Tensor
    returns: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """B chunks under the present policy and earlier ones. Masked elements may hold anything.

    Log-probs are [B], [B, C] or [B, C, A] by the policy's ratio level, all of the same shape.
    """

    log_prob: Tensor
    """Under the present policy, with gradient."""
    behaviour_log_prob: Tensor
    """Under the policy that acted."""
    proximal_log_prob: Tensor
    """Under the policy at the start of the update; the behaviour's where an algorithm does not need it."""
    reference_log_prob: Tensor
    """Under the policy that the run started from; the behaviour's where an algorithm does not need it."""
    mask: Tensor
    """Which elements count, bool of the same shape: actions after an episode's end do not."""
    value: Tensor
    """[B], with gradient."""
    behaviour_value: Tensor
    """[B]: what the advantages were computed with."""
    entropy: Tensor
    """[B], with gradient where the policy has one."""
    advantage: Tensor
    """[B], normalised where the algorithm needs it."""
    returns: Tensor
    """[B]."""


Figures = dict[str, "Tensor"]
"""Detached numbers, one for each chunk or trajectory; means (a name ending in ``_max``: the maximum)
over an update, all ranks and lags are made by the learner."""


class Algorithm(Protocol):
    """An algorithm, built from its own settings."""

    Settings: ClassVar[type[Settings]]

    needs: Needs
    """What it asks of the rest; follows from its settings."""

    def __init__(self, settings: Any) -> None: ...

    def estimates(self, rollouts: Rollouts) -> tuple[Estimates, Figures]:
        """Advantages and returns, before normalisation, and figures of each trajectory [N]."""
        ...

    def loss(self, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, Figures]:
        """Loss of each chunk [B], and figures of each chunk [B].

        ``kl``, ``ratio_mean``, ``ratio_square`` and ``clip_fraction`` among the figures let the learner
        guard the update and tell them by lag.
        ``value_only``: only the value loss, while the policy is held.
        """
        ...
