"""The built-in learners' factories; torch is imported when one is built."""

from pathlib import Path
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
        from rlvla3.learner.reinforcement import Reinforcement

        return Reinforcement(
            _model(context),
            context.algorithm,
            settings,
            seed=context.seed,
            streaming=context.streaming,
            final_values=context.recompute_values,
        )


class EmulatedFactory:
    """A learner that only takes time."""

    Settings: ClassVar[type[Settings]] = EmulatedLearnerSettings

    @staticmethod
    def build(settings: Any, context: LearnerContext) -> Learner:
        """Build it; there are no weights to load."""
        return EmulatedLearner(settings, streaming=context.streaming)


def _model(context: LearnerContext) -> Any:
    """The policy's network, with the context's starting weights if it names any."""
    model = context.policy.build(context.device, context.seed)
    if context.weights:
        from rlvla3.learner.checkpoint import load_policy

        model.load_arrays(load_policy(Path(context.weights)).weights)
    return model
