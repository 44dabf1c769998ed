"""From a configuration to what a runtime needs: specs, engine settings, slab layout, parts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rlvla3.algorithms.api import Algorithm, Groups
from rlvla3.algorithms.own import Own
from rlvla3.algorithms.registry import algorithm_class
from rlvla3.config import Config
from rlvla3.config_evaluation import evaluation_settings
from rlvla3.config_training import refusals, task_settings
from rlvla3.core.batcher import ORDERS, Pending
from rlvla3.core.settings import (
    BatchingSettings,
    EngineSettings,
    EvaluationSettings,
    HealthSettings,
    SlotSettings,
    TaskSettings,
    Topology,
    TrainingSettings,
)
from rlvla3.elsewhere import adapter_class
from rlvla3.errors import UserError, refusals_of, refuse
from rlvla3.learner.checkpoint import RESUMED
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.messages import Env, FieldSpec, Member, Slot
from rlvla3.plugins import guarded, resolve
from rlvla3.policies.api import NamesLayers, Policy, PolicyInterface
from rlvla3.policies.choosing import choose_named
from rlvla3.policies.registry import policy_class, weight_shapes
from rlvla3.runtime.payloads import SlabLayout
from rlvla3.simulators.api import Simulator, SimulatorSpec
from rlvla3.simulators.registry import build, require, spec_of

EVALUATION_CHUNKS = 2
"""Chunks kept of an evaluation episode: its row is written round and round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a Generator or a member of the Trainer is told at its start."""

    role: Literal["generator", "trainer"]
    member: Member
    rank: int
    """Which of the Trainer's members it is, from 0; the first one writes and reports. 0 in other roles."""
    ranks: int
    """Members of the Trainer; 1 in other roles."""
    store: str
    """Empty file, new at each start of the runtime, where several members of the Trainer find each other;
    else no name at all."""
    config: str
    """The resolved configuration as JSON."""
    asked: str
    """What other Python environments said about it (``elsewhere.asking.known``): members do not ask again."""
    training: bool
    """False for a pure evaluation."""
    folder: str
    """The run folder."""
    resume: str
    """Checkpoint that the Trainer continues from; empty for a new run."""
    weights: str
    """Where a Generator of a pure evaluation takes its weights from."""
    averaged: bool
    """Whether these are the averaged ones, where both exist."""
    slab: int
    rollout: int
    evaluation: int
    """File descriptors of the shared memories."""


class Assembly:
    """A configuration with everything that follows from it. Cheap: no torch, no simulator."""

    def __init__(self, config: Config, *, training: bool = True, videos: str = "") -> None:
        """``videos``: folder for the recorded evaluation episodes."""
        self.config = config
        self.training = training
        self._videos = videos

    @cached_property
    def simulator(self) -> Simulator:
        """The adapter."""
        config = self.config.simulator
        return build(config.kind, adapter_class(config.kind, config.python), config.options)

    def require_simulator(self) -> None:
        """Make sure that what the adapter needs is in the environment where its processes run.

        Raises:
            UserError: it is not, with the remedy.
        """
        if self.config.simulator.python:
            _ = self.spec  # that environment looks when it is asked
        else:
            require(self.config.simulator.kind, self.simulator)

    @cached_property
    def spec(self) -> SimulatorSpec:
        """What the adapter offers.

        Raises:
            UserError: an adapter of the user's own does not say it, or says what cannot be.
        """
        kind = self.config.simulator.kind
        found = spec_of(kind, self.simulator)
        refuse(f"simulator.kind = {kind!r}: its spec is wrong: {fault}" for fault in found.faults())
        return found

    @cached_property
    def interface(self) -> PolicyInterface:
        """What the policy is connected to."""
        return PolicyInterface(
            observation=self.spec.observation,
            instructions=self.spec.instructions,
            action_dim=self.spec.action_dim,
            chunk=self.config.simulator.chunk,
            meaning=self.spec.meaning,
        )

    @cached_property
    def policy(self) -> Policy:
        """The policy family."""
        config = self.config.policy
        family = policy_class(config.kind)
        with guarded("policy.kind", config.kind, family):
            return family(config.options, self.interface)

    @cached_property
    def adapted_layers(self) -> Sequence[str] | None:
        """Names of the layers that get adapters in training; None: the policy does not name its layers.

        Raises:
            UserError: ``policy.lora`` does not fit them.
        """
        policy, lora = self.policy, self.config.policy.lora
        if not (lora.rank and self.training):
            return ()
        if not isinstance(policy, NamesLayers):
            return None
        with guarded("policy.kind", self.config.policy.kind):
            return choose_named(policy.linear_layers(), lora)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm.

        Raises:
            UserError: it does not say what it needs.
        """
        config = self.config.algorithm
        chosen = algorithm_class(config.kind)
        with guarded("algorithm.kind", config.kind, chosen):
            made = chosen(config.options)
        found: Any = Own(made, config.kind) if ":" in config.kind else made
        algorithm: Algorithm = found
        return algorithm

    @cached_property
    def chunks(self) -> int:
        """T: chunks that a row holds.

        Raises:
            UserError: episodes without a step limit have no longest length.
        """
        if not self.training:
            return EVALUATION_CHUNKS
        trainer, chunk = self.config.trainer, self.config.simulator.chunk
        if trainer.trajectory == "segment":
            return trainer.chunks
        longest = -(-max(self.spec.step_limits) // chunk) if all(self.spec.step_limits) else 0
        if trainer.chunks and longest and trainer.chunks < longest:
            raise UserError(
                f"trainer.chunks = {trainer.chunks} is shorter than an episode of {longest} chunks; "
                "leave it out, or set trainer.trajectory: segment"
            )
        if not (trainer.chunks or longest):
            raise UserError(
                "trainer.chunks is needed: whole episodes without a step limit have no longest length; "
                "set it, give simulator.options.step_limits, or set trainer.trajectory: segment"
            )
        return trainer.chunks or longest

    @property
    def lanes(self) -> int:
        """Lanes of one Simulator that have slots; an env batch that steps as a whole is in one lane."""
        return min(self.config.simulator.lanes, self._steppers)

    @property
    def slots_at_once(self) -> int:
        """Slots that one Simulator steps at the same time; env batches where these step as a whole."""
        return self._steppers if self.spec.waits else self.lanes

    @property
    def _steppers(self) -> int:
        config = self.config.simulator
        return config.batches * (1 if self.spec.steps_together else len(config.slot_sizes))

    @cached_property
    def topology(self) -> Topology:
        """Members and slots, numbered Simulator by Simulator, batch by batch."""
        config, env = self.config.simulator, 0
        trainers = self.config.trainer.members if self.training else 0
        slots: list[SlotSettings] = []
        simulators = tuple(Member(f"simulator-{i}") for i in range(config.members))
        for member in simulators:
            for stage in range(config.batches):
                for size in config.slot_sizes:
                    envs = tuple(Env(e) for e in range(env, env + size))
                    slots.append(SlotSettings(slot=Slot(len(slots)), member=member, envs=envs, stage=stage))
                    env += size
        return Topology(
            simulators=simulators,
            generators=tuple(Member(f"generator-{i}") for i in range(self.config.generator.members)),
            trainers=tuple(Member(f"trainer-{i}") for i in range(trainers)),
            slots=tuple(slots),
            together=self.spec.steps_together,
        )

    @cached_property
    def settings(self) -> EngineSettings:
        """The engine's settings.

        Raises:
            UserError: one line for each thing in the configuration that does not go with another.
        """
        self._refuse()
        return EngineSettings(
            topology=self.topology,
            batching=self._batching(),
            training=self._training(),
            evaluation=self._evaluation,
            health=HealthSettings(**self.config.health.model_dump(), recycle_after=self.recycle_after),
            rows=self.rows,
        )

    def _refuse(self) -> None:
        refuse(refusals_of(lambda: self.spec, lambda: self.algorithm))
        found = list(refusals(self.config, self.algorithm.needs, self.spec))
        found += refusals_of(lambda: self.chunks, lambda: self.recycle_after, lambda: self.adapted_layers)
        found += refusals_of(self._batching, lambda: self._tasks, lambda: self._evaluation)
        refuse(found)

    @property
    def rows(self) -> int:
        """Rows of the trajectory slab."""
        config, evaluation = self.config, self._evaluation
        evaluating = evaluation.max_envs if evaluation.starts else 0
        if not self.training:
            return evaluating
        return config.trainer.batch * (config.schedule.lag + 1) + config.simulator.total_envs + evaluating

    @cached_property
    def recycle_after(self) -> int:
        """Episodes that a Simulator's process begins before a fresh one takes its place; 0: any number.

        Raises:
            UserError: it cannot be replaced between episodes, because each env has its quota of segments.
        """
        config = self.config.simulator
        if config.recycle_after == "auto":
            after = self.spec.recycle_after and max(self.spec.recycle_after, config.batches * config.envs)
        else:
            after = config.recycle_after
        if after and self.training and self._quota:
            raise UserError(
                f"simulator.recycle_after = {config.recycle_after} ({after} episodes) needs envs that can "
                "wait for each other: with schedule.deterministic use whole episodes, or recycle_after: 0"
            )
        return after

    @property
    def _quota(self) -> int:
        """Segments that each env runs for one version; 0: no quota."""
        config = self.config
        segments = config.schedule.deterministic and config.trainer.trajectory == "segment"
        return config.trainer.batch // config.simulator.total_envs if segments else 0

    def _batching(self) -> BatchingSettings:
        generator = self.config.generator
        pins = {s.slot: s.slot % generator.members for s in self.topology.slots}
        pins |= {Slot(slot): index for slot, index in generator.pins.items()}
        return BatchingSettings(
            max_batch_size=generator.max_batch_size,
            batch_timeout_s=generator.batch_timeout_ms / 1000,
            linger_s=generator.linger_ms / 1000,
            order=ORDERS.get(generator.order) or self._own_order(generator.order),
            lockstep=self.config.schedule.lockstep and self.training,
            routing=generator.routing,
            pins=pins,
        )

    def _own_order(self, name: str) -> Callable[[Pending], Any]:
        key = resolve("generator.order", name, {})

        def order(pending: Pending) -> Any:
            with guarded("generator.order", name, key):
                return key(pending)

        return order

    @property
    def _bootstrap(self) -> Literal["generator", "trainer"]:
        """Who computes final values: Generators are not asked where there are none, or all are made anew."""
        options = self.config.learner.options
        anew = isinstance(options, ReinforcementSettings) and options.recompute_values
        return "trainer" if anew or not self.algorithm.needs.values else self.config.trainer.bootstrap

    def _training(self) -> TrainingSettings:
        config, trainer = self.config, self.config.trainer
        groups, deterministic = self.groups, config.schedule.deterministic
        return TrainingSettings(
            batch=trainer.batch,
            max_lag=config.schedule.lag,
            on_stale=config.schedule.on_stale,
            micro_batch=trainer.micro_batch,
            updates=trainer.updates,
            bootstrap=self._bootstrap,
            checkpoint_every=config.checkpoint.every_versions,
            quota=self._quota,
            max_skipped=trainer.max_skipped,
            step_limits=self.spec.step_limits,
            tasks=self._tasks,
            group_size=groups.size,
            group_score=groups.score,
            group_replacements=groups.replacements,
            # Which gradients are added first, and by whom, would otherwise depend on the order of arrival.
            ordered=deterministic and (config.schedule.streams or trainer.members > 1),
        )

    @cached_property
    def _tasks(self) -> TaskSettings:
        return task_settings(self.config, self.spec.tasks)

    @property
    def groups(self) -> Groups:
        """What the algorithm asks for; groups of one where it asks for none."""
        return self.algorithm.needs.groups or Groups(size=1)

    @cached_property
    def _evaluation(self) -> EvaluationSettings:
        return evaluation_settings(self.config, self.spec, training=self.training, videos=self._videos)

    @property
    def units(self) -> int:
        """Groups of one version; trajectories where there are no groups."""
        return self.config.trainer.batch // self.groups.size

    @cached_property
    def layout(self) -> SlabLayout:
        """The trajectory slab."""
        with guarded("policy.kind", self.config.policy.kind):
            record: tuple[FieldSpec, ...] = self.policy.record_spec
        return SlabLayout.make(
            rows=self.rows,
            chunks=self.chunks,
            chunk=self.config.simulator.chunk,
            observation=self.spec.observation,
            record=record,
        )

    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must match to be used here: the simulator, the interface and the weights.

        The entry ``RESUMED`` is looked at by a resume only, so that a policy can be used on other tasks.
        """
        return {
            "simulator": dict(self.spec.fingerprint),
            "observation": [[f.name, list(f.shape), f.dtype] for f in self.interface.observation],
            "action_dim": self.interface.action_dim,
            "chunk": self.interface.chunk,
            "policy": self.config.policy.kind,
            "weights": dict(weight_shapes(self.config.policy.kind, self.config.policy.options)),
            RESUMED: self._resumed(),
        }

    def _resumed(self) -> dict[str, Any]:
        """What a resume continues besides: the sequence of starts, whose turn it is in it, adapters."""
        fixed = self.training and self.settings.training.quota
        envs = self.config.simulator.total_envs if fixed else 0
        lora = self.config.policy.lora
        # Named only where there are adapters, so that checkpoints of before they were a setting still match.
        adapters = {"lora": lora.model_dump(mode="json")} if lora.rank else {}
        return {"tasks": list(self.spec.tasks), "envs_with_a_quota": envs, **adapters}
