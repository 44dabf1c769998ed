"""What a configuration asks for and this machine does not have."""

import importlib.util
from collections.abc import Iterator, Sequence

from rlvla3.assembly import Assembly
from rlvla3.checking.findings import Derived, Finding
from rlvla3.config import Config
from rlvla3.devices import missing_device
from rlvla3.doctor import usable_memory
from rlvla3.simulators.api import Installed, Simulator

_MIB = 2**20


def lacking(assembly: Assembly, numbers: Sequence[Derived]) -> list[Finding]:
    """Everything that is missing here. ``numbers``: what follows from the configuration."""
    config = assembly.config
    return [*_memory(numbers), *_devices(config), *_packages(config), *_simulator(assembly.simulator)]


def _memory(numbers: Sequence[Derived]) -> Iterator[Finding]:
    needed = next(number.value for number in numbers if number.name == "memory")
    free = usable_memory() / _MIB
    if needed > free:
        yield Finding(
            field="memory",
            text=f"about {needed:,.0f} MiB are needed, this machine has {free:,.0f} MiB left; lower "
            "simulator.members or envs, trainer.batch, or the size of images and policy",
        )


def _devices(config: Config) -> Iterator[Finding]:
    asked = {"generator.device": config.generator.device, "trainer.device": config.trainer.device}
    for field, device in asked.items():
        if device in ("auto", "cpu") or config.policy.kind == "emulated":
            continue
        fault = missing_device(device)
        if fault:
            yield Finding(field=field, text=f"{device}: {fault}; use auto or cpu")


def _simulator(simulator: Simulator) -> Iterator[Finding]:
    if isinstance(simulator, Installed) and (missing := simulator.lacks()):
        yield Finding(field="simulator", text=missing)


def _packages(config: Config) -> Iterator[Finding]:
    if config.log.wandb != "off" and importlib.util.find_spec("wandb") is None:
        yield Finding(
            field="log.wandb",
            text=f"{config.log.wandb} needs wandb, which is not installed; pip install 'rlvla3[wandb]' or "
            "set it to off",
        )
