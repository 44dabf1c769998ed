"""What a policy provides. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from rlvla3.messages import FieldSpec
from rlvla3.settings import Settings
from rlvla3.transforms.meaning import Meaning

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, npt.NDArray[Any]]

PREFIX = "prefix"
"""Record field of a prefix stored by the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInterface:
    """What a policy is connected to: the simulator's raw fields and the action chunk."""

    observation: tuple[FieldSpec, ...]
    """Raw fields of one observation; the field ``task`` (int64 []) is always added by the slab."""
    instructions: tuple[str, ...]
    """Instruction text of each task index."""
    action_dim: int
    """A."""
    chunk: int
    """C: actions executed for one inference."""
    meaning: Meaning | None = None
    """What the raw fields and the action are; None: the simulator does not say it. A policy that expects
    certain ones gives it to ``transforms.composing.compose``."""


class NoiseKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Names the random numbers of one sample: equal keys give equal numbers anywhere."""

    seed: int
    episode: int
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The trainer's view of stored action records."""

    log_prob: torch.Tensor
    """[B] or [B, C] or [B, C, A], by the policy's ratio level; float32."""
    entropy: torch.Tensor
    """[B]; zeros where the policy has none."""
    value: torch.Tensor
    """[B] float32."""


class PolicyModel(Protocol):
    """The network with its processors; a ``torch.nn.Module``. Raw observations in, actions out.

    Observation arrays are raw, as the simulator wrote them, with a leading batch dimension [B].
    """

    def act(self, observation: Arrays, keys: tuple[NoiseKey, ...], explore: bool) -> Arrays:
        """Action records [B, ...] by ``record_spec`` name, always including ``action``
        [B, C, A] float32 in env units, ``log_prob`` and ``value`` [B].

        ``explore=False``: deterministic sampling from the keyed initial noise (evaluation).
        """
        ...

    def values(self, observation: Arrays) -> npt.NDArray[np.float32]:
        """V(s) [B], the same number that ``act`` records."""
        ...

    def prefix(self, observation: Arrays, record: Arrays) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What does not depend on trainable weights, once for each observation; batch first in every
        tensor; ``()`` where everything trains. A policy whose records have the field ``PREFIX`` takes
        it from there; ``evaluate`` is not given that field."""
        ...

    def evaluate(self, prefix: Any, observation: Arrays, record: Arrays) -> Evaluation:
        """Log-probs, entropy and values of stored records under the present weights."""
        ...

    def value(self, prefix: Any, observation: Arrays) -> torch.Tensor:
        """``evaluate``'s value [B], with gradient, without the cost of the rest."""
        ...

    def imitation_loss(
        self, observation: Arrays, actions: npt.NDArray[np.float32], generator: torch.Generator
    ) -> torch.Tensor:
        """Supervised loss on demonstrated action chunks [B, C, A] in env units."""
        ...

    def trainable(self, stage: str) -> list[tuple[str, torch.nn.Parameter]]:
        """Named parameters that train in ``stage``: ``imitation``, ``reinforcement`` (with the value
        head) or ``value`` (the value head alone)."""
        ...

    def arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """Copies of all parameters and buffers by name: what is published."""
        ...

    def load_arrays(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over ``arrays()`` of an equal model; copies, never aliases."""
        ...

    def fsdp_units(self) -> list[torch.nn.Module]:
        """Modules to shard one by one."""
        ...

    def fit_processors(self, states: npt.NDArray[np.float32], actions: npt.NDArray[np.float32]) -> None:
        """Set the normalisation statistics (buffers that travel with the weights)."""
        ...


class Policy(Protocol):
    """A policy family: cheap to construct, describes its records, builds the network."""

    Settings: ClassVar[type[Settings]]

    def __init__(self, settings: Any, interface: PolicyInterface) -> None: ...

    @property
    def record_spec(self) -> tuple[FieldSpec, ...]:
        """What one chunk stores, for one sample."""
        ...

    def build(self, device: str, seed: int) -> PolicyModel:
        """Build the network with freshly initialised weights (imports torch)."""
        ...


@runtime_checkable
class CountsWeights(Protocol):
    """A policy that knows how many numbers its model's weights are before that is built."""

    def weight_counts(self, lora_rank: int, lora_targets: Sequence[str]) -> tuple[int, int]:
        """Numbers of all weights, and of those that reinforcement learning trains; adapters of this rank
        (0: none) in layers that match these regular expressions (none: all that would train) count in
        both."""
        ...


@runtime_checkable
class Exports(Protocol):
    """A policy whose weights can be written in a published layout."""

    def exported(self, weights: Arrays) -> Any:
        """What is written of the model's ``arrays()``: ``policies.pretrained.writing.Exported``."""
        ...


@runtime_checkable
class NamesLayers(Protocol):
    """A policy that knows the layers of its model before that is built, so that ``policy.lora`` can be
    checked without torch."""

    def linear_layers(self) -> Mapping[str, bool]:
        """Names of the model's linear layers (exactly ``torch.nn.Linear``) in its order, and whether
        reinforcement learning trains them where there are no adapters; false for the value head's."""
        ...
