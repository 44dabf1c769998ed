"""Builds a member's role from its part, in the member's own process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rlvla3.assembly import Assembly, Part
from rlvla3.config import Config
from rlvla3.devices import card_of, resolve_device
from rlvla3.learner.api import Learner
from rlvla3.learner.registry import LearnerContext, learner_class
from rlvla3.messages import Channel, Version
from rlvla3.policies.api import PolicyModel
from rlvla3.roles.generator import GeneratorRole
from rlvla3.roles.lane import Emit
from rlvla3.roles.lane_slots import SlotPlan
from rlvla3.roles.simulator import SimulatorRole
from rlvla3.roles.trainer import TrainerRole
from rlvla3.runtime.payloads import map_slab
from rlvla3.runtime.weights import WeightBuffers

Report = Callable[[str, Mapping[str, float]], None]
Arrays = Mapping[str, npt.NDArray[Any]]


class SharedWeights:
    """Both channels' buffers, mapped when they are first used."""

    def __init__(self, part: Part, buffers: int) -> None:
        self._descriptors: dict[Channel, int] = {"rollout": part.rollout, "evaluation": part.evaluation}
        self._counts: dict[Channel, int] = {"rollout": buffers, "evaluation": 2}
        self._mapped: dict[Channel, WeightBuffers] = {}

    def read(self, channel: Channel, buffer: int, version: Version) -> dict[str, npt.NDArray[Any]]:
        """A private copy of a published version."""
        if channel not in self._mapped:
            self._mapped[channel] = WeightBuffers.open(self._descriptors[channel])
        return self._mapped[channel].read(buffer, version)

    def write(self, channel: Channel, buffer: int, version: Version, weights: Arrays) -> None:
        """Write a version; the first write lays the buffers out."""
        if channel not in self._mapped:
            self._mapped[channel] = WeightBuffers.lay_out(
                self._descriptors[channel], self._counts[channel], weights
            )
        self._mapped[channel].write(buffer, version, weights)


def build_role(part: Part, emit: Emit, report: Report) -> Any:
    """The role that ``part`` names."""
    assembly = Assembly(Config.model_validate_json(part.config), training=part.training)
    builders = {"simulator": _simulator, "generator": _generator, "trainer": _trainer}
    return builders[part.role](part, assembly, emit, report)


def _simulator(part: Part, assembly: Assembly, emit: Emit, report: Report) -> SimulatorRole:
    lanes = assembly.config.simulator.lanes
    mine = [s for s in assembly.topology.slots if s.member == part.member]
    plans = [SlotPlan(slot=s.slot, envs=s.envs, lane=i % lanes) for i, s in enumerate(mine)]
    return SimulatorRole(
        member=part.member,
        simulator=assembly.simulator,
        slots=plans,
        slab=map_slab(part.slab, assembly.layout),
        emit=emit,
        round_s=assembly.config.simulator.round_ms / 1000,
        replan=0 if part.training else assembly.config.evaluation.replan,
    )


def _generator(part: Part, assembly: Assembly, emit: Emit, report: Report) -> GeneratorRole:
    config = assembly.config
    device = _device(
        "generator.device", config.generator.device, config.policy.kind, config.generator.threads
    )
    from rlvla3.learner.starting import starting_model

    initial = None
    if not part.training:
        from rlvla3.learner.checkpoint import load_policy

        loaded = load_policy(Path(part.weights), averaged=part.averaged)
        initial = (Version(loaded.version), dict(loaded.weights))

    def build() -> PolicyModel:
        # Where only what trains is published, the rest is what the Trainer began with.
        partial = part.training and config.policy.publish == "trained"
        model: PolicyModel = starting_model(
            assembly.policy,
            config.policy,
            device,
            config.seed,
            use="serve" if part.training else "evaluate",
            weights=config.weights if partial else "",
        )
        return model

    return GeneratorRole(
        member=part.member,
        build=build,
        weights=SharedWeights(part, assembly.settings.weight_buffers),
        slab=map_slab(part.slab, assembly.layout),
        seed=config.seed,
        emit=emit,
        initial=initial,
        pad_to=config.generator.max_batch_size if config.schedule.deterministic else 0,
    )


def _trainer(part: Part, assembly: Assembly, emit: Emit, report: Report) -> TrainerRole:
    from rlvla3.learner.keeping import CheckpointKeeper

    config = assembly.config
    device = _device("trainer.device", config.trainer.device, config.policy.kind, config.trainer.threads)
    if part.ranks > 1 and config.trainer.device in ("auto", "cuda"):
        device = card_of(device, part.rank)
    keeper = CheckpointKeeper(Path(part.folder), config, assembly.fingerprint())

    def build() -> Learner:
        context = LearnerContext(
            policy=assembly.policy,
            algorithm=assembly.algorithm,
            device=device,
            seed=config.seed,
            streaming=config.schedule.streams,
            final_values=assembly.settings.training.bootstrap == "trainer",
            weights="" if part.resume else config.weights,
            model=config.policy,
            rank=part.rank,
            ranks=part.ranks,
            sharing=config.trainer.sharing == "weights",
            store=part.store,
        )
        learner = learner_class(config.learner.kind).build(config.learner.options, context)
        if part.resume:
            keeper.restore(learner, Path(part.resume))
        return learner

    return TrainerRole(
        member=part.member,
        first=part.rank == 0,
        build=build,
        weights=SharedWeights(part, assembly.settings.weight_buffers),
        keeper=keeper,
        slab=map_slab(part.slab, assembly.layout),
        emit=emit,
        report=report,
    )


def _device(setting: str, device: str, policy: str, threads: int) -> str:
    """Resolve ``auto`` and limit torch's threads; a policy without torch does not import it.

    Raises:
        UserError: torch cannot use the device that ``setting`` names.
    """
    if policy == "emulated":
        return "cpu"
    import torch

    torch.set_num_threads(threads)
    return resolve_device(setting, device)
