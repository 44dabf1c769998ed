"""What a configuration asks for and this machine does not have."""

import importlib.util
from collections.abc import Iterator, Sequence

from rlvla3.checking.findings import Derived, Finding
from rlvla3.config import Config
from rlvla3.devices import has_cuda, missing_device
from rlvla3.doctor import usable_memory
from rlvla3.simulators.api import SimulatorSpec

_MIB = 2**20


def lacking(config: Config, spec: SimulatorSpec, numbers: Sequence[Derived]) -> list[Finding]:
    """Everything that is missing here.

    Args:
        config: the whole configuration.
        spec: of its simulator.
        numbers: what follows from the configuration.
    """
    return [*_memory(numbers), *_devices(config), *simulator_device(config, spec), *_packages(config)]


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


def simulator_device(config: Config, spec: SimulatorSpec) -> Iterator[Finding]:
    """The device that a simulator's envs need, if it is not here; no other environment is asked."""
    if spec.needs_cuda and not config.simulator.python and not has_cuda():
        option, _, value = spec.needs_cuda.partition("=")
        yield Finding(
            field=f"simulator.options.{option}",
            text=f"{value} needs a CUDA device, and torch sees none here; use another machine, or leave "
            "it out",
        )


def _packages(config: Config) -> Iterator[Finding]:
    if config.log.wandb != "off" and importlib.util.find_spec("wandb") is None:
        yield Finding(
            field="log.wandb",
            text=f"{config.log.wandb} needs wandb, which is not installed; pip install 'rlvla3[wandb]' or "
            "set it to off",
        )
