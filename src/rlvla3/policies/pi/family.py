"""The policy families π0 and π0.5. Importing this module does not import torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy.typing as npt

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.policies.api import PolicyInterface
from rlvla3.policies.flow_settings import check_law, record_of_flow
from rlvla3.policies.pi import shapes
from rlvla3.policies.pi.processing import Processing
from rlvla3.policies.pi.settings import Pi0Settings, Pi05Settings, PiSettings
from rlvla3.policies.pi.sizes import PRESETS
from rlvla3.settings import Settings

if TYPE_CHECKING:
    from rlvla3.policies.pi.network import PiNetwork
    from rlvla3.policies.pretrained.layouts import Published
    from rlvla3.policies.pretrained.writing import Exported


def check_family(found: Published, family: str) -> None:
    """Refuse weights of another family.

    Raises:
        UserError: with the kind that fits.
    """
    if found.family and found.family != family:
        raise UserError(
            f"policy.kind = {family}: {found.folder} has weights of {found.family}; set "
            f"policy.kind={found.family}, or give another folder"
        )


class Pi0:
    """π0."""

    family: ClassVar[str] = "pi0"
    Settings: ClassVar[type[Settings]] = Pi0Settings

    def __init__(self, settings: PiSettings, interface: PolicyInterface) -> None:
        """Check that policy and simulator fit.

        Raises:
            UserError: they do not, with the part and the remedy.
        """
        check_law(settings)
        self.settings, self.interface = settings, interface
        self.sizes = PRESETS[settings.size]
        self.processing = Processing(settings, self.sizes, interface)
        for what, size, width in (
            ("state", self.processing.state_size, self.sizes.state_width),
            ("action", self.processing.action_size, self.sizes.action_width),
        ):
            if size > width:
                raise UserError(
                    f"policy.options.size = {settings.size}: the network's {what} holds {width} numbers, "
                    f"this simulator's has {size}; choose another simulator set-up"
                )

    @property
    def record_spec(self) -> tuple[FieldSpec, ...]:
        """The executed actions and the stochastic part of the denoise chain."""
        executed = (self.interface.chunk, self.interface.action_dim)
        return record_of_flow(self.settings, executed, (self.processing.horizon, self.sizes.action_width))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(shapes.parameters(self.settings, self.sizes, adaptive=self.family == "pi05"))

    def _trains(self, name: str) -> bool:
        """Whether reinforcement learning trains a parameter where there are no adapters."""
        return name.startswith((shapes.VALUE_HEAD, *shapes.PARTS[self.settings.train]))

    def linear_layers(self) -> Mapping[str, bool]:
        """Names of the network's linear layers, and whether reinforcement learning trains them."""
        return {
            name.removesuffix(".weight"): self._trains(name) and not name.startswith(shapes.VALUE_HEAD)
            for name, shape in self._shapes().items()
            if shapes.is_linear(name, shape)
        }

    def weight_counts(self, lora_rank: int, lora_targets: Sequence[str]) -> tuple[int, int]:
        """Numbers of all weights, and of those that train."""
        found = self._shapes()
        whole = sum(map(prod, found.values()))
        if not lora_rank:
            return whole, sum(prod(shape) for name, shape in found.items() if self._trains(name))
        layers = [name for name, trains in self.linear_layers().items() if trains]
        chosen = [n for n in layers if not lora_targets or any(re.search(t, n) for t in lora_targets)]
        adapters = sum(
            min(lora_rank, *found[f"{name}.weight"]) * sum(found[f"{name}.weight"]) for name in chosen
        )
        heads = sum(prod(shape) for name, shape in found.items() if name.startswith(shapes.VALUE_HEAD))
        return whole + adapters, adapters + heads

    def build(self, device: str, seed: int) -> PiNetwork:
        """Build the network; equal seeds give equal weights.

        Args:
            device: a torch device name such as ``cpu`` or ``cuda:0``.
            seed: of the initial weights.
        """
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.settings.pretrained:
                return self._pretrained(device)
            network = self._network()(self.settings, self.sizes, self.interface, self.processing)
        return network.to(device)

    def _pretrained(self, device: str) -> PiNetwork:
        """The network with a folder's weights, which are read once and never held twice.

        Raises:
            UserError: the folder does not fit.
        """
        import torch

        from rlvla3.policies.pi.naming import NAMES
        from rlvla3.policies.pretrained.layouts import find_published
        from rlvla3.policies.pretrained.loading import base_of_adapter, load_published
        from rlvla3.policies.pretrained.statistics import published_statistics

        found = find_published(Path(self.settings.pretrained).expanduser())
        base = base_of_adapter(found) if found.layout == "peft" else found
        check_family(base, self.family)
        with torch.device("meta"):
            network = self._network()(self.settings, self.sizes, self.interface, self.processing)
        network.add_own()
        load_published(network, found.folder, NAMES, device)
        mode, asset = self.settings.normalisation, self.settings.statistics
        network.use_statistics(published_statistics(base, mode, asset))
        return network.to(device)

    def exported(self, weights: Mapping[str, npt.NDArray[Any]]) -> Exported:
        """What ``rlvla3 export --layout`` writes of the network's weights.

        Raises:
            UserError: the folder that the policy began with is not there any more.
        """
        from rlvla3.policies.pi.naming import NAMES
        from rlvla3.policies.pretrained.layouts import find_published
        from rlvla3.policies.pretrained.loading import base_of_adapter
        from rlvla3.policies.pretrained.writing import Exported

        mode = self.settings.normalisation
        source = (
            find_published(Path(self.settings.pretrained).expanduser()) if self.settings.pretrained else None
        )
        if source is not None and source.layout == "peft":
            source = base_of_adapter(source)
        parts = ("state", "action") if self.processing.state_size else ("action",)
        ends = {
            part: (weights[f"{part}_normaliser.{mode}_shift"], weights[f"{part}_normaliser.{mode}_scale"])
            for part in parts
        }
        return Exported(
            family=self.family,
            weights={name: array for name, array in weights.items() if not name.startswith(NAMES.own)},
            mode=mode,
            statistics=ends,
            cameras=self.settings.cameras,
            image_size=self.sizes.vision.image,
            horizon=self.processing.horizon,
            executed=self.interface.chunk,
            state_width=self.sizes.state_width,
            action_width=self.sizes.action_width,
            tied=NAMES.tied,
            source=source,
        )

    @staticmethod
    def _network() -> type[PiNetwork]:
        from rlvla3.policies.pi.network import Pi0Network

        return Pi0Network


class Pi05(Pi0):
    """π0.5."""

    family: ClassVar[str] = "pi05"
    Settings: ClassVar[type[Settings]] = Pi05Settings

    @staticmethod
    def _network() -> type[PiNetwork]:
        from rlvla3.policies.pi.network import Pi05Network

        return Pi05Network
