"""Who watches a local run."""

from typing import Protocol

from rlvla3.core.engine import Engine
from rlvla3.messages import Event, Member, ReportEvaluation
from rlvla3.runtime.local.transport import Telemetry


class Observer(Protocol):
    """Who watches a run; never decides anything about it."""

    def on_event(self, event: Event, engine: Engine, now_s: float) -> None:
        """An event was handed to the engine."""
        ...

    def on_telemetry(self, telemetry: Telemetry, now_s: float) -> None:
        """Figures from a member."""
        ...

    def on_evaluation(self, report: ReportEvaluation, now_s: float) -> float | None:
        """An evaluation ended; a score if this version is the best so far."""
        ...

    def on_lost(self, member: Member, reason: str, log: str) -> None:
        """A member is replaced or gone; ``log`` is the end of what it wrote."""
        ...

    def on_watch(self, engine: Engine, now_s: float) -> None:
        """A moment of leisure, several times a second."""
        ...

    def on_stood_still(self, seconds: float) -> None:
        """The controller did not run for so long; the run's clock leaves that time out."""
        ...
