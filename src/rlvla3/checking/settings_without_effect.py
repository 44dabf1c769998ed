"""Settings that are accepted but do nothing, waste something, or can stall."""

from collections.abc import Callable, Iterator

from rlvla3.assembly import Assembly
from rlvla3.checking.derived import evaluations
from rlvla3.checking.findings import Finding, changed
from rlvla3.checking.learning import learning
from rlvla3.checking.simulating import simulating
from rlvla3.config import Config
from rlvla3.costs import Costs


def findings(assembly: Assembly, cores: float, costs: Costs | None = None) -> list[Finding]:
    """Everything worth a warning on a machine of so many cores. ``costs``: the machine's, where they
    are known."""
    found = [finding for rule in _RULES for finding in rule(assembly.config)]
    found += simulating(assembly)
    found += _starts(assembly)
    found += _trainers(assembly)
    found += _rounds(assembly)
    found += _together(assembly)
    found += learning(assembly)
    found += _cores(assembly.config, cores)
    if costs is not None:
        found += _timeouts(assembly, costs)
    return found


def _batching(config: Config) -> Iterator[Finding]:
    generator, sizes = config.generator, config.simulator.slot_sizes
    envs, largest, smallest = config.simulator.total_envs, max(sizes), min(sizes)
    slots = config.simulator.members * config.simulator.batches * len(sizes)
    if slots > 1 and generator.max_batch_size < largest + smallest:
        yield Finding(
            field="generator.max_batch_size",
            text=f"{generator.max_batch_size} holds one slot of {largest}, so slots are never merged and "
            f"linger_ms has little effect; use {largest + smallest} or more, or smaller slots",
        )
    if generator.max_batch_size > envs and changed(generator, "max_batch_size"):
        yield Finding(
            field="generator.max_batch_size",
            text=f"{generator.max_batch_size} is never reached by {envs} envs; {envs} has the same effect",
        )
    yield from _waiting(config)


def _waiting(config: Config) -> Iterator[Finding]:
    generator = config.generator
    set_ = [name for name in ("linger_ms", "batch_timeout_ms", "order") if changed(generator, name)]
    if config.schedule.lockstep and set_:
        yield Finding(
            field=f"generator.{set_[0]}",
            text=f"mode ss waits for whole stages: {', '.join(set_)} has no effect; leave it out",
        )
    elif generator.batch_timeout_ms < generator.linger_ms:
        yield Finding(
            field="generator.batch_timeout_ms",
            text=f"{generator.batch_timeout_ms:g} is less than linger_ms = {generator.linger_ms:g}, which "
            "is never reached; raise it or lower linger_ms",
        )
    if not config.schedule.lockstep and generator.batch_timeout_ms > 10_000:
        yield Finding(
            field="generator.batch_timeout_ms",
            text=f"{generator.batch_timeout_ms:g} bounds nothing: a request could wait "
            f"{generator.batch_timeout_ms / 1000:g} s; use 50 to 500",
        )


def _routing(config: Config) -> Iterator[Finding]:
    generator = config.generator
    slots = config.simulator.members * config.simulator.batches * len(config.simulator.slot_sizes)
    if generator.pins and generator.routing != "pinned":
        yield Finding(
            field="generator.pins",
            text=f"routing {generator.routing} ignores pins; set generator.routing=pinned or leave them out",
        )
    if generator.members == 1 and generator.routing == "pinned":
        yield Finding(
            field="generator.routing", text="with one Generator every routing is the same; leave it out"
        )
    if generator.members > slots:
        yield Finding(
            field="generator.members",
            text=f"{generator.members} Generators for {slots} slots: {generator.members - slots} never "
            f"have work; use at most {slots}, or more slots",
        )
    if generator.routing == "pinned" and generator.members <= slots:
        used = {generator.pins.get(slot, slot % generator.members) for slot in range(slots)}
        for index in sorted(set(range(generator.members)) - used):
            yield Finding(
                field="generator.pins", text=f"no slot is pinned to Generator {index}; pin one to it"
            )


def _simulators(config: Config) -> Iterator[Finding]:
    simulator = config.simulator
    slots = simulator.batches * len(simulator.slot_sizes)
    if simulator.lanes > slots:
        yield Finding(
            field="simulator.lanes",
            text=f"{simulator.lanes} lanes for the {slots} slots of a Simulator: {simulator.lanes - slots} "
            f"are idle; use at most {slots}",
        )
    if simulator.members * slots == 1 and config.schedule.mode != "ss":
        yield Finding(
            field="simulator.slots",
            text=f"one slot steps or waits, never both: mode {config.schedule.mode} overlaps nothing; use 2",
        )


def _lag(config: Config) -> Iterator[Finding]:
    schedule, envs = config.schedule, config.simulator.total_envs
    if schedule.mode != "aa" and changed(schedule, "max_lag"):
        yield Finding(
            field="schedule.max_lag",
            text=f"mode {schedule.mode} has lag 0; set schedule.mode=aa or leave it out",
        )
    if schedule.mode != "aa" and schedule.streaming:
        what = "streams anyway" if schedule.streams else "trains after the rollout"
        yield Finding(
            field="schedule.streaming", text=f"mode {schedule.mode} {what}; it counts in mode aa only"
        )
    if schedule.lag == 0 and schedule.on_stale == "drop":
        yield Finding(
            field="schedule.on_stale",
            text=f"mode {schedule.mode} has no stale trajectories to drop; leave it out",
        )
    places = config.trainer.batch * (schedule.lag + 1)
    if places < envs:
        yield Finding(
            field="trainer.batch",
            text=f"{config.trainer.batch} x (lag {schedule.lag} + 1) trajectories keep {places} of {envs} "
            f"envs busy; use trainer.batch >= {-(-envs // (schedule.lag + 1))} or fewer envs",
        )


def _policy(config: Config) -> Iterator[Finding]:
    if config.policy.kind != "tiny":
        return
    options = config.policy.options
    flow = ("method", "noise_level", "noise_std", "window", "include_prior", "denoise_reduce")
    useless = {
        "tokens": ("denoise_steps", *flow, "flow_samples"),
        "noise": ("noise_level",),
        "sde": ("noise_std",),
        "cps": ("noise_std",),
    }["tokens" if options.head == "tokens" else options.method]
    if options.head == "flow":
        useless += ("temperature",)
    for name in useless:
        if changed(options, name):
            yield Finding(
                field=f"policy.options.{name}",
                text=f"head {options.head}, method {options.method}: it has no effect; leave it out",
            )
    joined = {"chunk_level": (), "action_level": ("chunk_reduce",)}
    for name in joined.get(options.ratio_level, ("chunk_reduce", "dim_reduce")):
        if changed(options, name):
            yield Finding(
                field=f"policy.options.{name}",
                text=f"ratio_level {options.ratio_level} joins nothing by it: it has no effect; leave it out",
            )
    if config.policy.publish == "trained" and not (config.policy.lora.rank or options.freeze_prefix):
        yield Finding(
            field="policy.publish",
            text="trained: every weight trains, so the run will refuse; use whole, or freeze a part "
            "(policy.lora.rank, policy.options.freeze_prefix)",
        )


def _training(config: Config) -> Iterator[Finding]:
    trainer = config.trainer
    if trainer.batch % trainer.micro_batch:
        yield Finding(
            field="trainer.micro_batch",
            text=f"{trainer.micro_batch} does not divide batch = {trainer.batch}: the last micro-batch has "
            f"{trainer.batch % trainer.micro_batch} (weighted by size, so exact)",
        )


def _evaluation(config: Config) -> Iterator[Finding]:
    evaluation, none = config.evaluation, not evaluations(config)
    if changed(evaluation, "max_envs") and none:
        yield Finding(
            field="evaluation.max_envs",
            text="nothing is evaluated during training; set evaluation.every_versions or leave it out",
        )
    if evaluation.max_envs > config.simulator.total_envs:
        yield Finding(
            field="evaluation.max_envs",
            text=f"{evaluation.max_envs} is more than the {config.simulator.total_envs} envs; all are used",
        )
    if evaluation.every_versions > config.trainer.updates:
        yield Finding(
            field="evaluation.every_versions",
            text=f"{evaluation.every_versions} is more than trainer.updates = {config.trainer.updates}: "
            "nothing is evaluated; lower it",
        )
    if evaluation.videos > evaluation.episodes:
        yield Finding(
            field="evaluation.videos",
            text=f"{evaluation.videos} is more than {evaluation.episodes} episodes of each task; lower it",
        )
    kept = config.checkpoint
    if kept.every_versions > config.trainer.updates and changed(kept, "every_versions"):
        yield Finding(
            field="checkpoint.every_versions",
            text=f"{config.checkpoint.every_versions} exceeds trainer.updates = {config.trainer.updates}: "
            "only the end is kept; lower it",
        )
    if not kept.every_versions:
        yield Finding(
            field="checkpoint.every_versions",
            text="0 keeps only the end: a crash or a power cut loses the run; set it above 0",
        )


def _rounds(assembly: Assembly) -> Iterator[Finding]:
    if assembly.config.simulator.round_ms and not assembly.spec.waits:
        yield Finding(
            field="simulator.round_ms",
            text="the envs of this simulator compute, they do not say how long they wait: it has no effect; "
            "leave it out",
        )


def _together(assembly: Assembly) -> Iterator[Finding]:
    simulator = assembly.config.simulator
    if not assembly.spec.steps_together:
        return
    if simulator.batches < simulator.lanes <= simulator.batches * len(simulator.slot_sizes):
        yield Finding(
            field="simulator.lanes",
            text=f"env batches step as a whole, each in one lane: of {simulator.lanes} lanes "
            f"{simulator.lanes - simulator.batches} are idle; use at most {simulator.batches}",
        )
    if simulator.members * simulator.batches == 1 and assembly.config.schedule.mode != "ss":
        yield Finding(
            field="simulator.batches",
            text="the one env batch steps or waits, never both, however many slots it has: "
            f"mode {assembly.config.schedule.mode} overlaps no inference with it; use 2",
        )


def _starts(assembly: Assembly) -> Iterator[Finding]:
    config = assembly.config
    states, tasks = config.tasks.states, len(assembly.spec.tasks)
    if states and states * tasks < assembly.units:
        yield Finding(
            field="tasks.states",
            text=f"{states} states of {tasks} tasks are repeated within one batch of {config.trainer.batch}; "
            "raise it, or 0 for new ones",
        )


def _sampling(config: Config) -> Iterator[Finding]:
    tasks = config.tasks
    ignored = {
        "list": tasks.sampling != "list",
        "weights": tasks.sampling == "list",
        "floor": tasks.sampling != "success_weighted",
    }
    for name, has_none in ignored.items():
        if has_none and changed(tasks, name):
            yield Finding(
                field=f"tasks.{name}",
                text=f"tasks.sampling = {tasks.sampling} does not look at it: it has no effect; leave it out",
            )


def _trainers(assembly: Assembly) -> Iterator[Finding]:
    trainer, units = assembly.config.trainer, assembly.units
    if trainer.members > units:
        yield Finding(
            field="trainer.members",
            text=f"{trainer.members} members share {units} trajectories or groups of a version: "
            f"{trainer.members - units} have nothing to train; use at most {units}",
        )
    at_once = trainer.members * trainer.micro_batch
    if assembly.config.schedule.streams and trainer.members > 1 and at_once >= trainer.batch:
        yield Finding(
            field="trainer.micro_batch",
            text=f"{trainer.members} members x {trainer.micro_batch} trajectories are the whole batch of "
            f"{trainer.batch}: nothing is streamed; lower it",
        )


def _cores(config: Config, cores: float) -> Iterator[Finding]:
    if config.policy.kind == "emulated":
        return
    generating = config.generator.members * config.generator.threads
    training = config.trainer.members * config.trainer.threads
    wanted = generating + training + config.simulator.members
    most = max(generating, training)
    if most > cores:
        yield Finding(
            field="generator.threads" if most != training else "trainer.threads",
            text=f"{most} threads of one role on {cores:g} cores slow each other down; lower it",
        )
    elif wanted > 2 * cores:
        yield Finding(
            field="simulator.members",
            text=f"{wanted} processes and threads that compute share {cores:g} cores; use fewer Simulators",
        )


def _timeouts(assembly: Assembly, costs: Costs) -> Iterator[Finding]:
    config = assembly.config
    limits = config.health.model_dump()
    size = max(config.simulator.slot_sizes)
    expected = {
        "step_timeout_s": costs.reset_s
        + costs.chunk_s
        + size * costs.observe_s
        + config.simulator.chunk * costs.sub_step_s * size,
        "inference_timeout_s": costs.inference_s
        + config.generator.max_batch_size * costs.inference_per_sample_s,
        "update_timeout_s": config.trainer.batch * assembly.chunks * costs.train_per_chunk_s,
    }
    for name, expected_s in expected.items():
        limit_s = limits[name]
        if limit_s < 3 * expected_s:
            yield Finding(
                field=f"health.{name}",
                text=f"{limit_s:g} s is less than three times the expected {expected_s:.3g} s: one at work "
                f"may be taken for a hanging one; use {3 * expected_s:.3g} or more",
            )


_RULES: tuple[Callable[[Config], Iterator[Finding]], ...] = (
    _batching,
    _routing,
    _simulators,
    _lag,
    _policy,
    _training,
    _sampling,
    _evaluation,
)
