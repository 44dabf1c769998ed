"""Memory that a configuration will take. Processes are known from measurement, the rest is counted."""

from collections.abc import Iterator

from rlvla3.assembly import Assembly
from rlvla3.checking.findings import Derived
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.policies.api import CountsWeights
from rlvla3.policies.tiny import architecture

_MIB = 2**20
_PROCESS_MIB = 60
"""A Python process with numpy and this package."""
_TORCH_MIB = 217
"""What importing torch adds."""
_SIMULATOR_MIB = {"metaworld": 370, "maniskill": 870, "synthetic": _PROCESS_MIB, "gymnasium": 95}
"""A process with one env, by adapter."""
_OTHER_SIMULATOR_MIB = 400
_TINY_REST = 230_000
"""Numbers of the tiny policy outside its blocks, about."""
_TINY_EMBEDDINGS = 150_000
"""Those of them that belong to the prefix, about."""
_TINY_VALUE_HEAD = 100_000
"""Those of the value head, about."""


def memory(assembly: Assembly) -> Iterator[Derived]:
    """Shared memory and processes."""
    config = assembly.config
    slab = assembly.layout.size / _MIB
    weights, trained, how = _weights_mib(assembly)
    published = trained if config.policy.publish == "trained" else weights
    buffers = assembly.settings.weight_buffers + (2 if assembly.settings.evaluation.starts else 0)
    torch = 0 if config.policy.kind == "emulated" else _TORCH_MIB
    simulators = config.simulator.members * _SIMULATOR_MIB.get(config.simulator.kind, _OTHER_SIMULATOR_MIB)
    generators = config.generator.members * (_PROCESS_MIB + torch + weights)
    trainers = config.trainer.members * (_PROCESS_MIB + torch) + _learner_mib(assembly, weights, trained)
    shared = slab + buffers * published
    total = shared + simulators + generators + trainers + _PROCESS_MIB
    yield Derived(name="slab", value=slab, unit="MiB", note="shared; reserved at the start")
    yield Derived(name="weights", value=weights, unit="MiB", note=how)
    yield Derived(name="trained", value=trained, unit="MiB", note=f"{how}: the part that trains")
    yield Derived(
        name="published",
        value=published,
        unit="MiB",
        note=f"of each version: {config.policy.publish}; {buffers} shared copies",
    )
    yield Derived(
        name="memory",
        value=total,
        unit="MiB",
        note=(
            f"estimated: shared {shared:.0f}, Simulators {simulators:.0f}, Generators {generators:.0f}, "
            f"Trainers {trainers:.0f} and their batch, controller {_PROCESS_MIB}"
        ),
    )


def _learner_mib(assembly: Assembly, weights: float, trained: float) -> float:
    """Weights and all that goes with those that train, of all Trainer members together.

    While an update runs: the gradient, the average, two moments, the version before, and copies of weights,
    average and moments to put back where it is skipped.
    """
    trainer, options, needs = (
        assembly.config.trainer,
        assembly.config.learner.options,
        assembly.algorithm.needs,
    )
    own = isinstance(options, ReinforcementSettings) and options.streamed_statistics == "own"
    streams = assembly.config.schedule.streams and needs.normalised and own
    copies = 9 + needs.reference + 2 * streams
    whole = weights + copies * trained
    return whole if trainer.sharing == "weights" else trainer.members * whole


def _weights_mib(assembly: Assembly) -> tuple[float, float, str]:
    """All weights, those that train, and how they are known. Adapters count in both."""
    policy = assembly.config.policy
    if policy.kind == "emulated":
        weights = 4 * policy.options.weight_count / _MIB
        return weights, weights, "counted"
    if isinstance(assembly.policy, CountsWeights):
        whole, trained = assembly.policy.weight_counts(policy.lora.rank, policy.lora.targets)
        frozen = 2 if policy.frozen_weights == "bfloat16" else 4
        return (4 * trained + frozen * (whole - trained)) / _MIB, 4 * trained / _MIB, "counted"
    if policy.kind != "tiny":
        return 0.0, 0.0, "unknown before the policy is built"
    sizes = architecture(policy.options)
    # A block has about 12 w² numbers: 4 w² around the attention, 8 w² in the layer after it.
    expert = 12 * sizes.layers * sizes.expert_width**2
    whole = expert + 12 * sizes.layers * sizes.width**2 + _TINY_REST
    frozen = sizes.layers - policy.options.unfreeze_last_blocks if policy.options.freeze_prefix else 0
    trained = whole - 12 * frozen * sizes.width**2 - (_TINY_EMBEDDINGS if frozen else 0)
    rank = policy.lora.rank
    if rank:
        # Of a block's layers, the widths of inputs and outputs add up to 16 w (expert: 12 w and 4 heads' w).
        sides = sizes.layers * (12 * sizes.expert_width + 4 * sizes.width)
        sides += (sizes.layers - frozen) * 16 * sizes.width
        trained = rank * sides + _TINY_VALUE_HEAD
        whole += rank * sides
    return 4 * whole / _MIB, 4 * trained / _MIB, "estimated from policy"
