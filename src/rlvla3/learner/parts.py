"""What every update of a learner computes with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlvla3.algorithms.api import Algorithm
from rlvla3.learner.objective import Objective
from rlvla3.learner.optimiser import Optimiser
from rlvla3.learner.ranks import Ranks
from rlvla3.learner.recomputing import Recomputing
from rlvla3.learner.settings import ReinforcementSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Made once, and the same for all updates."""

    model: Any
    """A ``PolicyModel``; only what trains has gradients."""
    algorithm: Algorithm
    objective: Objective
    optimiser: Optimiser
    ranks: Ranks
    settings: ReinforcementSettings

    @classmethod
    def of(cls, model: Any, algorithm: Algorithm, settings: ReinforcementSettings, ranks: Ranks) -> Parts:
        """Take over ``model``: only what trains in ``reinforcement`` keeps gradients, and of that the value
        head only where the algorithm needs values."""
        model.requires_grad_(False)
        values = frozenset(name for name, _ in model.trainable("value"))
        needed = algorithm.needs.values
        parameters = {n: p for n, p in model.trainable("reinforcement") if needed or n not in values}
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        optimiser = Optimiser(
            parameters,
            value_names=values,
            lr=settings.lr,
            value_lr=settings.value_lr,
            weight_decay=settings.weight_decay,
            gradient_clip=settings.gradient_clip,
            ema=settings.ema,
            ranks=ranks,
            offload=settings.offload_optimiser,
        )
        return cls(
            model=model,
            algorithm=algorithm,
            objective=Objective(model, algorithm),
            optimiser=optimiser,
            ranks=ranks,
            settings=settings,
        )

    def recomputing(self, final_values: bool) -> Recomputing:
        """What algorithm and settings want computed anew of each trajectory.

        ``final_values``: whether V of the last observation is, whatever they want.
        """
        needs, settings = self.algorithm.needs, self.settings
        return Recomputing(
            self.model,
            self.optimiser,
            self.ranks,
            proximal=needs.proximal or settings.min_ess > 0,
            reference=self.optimiser.copies() if needs.reference else {},
            values=needs.values and settings.recompute_values,
            final_values=needs.values and (final_values or settings.recompute_values),
            forward_batch=settings.forward_batch,
        )
