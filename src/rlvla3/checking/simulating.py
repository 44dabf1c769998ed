"""Settings of a simulator that do nothing."""

from collections.abc import Iterator

from rlvla3.assembly import Assembly
from rlvla3.checking.findings import Finding, changed
from rlvla3.simulators.tasks import TaskSettings


def simulating(assembly: Assembly) -> Iterator[Finding]:
    """Everything about the simulator's own settings that is worth a warning."""
    yield from _options(assembly.config.simulator.options)
    yield from _chunk(assembly)


def _options(options: object) -> Iterator[Finding]:
    if not isinstance(options, TaskSettings):
        return
    reasons: dict[str, str] = {}
    for name, why in options.without_effect():
        reasons.setdefault(name, why)
    for name, why in reasons.items():
        if changed(options, name):
            yield Finding(field=f"simulator.options.{name}", text=f"{why}: it has no effect; leave it out")


def _chunk(assembly: Assembly) -> Iterator[Finding]:
    chunk, spec = assembly.config.simulator.chunk, assembly.spec
    limits = [(limit, name) for name, limit in zip(spec.tasks, spec.step_limits, strict=True) if limit]
    shortest, name = min(limits, default=(chunk, ""))
    if shortest < chunk:
        yield Finding(
            field="simulator.chunk",
            text=f"{chunk} actions of one inference, but an episode of {name} has at most {shortest} "
            f"sub-steps: the rest is never executed; use at most {shortest}",
        )
