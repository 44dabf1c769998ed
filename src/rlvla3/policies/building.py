"""The one place where a policy's model is made for a role. Importing this module does not import torch."""

from typing import Any, Literal

from rlvla3.errors import UserError
from rlvla3.policies.api import Policy
from rlvla3.policies.settings import ModelSettings, differing
from rlvla3.policies.wrapping import network

Use = Literal["train", "serve", "evaluate", "imitate"]
"""What a model is for: reinforcement learning in the Trainer, acting with what that publishes, acting with
the weights of a file, or supervised learning (of the whole policy, without adapters)."""


def build_model(policy: Policy, settings: ModelSettings, device: str, seed: int, use: Use) -> Any:
    """A policy's model with freshly initialised weights and everything that ``settings`` put around it.

    Equal arguments give equal weights, adapters included, whatever the use.

    Raises:
        UserError: a setting does not fit the policy.
    """
    model: Any = policy.build(device, seed)
    _check_is_network(model, settings)
    if settings.activation_checkpointing and use in ("train", "imitate"):
        from rlvla3.policies.recomputing import recompute

        recompute(model.fsdp_units())
    if _is_adapted(settings, use):
        from rlvla3.policies.adapted import Adapted

        model = Adapted(model, settings, seed)
    if settings.precision == "bfloat16":
        from rlvla3.policies.precision import Autocast, lower_frozen

        if settings.frozen_weights == "bfloat16" and use != "imitate":
            lower_frozen(network(model), {name for name, _ in model.trainable("reinforcement")})
        model = Autocast(model, device)
    return model


def _is_adapted(settings: ModelSettings, use: Use) -> bool:
    if use == "serve":
        return settings.publish == "trained"
    return use == "train" and (settings.publish == "trained" or settings.lora.rank > 0)


def _check_is_network(model: Any, settings: ModelSettings) -> None:
    wanted = [name for name in ModelSettings.model_fields if name in differing(settings)]
    if not wanted:
        return
    from torch import nn

    if not isinstance(model, nn.Module):
        raise UserError(
            f"policy.{wanted[0]}: needs a policy whose model is a torch.nn.Module, this is "
            f"{type(model).__name__}; leave it out"
        )
