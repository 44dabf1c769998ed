"""The policy families π0 and π0.5. Importing this module does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rlvla3.errors import UserError
from rlvla3.messages import FieldSpec
from rlvla3.policies.api import PolicyInterface
from rlvla3.policies.flow_settings import check_law, record_of_flow
from rlvla3.policies.pi.processing import Processing
from rlvla3.policies.pi.settings import Pi0Settings, Pi05Settings, PiSettings
from rlvla3.policies.pi.sizes import PRESETS
from rlvla3.settings import Settings

if TYPE_CHECKING:
    from rlvla3.policies.pi.network import PiNetwork


class Pi0:
    """π0."""

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

    def build(self, device: str, seed: int) -> PiNetwork:
        """Build the network; equal seeds give equal weights.

        Args:
            device: a torch device name such as ``cpu`` or ``cuda:0``.
            seed: of the initial weights.
        """
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self._network()(self.settings, self.sizes, self.interface, self.processing)
        return network.to(device)

    @staticmethod
    def _network() -> type[PiNetwork]:
        from rlvla3.policies.pi.network import Pi0Network

        return Pi0Network


class Pi05(Pi0):
    """π0.5."""

    Settings: ClassVar[type[Settings]] = Pi05Settings

    @staticmethod
    def _network() -> type[PiNetwork]:
        from rlvla3.policies.pi.network import Pi05Network

        return Pi05Network
