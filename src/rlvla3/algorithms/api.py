"""What an algorithm provides to the learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from rlvla3.settings import Settings

if TYPE_CHECKING:
    from torch import Tensor

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Trajectories that share their start and are compared with each other."""

    size: int
    """G: members of a group."""
    score: Literal["success", "return"] = "success"
    """What members are compared by: 1 for a success, or the undiscounted return to the first end."""
    replacements: int = 0
    """Groups of one version whose members all have the same score, and teach nothing, that may be
    replaced by fresh ones; further ones are trained as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an algorithm asks of the rest."""

    proximal: bool = False
    """Log-probs under the policy at the start of the update."""
    reference: bool = False
    """Log-probs under the policy that the run started from."""
    values: bool = True
    """Values of the observations, and with them a value head."""
    groups: Groups | None = None
    """Groups of trajectories with one start; None: each trajectory for itself."""
    whole_batch: bool = False
    """Whether ``estimates`` must be given a whole update at once: nothing can be streamed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Padded trajectories: N trajectories, T chunks; positions from ``length`` on hold anything."""

    reward: Tensor
    """Chunk rewards [N, T] float32."""
    value: Tensor
    """Behaviour values [N, T] float32."""
    bootstrap_value: Tensor
    """V of the final observation [N]; anything where ``terminated``."""
    length: Tensor
    """Valid chunks of each trajectory [N] int64."""
    terminated: Tensor
    """Whether the task truly ended [N] bool: nothing is bootstrapped then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """What the loss compares with, [N, T] float32, 0 on padding."""

    advantage: Tensor
    returns: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """B chunks under the present and the behaviour policy. Masked positions may hold anything."""

    log_prob: Tensor
    """[B], [B, C] or [B, C, A], with gradient."""
    behaviour_log_prob: Tensor
    """Of the same shape."""
    proximal_log_prob: Tensor
    """Under the policy at the start of the update, of the same shape; the behaviour's where an algorithm
    does not need it."""
    value: Tensor
    """[B], with gradient."""
    behaviour_value: Tensor
    """[B]."""
    entropy: Tensor
    """[B], with gradient where the policy has one."""
    advantage: Tensor
    """[B], normalised."""
    returns: Tensor
    """[B]."""
    mask: Tensor
    """[B] bool: which chunks count."""


class Algorithm(Protocol):
    """An algorithm, built from its own settings."""

    Settings: ClassVar[type[Settings]]

    needs: Needs
    """What it asks of the rest; follows from its settings."""

    def __init__(self, settings: Any) -> None: ...

    def estimates(self, rollouts: Rollouts) -> tuple[Estimates, dict[str, float]]:
        """Advantages and returns, before normalisation."""
        ...

    def loss(self, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean loss over the unmasked chunks and detached scalar metrics (means over the same).

        ``value_only``: only the value loss, while the policy is held.
        """
        ...
