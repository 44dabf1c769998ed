"""The timeline of a run, drawn from what passes through the controller.

Every piece of work begins with a command and ends with an event of the same member, so members
need not record anything: a slot's chunk from its actions to its next observation, an inference
batch, an update, a publish, a load. ``trace.json`` opens in Perfetto or chrome://tracing.
"""

from collections.abc import Hashable
from pathlib import Path

from rlvla3.messages import (
    ApplyActions,
    Command,
    Event,
    FinishUpdate,
    InferenceDone,
    LoadWeights,
    Member,
    MemberLost,
    ObservationReady,
    PublishWeights,
    RunInference,
    StartTrajectories,
    TrajectoryReady,
    UpdateDone,
    WeightsLoaded,
    WeightsPublished,
)
from rlvla3.trace import Tracer, write_trace

_LIMIT = 200_000
"""Newest spans kept of each member."""


class Timeline:
    """Turns pairs of command and event into spans. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._tracers: dict[Member, Tracer] = {}
        self._open: dict[tuple[Member, Hashable], tuple[str, float, dict[str, object]]] = {}

    def command(self, command: Command, now_s: float) -> None:
        """Work begins."""
        if isinstance(command, RunInference):
            samples = sum(len(request.rows) for request in command.requests)
            self._begin(command.member, "inference", "inference", now_s, samples=samples)
        elif isinstance(command, ApplyActions):
            for slot, seq in command.slots:
                self._begin(command.member, slot, "chunk", now_s, seq=seq)
        elif isinstance(command, FinishUpdate):
            self._begin(command.member, "update", "update", now_s, update=command.update)
        elif isinstance(command, PublishWeights):
            self._begin(
                command.member, "publish", f"publish {command.channel}", now_s, version=command.version
            )
        elif isinstance(command, LoadWeights):
            self._begin(command.member, "load", f"load {command.channel}", now_s, version=command.version)
        elif isinstance(command, StartTrajectories):
            self._tracer(command.member).instant("credits", now_s, "credits", count=len(command.starts))

    def event(self, event: Event, now_s: float) -> None:
        """Work ends."""
        if isinstance(event, ObservationReady):
            self._end(event.member, event.slot, f"slot {event.slot}", now_s)
        elif isinstance(event, InferenceDone):
            self._end(event.member, "inference", "inference", now_s, version=event.version)
        elif isinstance(event, UpdateDone):
            self._end(event.member, "update", "updates", now_s, skipped=event.skipped)
        elif isinstance(event, WeightsPublished):
            self._end(event.member, "publish", "updates", now_s)
        elif isinstance(event, WeightsLoaded):
            self._end(event.member, "load", "inference", now_s)
        elif isinstance(event, TrajectoryReady):
            self._tracer(event.member).instant(event.end, now_s, "trajectories", chunks=event.chunks)
        elif isinstance(event, MemberLost):
            self._forget(event.member)
            self._tracer(event.member).instant("lost", now_s, "faults")

    def write(self, path: Path) -> None:
        """Write everything recorded.

        Raises:
            UserError: the file cannot be written.
        """
        write_trace(path, {member: tracer.take() for member, tracer in sorted(self._tracers.items())})

    def _tracer(self, member: Member) -> Tracer:
        if member not in self._tracers:
            self._tracers[member] = Tracer(_LIMIT)
        return self._tracers[member]

    def _begin(self, member: Member, key: Hashable, name: str, now_s: float, **args: object) -> None:
        self._open[member, key] = (name, now_s, args)

    def _end(self, member: Member, key: Hashable, lane: str, now_s: float, **args: object) -> None:
        begun = self._open.pop((member, key), None)
        if begun is not None:
            name, start_s, first = begun
            self._tracer(member).span(name, start_s, now_s, lane, **(first | args))

    def _forget(self, member: Member) -> None:
        """A member that is gone ends nothing any more."""
        for key in [key for key in self._open if key[0] == member]:
            del self._open[key]
