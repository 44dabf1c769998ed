"""The supervised warm start: collect demonstrations, fit the policy to them."""

import os
from collections.abc import Callable
from pathlib import Path

from rlvla3 import demonstrations
from rlvla3.assembly import Assembly
from rlvla3.commands.running import require_gl, require_simulator
from rlvla3.config import Config
from rlvla3.demonstrations import Dataset, Plan
from rlvla3.devices import resolve_device
from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.checkpoint import Description, Kept

DATASET = "demonstrations.safetensors"


def collect(config: Config, folder: Path, *, tell: Callable[[str], None] = lambda text: None) -> Dataset:
    """The demonstrations of a recipe: those in the folder if it would make the same, or new ones.

    ``tell``: gets a line that says what becomes of demonstrations in the folder.

    Raises:
        UserError: no expert, or they cannot be written.
    """
    path = folder / DATASET
    assembly = Assembly(config, training=False)
    wanted = config.imitation.demonstrations
    plan = Plan(
        kind=config.simulator.kind,
        settings=config.demonstrated.model_dump(mode="json"),
        tasks=tuple(range(len(assembly.spec.tasks))),
        per_task=wanted.per_task,
        speed=wanted.speed,
        noise=wanted.noise,
        stride=wanted.stride,
        chunk=config.simulator.chunk,
        seed=config.seed,
        python=config.simulator.python,
    )
    if path.exists():
        try:
            stored = demonstrations.load(path)
            other = ", ".join(demonstrations.differing(stored, plan))
        except UserError as error:
            other = str(error)
        if not other:
            tell(f"{path}: used again")
            return stored
        tell(f"{path}: replaced, they are collected anew (other: {other})")
    require_simulator(assembly)
    require_gl(assembly)
    dataset = demonstrations.collect(plan, wanted.workers)
    demonstrations.save(dataset, path)
    return dataset


def fit(
    config: Config,
    dataset: Dataset,
    folder: Path,
    *,
    weights: str = "",
    report: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> Path:
    """Fit the policy to demonstrations; returns the checkpoint folder of its weights.

    ``weights``: a policy to go on from; its normalisation statistics are kept then.
    """
    # Threads that spin while they wait make a busy core several times slower; read at torch's import.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rlvla3.learner.imitation import Demonstrations, Imitation
    from rlvla3.learner.starting import starting_model

    assembly = Assembly(config, training=False)
    device = resolve_device("trainer.device", config.trainer.device)
    model = starting_model(
        assembly.policy, config.policy, device, config.seed, use="imitate", weights=weights
    )
    learner = Imitation(model, config.imitation.options, seed=config.seed)
    data = Demonstrations(observation=dataset.observation, task=dataset.task, actions=dataset.actions)
    learner.run(data, fit_processors=not weights, report=lambda p: report(p.step, p.steps, p.loss))
    description = Description(
        version=0, score=None, fingerprint=assembly.fingerprint(), config=config.model_dump_json()
    )
    return Kept(folder / checkpoint.CHECKPOINTS, 1).save_best(model.arrays(), description)
