"""Weights that several ranks share between them: FSDP2 over a policy's units.

torch's modules for it are imported when they are needed: they cost half a second.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rlvla3.errors import UserError
from rlvla3.learner.ranks import Ranks
from rlvla3.policies.api import Evaluation
from rlvla3.policies.wrapping import network

_ENTRY_POINTS = ("evaluate", "prefix", "value")
"""What the learner calls of a model: each gathers what lies outside the units first."""


def shard(model: Any, ranks: Ranks) -> None:
    """Spread the weights of ``model`` over the ranks, in place; nothing where they are not shared.

    Gradients are summed, not averaged: losses are divided by the whole update's weight already.

    Raises:
        UserError: the policy names no units, or is no module.
    """
    if not ranks.sharded:
        return
    inner = network(model)
    named: Any = getattr(inner, "fsdp_units", None)
    if not isinstance(inner, nn.Module) or not callable(named):
        raise UserError(
            "trainer.sharing = weights needs a policy with fsdp_units(); use trainer.sharing=none"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    from torch.utils import _pytree

    # What FSDP is to find the tensors in, on the way back.
    if Evaluation not in _pytree.SUPPORTED_NODES:
        _pytree.register_dataclass(Evaluation)
    mesh: Any = init_device_mesh(ranks.device.type, (ranks.size,))
    units: list[Any] = [*named(), inner]
    for unit in units:
        # The root too gives its weights back after each pass: they may be exchanged before the next.
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    for unit in units:
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # gloo knows no sum with a factor
    for name in _ENTRY_POINTS:
        register_fsdp_forward_method(inner, name)


def synchronise_gradients(model: Any, wanted: bool) -> None:
    """Whether the next backward pass sums gradients over ranks or only adds them up here."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(wanted)


def is_shared(tensor: Any) -> bool:
    """Whether a tensor is spread over ranks (a ``DTensor``)."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Tensor:
    """This rank's part of a tensor, sharing its memory; all of one that is not shared."""
    found: Tensor = tensor.to_local() if is_shared(tensor) else tensor
    return found


def like(part: Tensor, whole: Any) -> Tensor:
    """``part`` of this rank as a tensor that is shared as ``whole`` is."""
    if not is_shared(whole):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
