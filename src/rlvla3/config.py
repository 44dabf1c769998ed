"""The configuration tree: typed, frozen, every field documented, checked before anything starts."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from rlvla3.config_components import AlgorithmConfig, LearnerConfig, PolicyConfig
from rlvla3.config_groups import (
    CheckpointConfig,
    EvaluationConfig,
    GeneratorConfig,
    HealthConfig,
    ImitationConfig,
    LogConfig,
    ScheduleConfig,
    SimulatorConfig,
    TasksConfig,
    TrainerConfig,
)
from rlvla3.config_loading import OptionsError, dropped, load
from rlvla3.elsewhere import adapter_class
from rlvla3.settings import Settings

RECIPES = Path(__file__).parent / "recipes"
RENAMED: dict[str, str] = {
    "starts.weights": "tasks.weights",
    "starts.states": "tasks.states",
    "learner.options.normalise_advantages": "algorithm.options.normalise_advantages",
}
"""Old dotted key -> new dotted key; the old one fails with the new name."""


class Config(Settings):
    """Everything about a run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$", max_length=100)
    """Name of the run, of letters, digits and _.+-; the default run folder is ``runs/NAME``."""
    description: str = ""
    """What the recipe is for."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds weights, exploration noise, minibatches and demonstrations."""
    budget_s: float = Field(default=0.0, ge=0)
    """Seconds of training after which the run ends with a checkpoint; 0: no limit."""
    weights: str = ""
    """Run folder, checkpoint or export that training starts from; empty: fresh weights."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How asynchronous the run is."""
    simulator: SimulatorConfig = SimulatorConfig()
    """Simulators."""
    generator: GeneratorConfig = GeneratorConfig()
    """Generators."""
    trainer: TrainerConfig = TrainerConfig()
    """The Trainer."""
    policy: PolicyConfig = PolicyConfig()
    """The policy."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The algorithm."""
    learner: LearnerConfig = LearnerConfig()
    """The learner."""
    tasks: TasksConfig = TasksConfig()
    """Which episodes are run."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation."""
    imitation: ImitationConfig = ImitationConfig()
    """The supervised warm start."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    health: HealthConfig = HealthConfig()
    """Fault detection."""
    log: LogConfig = LogConfig()
    """Figures."""

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if found := [*self._sizes(), *self._pins(), *self._quota()]:
            raise ValueError("\n".join(found))
        self._check_demonstrations()
        return self

    def _sizes(self) -> Iterator[str]:
        largest = max(self.simulator.slot_sizes)
        if largest > self.generator.max_batch_size:
            yield (
                f"generator.max_batch_size = {self.generator.max_batch_size} is smaller than a slot of "
                f"{largest} envs, which is served whole; use max_batch_size >= {largest} or more slots "
                "(simulator.slots, simulator.envs)"
            )
        if self.trainer.trajectory == "segment" and not self.trainer.chunks:
            yield "trainer.chunks must be at least 1 for trainer.trajectory: segment, got 0"
        if self.trainer.micro_batch > self.trainer.batch:
            yield (
                f"trainer.micro_batch = {self.trainer.micro_batch} is larger than trainer.batch = "
                f"{self.trainer.batch}; use at most {self.trainer.batch}"
            )
        if self.evaluation.replan > self.simulator.chunk:
            yield (
                f"evaluation.replan = {self.evaluation.replan} is more than simulator.chunk = "
                f"{self.simulator.chunk}, the actions of one inference; use at most {self.simulator.chunk}"
            )

    @property
    def demonstrated(self) -> Settings:
        """Options of the simulator while demonstrating.

        Raises:
            ValidationError: they are not what the simulator wants.
        """
        options, different = self.simulator.options, self.imitation.demonstrations.simulator
        found: Settings = type(options).model_validate(options.model_dump() | different)
        return found

    def _check_demonstrations(self) -> None:
        name = "imitation.demonstrations.simulator"
        if not self.imitation.demonstrations.simulator:
            return
        try:
            demonstrated = self.demonstrated
        except ValidationError as error:
            raise OptionsError(name, type(self.simulator.options), error) from error
        simulator = adapter_class(self.simulator.kind, self.simulator.python)
        here, there = simulator(self.simulator.options).spec, simulator(demonstrated).spec
        for what in ("observation", "action_dim", "tasks"):
            if getattr(here, what) != getattr(there, what):
                raise ValueError(
                    f"{name}: demonstrations must have the same {what} as the simulator's; "
                    "leave out what changes it"
                )

    def _pins(self) -> Iterator[str]:
        slots = self.simulator.members * self.simulator.batches * len(self.simulator.slot_sizes)
        for slot, generator in self.generator.pins.items():
            if not 0 <= slot < slots or not 0 <= generator < self.generator.members:
                yield (
                    f"generator.pins: slot {slot} -> Generator {generator} is outside slots 0…{slots - 1} "
                    f"and Generators 0…{self.generator.members - 1}; use numbers of these"
                )

    def _quota(self) -> Iterator[str]:
        envs, batch = self.simulator.total_envs, self.trainer.batch
        if self.schedule.deterministic and self.trainer.trajectory == "segment" and batch % envs:
            low, high = batch // envs * envs, -(-batch // envs) * envs
            near = " or ".join(str(n) for n in (low, high) if n)
            yield (
                f"schedule.deterministic gives each of the {envs} envs the same number of segments: "
                f"trainer.batch = {batch} must be a multiple of {envs}; nearest: {near}"
            )


def load_config(source: str | Path, overrides: list[str]) -> Config:
    """A recipe by name or path, with ``key.path=value`` overrides.

    Raises:
        UserError: one line for each fault.
    """
    return load(Config, source, overrides, RECIPES, RENAMED)


def dropped_options(source: str | Path, overrides: Sequence[str]) -> list[str]:
    """A notice for each override of a kind that drops what the recipe sets for another kind.

    Raises:
        UserError: as for ``load_config``.
    """
    return dropped(source, overrides, RECIPES)
