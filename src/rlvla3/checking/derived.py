"""Every number that follows from a configuration."""

from collections.abc import Iterator
from itertools import groupby

from rlvla3.assembly import Assembly
from rlvla3.checking.findings import Derived
from rlvla3.checking.memory import memory
from rlvla3.config import Config
from rlvla3.policies.choosing import some


def derived(assembly: Assembly) -> list[Derived]:
    """All of them, in the order of the data flow.

    Raises:
        UserError: the configuration cannot run; a line for each reason.
    """
    _ = assembly.settings
    return [
        *_envs(assembly),
        *_inference(assembly),
        *_adapters(assembly),
        *_training(assembly),
        *_evaluation(assembly),
        *memory(assembly),
    ]


def _envs(assembly: Assembly) -> Iterator[Derived]:
    config = assembly.config.simulator
    sizes = " + ".join(f"{len(list(same))} x {size}" for size, same in groupby(config.slot_sizes))
    yield Derived(
        name="envs",
        value=config.total_envs,
        unit="envs",
        note=f"{config.members} Simulators x {config.batches} env batches x {config.envs} envs",
    )
    yield Derived(name="env_batches", value=config.members * config.batches, unit="env batches")
    yield Derived(
        name="slots",
        value=len(assembly.topology.slots),
        unit="slots",
        note=f"{config.batches * len(config.slot_sizes)} of each Simulator; envs of an env batch: {sizes}",
    )
    yield Derived(
        name="lanes",
        value=config.members * config.lanes,
        unit="threads",
        note=f"each Simulator steps at most {assembly.slots_at_once} of its slots at the same time",
    )


def _inference(assembly: Assembly) -> Iterator[Derived]:
    config = assembly.config
    generator, largest = config.generator, max(config.simulator.slot_sizes)
    yield Derived(
        name="action_numbers", value=assembly.spec.action_dim, unit="numbers", note=_action(assembly)
    )
    yield Derived(name="generators", value=generator.members, unit="Generators", note=_routing(assembly))
    yield Derived(
        name="max_batch_size",
        value=generator.max_batch_size,
        unit="samples",
        note=f"{generator.max_batch_size // largest} of the largest slots (of {largest})",
    )


def _adapters(assembly: Assembly) -> Iterator[Derived]:
    rank, layers = assembly.config.policy.lora.rank, assembly.adapted_layers
    if not rank:
        return
    if layers is None:
        note = "this policy does not name its layers: policy.lora is matched when training starts"
    else:
        note = f"in {len(layers)} layers: {some(layers)}"
    yield Derived(name="adapter_rank", value=rank, unit="", note=note)


def _action(assembly: Assembly) -> str:
    meaning = assembly.spec.meaning
    if meaning is None:
        return "the simulator does not say what they mean: only a policy that takes any can be used"
    return "; ".join(part.words() for part in meaning.action)


def _routing(assembly: Assembly) -> str:
    routing = assembly.config.generator.routing
    if routing == "any":
        return "one queue; a slot is served by whichever Generator is free"
    if routing == "least_loaded":
        return "a slot joins the shortest queue"
    pins = assembly.settings.batching.pins
    served = []
    for index in range(assembly.config.generator.members):
        slots = [str(slot) for slot, generator in sorted(pins.items()) if generator == index]
        served.append(f"{index}: slots {', '.join(slots) or 'none'}")
    return "; ".join(served)


def _training(assembly: Assembly) -> Iterator[Derived]:
    config = assembly.config
    trainer, chunk, lag = config.trainer, config.simulator.chunk, config.schedule.lag
    at_most = "" if trainer.trajectory == "segment" else "at most: episodes may end early"
    yield Derived(name="trainers", value=trainer.members, unit="Trainers", note=_shares(assembly))
    yield Derived(name="chunks_per_trajectory", value=assembly.chunks, unit="chunks", note=trainer.trajectory)
    yield Derived(
        name="chunks_per_version",
        value=trainer.batch * assembly.chunks,
        unit="chunks",
        note=f"batch {trainer.batch} x {assembly.chunks} chunks; {at_most}".rstrip("; "),
    )
    yield Derived(
        name="sub_steps_per_version",
        value=trainer.batch * assembly.chunks * chunk,
        unit="sub-steps",
        note=f"{chunk} for each chunk",
    )
    yield Derived(
        name="micro_batches_per_version",
        value=-(-trainer.batch // (trainer.micro_batch * trainer.members)),
        unit="micro-batches",
        note=f"of {trainer.micro_batch} trajectories for each Trainer, the last of {_last(assembly)}",
    )
    yield Derived(
        name="max_lag",
        value=lag,
        unit="versions",
        note=f"{config.schedule.mode}: between the Trainer's version at use and the acting one",
    )
    yield Derived(
        name="most_trajectories",
        value=trainer.batch * (lag + 1),
        unit="trajectories",
        note="batch x (max_lag + 1): started and not yet trained, those of the running update included",
    )
    yield Derived(
        name="busy_envs",
        value=min(config.simulator.total_envs, trainer.batch * (lag + 1)),
        unit="envs",
        note="that can run a trajectory at the same time",
    )
    yield Derived(
        name="rows", value=assembly.settings.rows, unit="rows", note="places for trajectories in the slab"
    )
    yield Derived(
        name="total_sub_steps",
        value=trainer.updates * trainer.batch * assembly.chunks * chunk,
        unit="sub-steps",
        note=f"{trainer.updates} versions",
    )


def _shares(assembly: Assembly) -> str:
    training, members = assembly.settings.training, assembly.config.trainer.members
    whole = f"groups of {training.group_size}" if training.group_size > 1 else "trajectories"
    if members == 1:
        return f"takes all {training.units} {whole} of a version"
    return f"ranks that share the {training.units} {whole} of a version"


def _last(assembly: Assembly) -> str:
    """Sizes of the micro-batches of an update's last round, which is dealt evenly in whole groups."""
    training, members = assembly.settings.training, assembly.config.trainer.members
    at_once = members * (training.micro_batch // training.group_size)
    left = training.units % at_once or at_once
    most, least = -(-left // members) * training.group_size, left // members * training.group_size
    return f"{most}" if most == least else f"{least} or {most}"


def _evaluation(assembly: Assembly) -> Iterator[Derived]:
    config = assembly.config.evaluation
    count = evaluations(assembly.config)
    episodes = config.episodes * len(assembly.spec.tasks)
    yield Derived(
        name="evaluations",
        value=count,
        unit="evaluations",
        note="during training" if count else "none during training (evaluation.every_versions, at_start)",
    )
    yield Derived(
        name="evaluation_episodes",
        value=episodes,
        unit="episodes",
        note=f"of each evaluation: {config.episodes} of each of {len(assembly.spec.tasks)} tasks",
    )
    yield Derived(
        name="videos",
        value=min(config.videos, config.episodes) * len(assembly.spec.tasks),
        unit="videos",
        note="with rlvla3 eval --videos FOLDER",
    )


def evaluations(config: Config) -> int:
    """Evaluations during training."""
    every = config.evaluation.every_versions
    return int(config.evaluation.at_start) + (config.trainer.updates // every if every else 0)
