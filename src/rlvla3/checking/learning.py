"""Settings of algorithm, learner and Trainer that do nothing, by what the algorithm needs."""

from collections.abc import Iterator

from rlvla3.assembly import Assembly
from rlvla3.checking.findings import Finding, changed
from rlvla3.config import Config
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.settings import Settings


def learning(assembly: Assembly) -> Iterator[Finding]:
    """Everything about learning that is worth a warning."""
    config, options = assembly.config, assembly.config.learner.options
    yield from _algorithm(config.algorithm.options)
    yield from _entropy(config)
    yield from _members(config)
    if isinstance(options, ReinforcementSettings):
        yield from _values(assembly, options)
        yield from _rates(assembly, options)
        yield from _sizes(assembly, options)
        yield from _streaming(assembly, options)
        yield from _schedule(config, options, assembly.algorithm.needs.values)


def _algorithm(options: Settings) -> Iterator[Finding]:
    correction = getattr(options, "correction", None)
    useless = {
        "none": ("weight_limit", "trust_width"),
        "decoupled": ("trust_width",),
        "vtrace": ("trust_width",),
        "truncated_is": ("trust_width", "clip_low", "clip_high", "dual_clip"),
        "gaussian": ("weight_limit", "clip_low", "clip_high", "dual_clip"),
    }.get(str(correction), ())
    for name in useless:
        if changed(options, name):
            yield Finding(
                field=f"algorithm.options.{name}",
                text=f"correction {correction} does not use it: it has no effect; leave it out",
            )
    if getattr(options, "kl_coefficient", 1.0) == 0 and changed(options, "kl_estimator"):
        yield Finding(
            field="algorithm.options.kl_estimator",
            text="nothing is estimated: kl_coefficient is 0; set it, or leave this out",
        )


def _entropy(config: Config) -> Iterator[Finding]:
    policy, options = config.policy, config.algorithm.options
    if policy.kind != "tiny" or not changed(options, "entropy_coefficient"):
        return
    if policy.options.head == "flow" and policy.options.method != "noise":
        yield Finding(
            field="algorithm.options.entropy_coefficient",
            text=f"the entropy of method {policy.options.method} does not depend on the weights: it has no "
            "effect; leave it out, or use policy.options.method=noise or head=tokens",
        )


def _members(config: Config) -> Iterator[Finding]:
    trainer = config.trainer
    if trainer.sharing == "weights" and trainer.members == 1:
        yield Finding(
            field="trainer.sharing",
            text="one member has nobody to share weights with; set trainer.members, or leave it out",
        )


def _values(assembly: Assembly, options: ReinforcementSettings) -> Iterator[Finding]:
    if assembly.algorithm.needs.values:
        return
    kind = assembly.config.algorithm.kind
    for name in ("value_lr", "value_warm_up", "value_passes", "recompute_values"):
        if changed(options, name):
            yield Finding(
                field=f"learner.options.{name}",
                text=f"{kind} needs no values: it has no effect; leave it out",
            )
    if changed(assembly.config.trainer, "bootstrap"):
        yield Finding(
            field="trainer.bootstrap", text=f"{kind} needs no values: nothing is bootstrapped; leave it out"
        )


def _rates(assembly: Assembly, options: ReinforcementSettings) -> Iterator[Finding]:
    rates = {"lr": ("the policy", options.lr)}
    if assembly.algorithm.needs.values:
        rates["value_lr"] = ("the value head", options.value_lr)
    for name, (what, rate) in rates.items():
        if not rate:
            yield Finding(
                field=f"learner.options.{name}",
                text=f"0: {what} never changes, which is of use in tests only; set it above 0",
            )


def _sizes(assembly: Assembly, options: ReinforcementSettings) -> Iterator[Finding]:
    chunks = assembly.config.trainer.batch * assembly.chunks
    if options.minibatch > chunks:
        yield Finding(
            field="learner.options.minibatch",
            text=f"{options.minibatch} is more than the {chunks} chunks of an update: every pass is one "
            f"optimiser step; use less than {chunks}, or a larger trainer.batch",
        )
    if options.forward_batch >= options.minibatch:
        yield Finding(
            field="learner.options.forward_batch",
            text=f"{options.forward_batch} is no less than minibatch = {options.minibatch}, which is one "
            "pass then; leave it out",
        )
    if options.min_ess and not assembly.config.schedule.lag:
        yield Finding(
            field="learner.options.min_ess",
            text="without lag every chunk has the weight 1, and all are effective: it has no effect; "
            "leave it out, or use schedule.mode=aa",
        )


def _streaming(assembly: Assembly, options: ReinforcementSettings) -> Iterator[Finding]:
    streams, normalised = assembly.config.schedule.streams, assembly.algorithm.needs.normalised
    why = "nothing is streamed" if not streams else "advantages are not normalised"
    if changed(options, "streamed_statistics") and not (streams and normalised):
        yield Finding(
            field="learner.options.streamed_statistics", text=f"{why}: it has no effect; leave it out"
        )
    earlier = streams and normalised and options.streamed_statistics == "earlier"
    if changed(options, "statistics_keep") and not earlier:
        yield Finding(
            field="learner.options.statistics_keep",
            text="no statistics of earlier updates normalise anything: it has no effect; leave it out",
        )


def _schedule(config: Config, options: ReinforcementSettings, values: bool) -> Iterator[Finding]:
    updates = config.trainer.updates
    if values and options.value_warm_up >= updates:
        yield Finding(
            field="learner.options.value_warm_up",
            text=f"{options.value_warm_up} of {updates} versions train the value head only: the policy never "
            "changes; lower it or raise trainer.updates",
        )
    if options.lr_schedule != "constant" and options.schedule_versions != updates:
        yield Finding(
            field="learner.options.schedule_versions",
            text=f"{options.schedule_versions} is not trainer.updates = {updates}: the rates fall too "
            f"{'slowly' if options.schedule_versions > updates else 'fast'}; set it equal",
        )
