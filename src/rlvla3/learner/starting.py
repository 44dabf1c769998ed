"""A policy's model as a run starts with it: the same weights in Trainer and Generators."""

from pathlib import Path
from typing import Any

from rlvla3.learner.checkpoint import load_policy
from rlvla3.policies.api import Policy
from rlvla3.policies.building import Use, build_model
from rlvla3.policies.settings import ModelSettings


def starting_model(
    policy: Policy, settings: ModelSettings, device: str, seed: int, *, use: Use, weights: str
) -> Any:
    """The model with the starting weights put in.

    Args:
        policy: the family.
        settings: what is put around the model.
        device: torch device name.
        seed: of fresh weights and adapters.
        use: what it is for.
        weights: run folder, checkpoint or export to start from; empty: fresh weights.

    Raises:
        UserError: a setting does not fit the policy, or the weights cannot be used.
    """
    model = build_model(policy, settings, device, seed, use)
    if weights:
        model.load_arrays(load_policy(Path(weights)).weights)
    return model
