"""The built-in learners' factories; torch is imported when one is built."""

from typing import Any, ClassVar

from rlvla3.learner.api import Learner
from rlvla3.learner.emulated import EmulatedLearner, EmulatedLearnerSettings
from rlvla3.learner.registry import LearnerContext
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.settings import Settings


class ReinforcementFactory:
    """A policy trained with an algorithm on rollouts."""

    Settings: ClassVar[type[Settings]] = ReinforcementSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> Learner:
        """Build the network, load its starting weights if any, wrap it."""
        from rlvla3.learner.ranks import Ranks
        from rlvla3.learner.reinforcement import Reinforcement
        from rlvla3.learner.sharding import shard
        from rlvla3.learner.starting import starting_model

        ranks = Ranks.join(
            context.rank, context.ranks, context.store, sharded=context.sharing, device=context.device
        )

        model = starting_model(
            context.policy,
            context.model,
            context.device,
            context.seed,
            use="train",
            weights=context.weights,
        )
        shard(model, ranks)
        return Reinforcement(
            model,
            context.algorithm,
            settings,
            seed=context.seed,
            streaming=context.streaming,
            final_values=context.final_values,
            ranks=ranks,
        )


class EmulatedFactory:
    """A learner that only takes time."""

    Settings: ClassVar[type[Settings]] = EmulatedLearnerSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> Learner:
        """Build it; there are no weights to load."""
        return EmulatedLearner(settings, streaming=context.streaming)
