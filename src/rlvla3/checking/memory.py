"""Memory that a configuration will take. Processes are known from measurement, the rest is counted."""

from collections.abc import Iterator

from rlvla3.assembly import Assembly
from rlvla3.checking.findings import Derived
from rlvla3.policies.tiny import architecture

_MIB = 2**20
_PROCESS_MIB = 60
"""A Python process with numpy and this package."""
_TORCH_MIB = 217
"""What importing torch adds."""
_SIMULATOR_MIB = {"metaworld": 370, "synthetic": _PROCESS_MIB, "gymnasium": 95}
"""A process with one env, by adapter."""
_OTHER_SIMULATOR_MIB = 400
_TINY_REST = 230_000
"""Numbers of the tiny policy outside its blocks, about."""


def memory(assembly: Assembly) -> Iterator[Derived]:
    """Shared memory and processes."""
    config = assembly.config
    slab = assembly.layout.size / _MIB
    weights, how = _weights_mib(assembly)
    buffers = assembly.settings.weight_buffers + (2 if assembly.settings.evaluation.starts else 0)
    torch = 0 if config.policy.kind == "emulated" else _TORCH_MIB
    simulators = config.simulator.members * _SIMULATOR_MIB.get(config.simulator.kind, _OTHER_SIMULATOR_MIB)
    # A Trainer holds weights, gradients, two moments and an average; a Generator one copy.
    generators = config.generator.members * (_PROCESS_MIB + torch + weights)
    trainers = config.trainer.members * (_PROCESS_MIB + torch + 5 * weights)
    shared = slab + buffers * weights
    total = shared + simulators + generators + trainers + _PROCESS_MIB
    yield Derived(name="slab", value=slab, unit="MiB", note="shared; reserved at the start")
    yield Derived(name="weights", value=weights, unit="MiB", note=f"{how}; {buffers} shared copies")
    yield Derived(
        name="memory",
        value=total,
        unit="MiB",
        note=(
            f"estimated: shared {shared:.0f}, Simulators {simulators:.0f}, Generators {generators:.0f}, "
            f"Trainers {trainers:.0f} and their batch, controller {_PROCESS_MIB}"
        ),
    )


def _weights_mib(assembly: Assembly) -> tuple[float, str]:
    policy = assembly.config.policy
    if policy.kind == "emulated":
        return 4 * policy.options.weight_count / _MIB, "counted"
    if policy.kind == "tiny":
        sizes = architecture(policy.options)
        # A block has about 12 w² numbers: 4 w² around the attention, 8 w² in the layer after it.
        blocks = 12 * sizes.layers * (sizes.width**2 + sizes.expert_width**2)
        return 4 * (blocks + _TINY_REST) / _MIB, "estimated from policy.options"
    return 0.0, "unknown before the policy is built"
