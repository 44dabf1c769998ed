"""A network's weights by name, as numpy arrays: what is published, kept and taken over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rlvla3.policies.weights import copy_into, whole

NOISE_NET = "noise_net."
"""Begins the names of the noise net's weights, which only ``method: noise`` has."""
VALUE_HEAD = "value_head."
"""Begins the names of the value head's weights."""


class PublishedModule(nn.Module):
    """A network that gives and takes its weights by name."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all parameters and buffers by name."""
        return {name: as_array(tensor).copy() for name, tensor in self.state_dict().items()}

    def load_arrays(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over ``arrays()`` of an equal network; copies, never aliases.

        Weights without a noise net (of a supervised warm start, or of another method) leave the own one
        as it is, and a noise net that this network has no use for is left out.

        Raises:
            UserError: names or shapes differ; nothing was copied.
        """
        own = self.state_dict()
        given = {name: torch.from_numpy(np.asarray(array)) for name, array in weights.items()}
        wanted, there = _noise_net(own), _noise_net(given)
        if not wanted or not there:
            given = {name: tensor for name, tensor in given.items() if name not in there} | wanted
        copy_into(own, given, "policy weights")


def _noise_net(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(NOISE_NET)}


def as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor; bfloat16, which numpy does not know, as float32. Ranks that share it must
    all ask."""
    tensor = whole(tensor).detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
