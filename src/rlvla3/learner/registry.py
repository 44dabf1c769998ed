"""Learners by name. Importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rlvla3.plugins import component
from rlvla3.policies.api import Policy
from rlvla3.policies.settings import ModelSettings
from rlvla3.settings import Settings

if TYPE_CHECKING:
    from rlvla3.algorithms.api import Algorithm
    from rlvla3.learner.api import Learner

BUILT_IN = {
    "reinforcement": "rlvla3.learner.factories:ReinforcementFactory",
    "emulated": "rlvla3.learner.factories:EmulatedFactory",
}
"""Name → factory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerContext:
    """What a learner is built around."""

    policy: Policy
    algorithm: Algorithm
    device: str
    """Torch device name."""
    seed: int
    streaming: bool
    """Whether gradients start while trajectories still arrive."""
    final_values: bool
    """Whether the learner computes bootstrap values itself."""
    weights: str
    """Run folder, checkpoint or export whose weights training starts from; empty: fresh ones."""
    rank: int
    """Which of the Trainer's members this is, from 0."""
    ranks: int
    """Members of the Trainer: each takes in its part of an update's trajectories, maybe none."""
    sharing: bool
    """Whether the members share the weights between them instead of all holding them."""
    store: str
    """Empty file where the members find each other; empty for a single one."""
    model: ModelSettings = field(default_factory=ModelSettings)
    """What is put around the policy's model, by ``rlvla3.learner.starting.starting_model``."""


class LearnerFactory(Protocol):
    """A kind of learner."""

    Settings: ClassVar[type[Settings]]

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> Learner:
        """Build the learner (may import torch)."""
        ...


def learner_class(kind: str) -> type[LearnerFactory]:
    """The factory of a built-in name or ``module:attribute``.

    Raises:
        UserError: there is none, with the nearest name, it cannot be imported, or is no factory.
    """
    found: type[LearnerFactory] = component(
        "learner.kind", kind, BUILT_IN, ("build",), "rlvla3.learner.registry"
    )
    return found
