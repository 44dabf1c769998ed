"""The end of a run: its reasons, its last checkpoint, and what is told to those who still wait."""

from collections.abc import Callable

from rlvla3.core.evaluation import Evaluation
from rlvla3.core.health import Health
from rlvla3.core.intake import Intake
from rlvla3.core.outbox import Outbox
from rlvla3.core.publishing import NONE
from rlvla3.core.settings import EngineSettings
from rlvla3.core.sharding import At, SlotState, SlotTable
from rlvla3.core.statistics import Statistics
from rlvla3.messages import CancelRequests, CheckpointSaved, Member, SaveCheckpoint, Slot, Stop, Version

SAVE = "a checkpoint"
_ASKING = (At.QUEUED, At.INFERENCE, At.ANSWERED)
"""Where slots are that wait for actions."""


class Ending:
    """Checkpoints, and the one way to a Stop."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        slots: SlotTable,
        intake: Intake,
        evaluation: Evaluation,
        health: Health,
        statistics: Statistics,
        outbox: Outbox,
        snapshot: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._intake = intake
        self._evaluation = evaluation
        self._health = health
        self._statistics = statistics
        self._outbox = outbox
        self._snapshot = snapshot
        self._saving = NONE
        self._saved = NONE
        self.reason = ""
        """Why nothing new is started; empty while the run goes on."""

    def ask(self, reason: str) -> None:
        """Start nothing new; end after the update that is under way and a checkpoint."""
        self.reason = self.reason or reason

    def restored(self, version: Version) -> None:
        """The run continues from a checkpoint of ``version``."""
        self._saved = version

    def save_if_due(self, now_s: float) -> None:
        """Save the version that was just trained if its turn has come."""
        every = self._settings.training.checkpoint_every
        if every and self._intake.version % every == 0 and not self.reason:
            self._save(now_s)

    def saved(self, event: CheckpointSaved, now_s: float) -> None:
        """A checkpoint is complete."""
        self._health.end(event.member, SAVE, now_s)
        self._saving, self._saved = NONE, event.version

    @property
    def saves(self) -> bool:
        """Whether a checkpoint comes before the end: there is a version that none holds yet."""
        trainers = self._settings.topology.trainers
        return bool(trainers) and self._health.all_up(trainers) and self._saved != self._intake.version

    def settle(self, now_s: float) -> None:
        """Checkpoint and stop once nothing is left to do, or nothing more is wanted."""
        trainers = self._settings.topology.trainers
        if not self.reason:
            updates = self._settings.training.updates
            if not trainers or self._intake.version < updates or self._evaluation.version is not None:
                return
            self.reason = f"all {updates} versions are trained"
        if not self.saves:
            self.stop(self.reason, failed=False)
        elif self._intake.phase == "filling" and self._saving == NONE:
            self._save(now_s)

    def stop(self, reason: str, *, failed: bool) -> None:
        """End now; every request without an answer is cancelled."""
        if self._outbox.closed:
            return
        self.reason = self.reason or reason
        self.cancel([slot for slot in self._slots if slot.at in _ASKING], now_s=0.0)
        self._outbox.send(Stop(reason=reason, failed=failed))

    def cancel(self, slots: list[SlotState], now_s: float) -> None:
        """Tell these slots that their requests will not be answered."""
        cancelled: dict[Member, list[tuple[Slot, int]]] = {}
        for slot in slots:
            self._slots.move(slot, At.IDLE, now_s)
            cancelled.setdefault(slot.member, []).append((slot.slot, slot.seq))
        for member, requests in cancelled.items():
            self._statistics.cancelled += len(requests)
            self._outbox.send(CancelRequests(member=member, slots=tuple(requests), reason=self.reason))

    def _save(self, now_s: float) -> None:
        trainers = self._settings.topology.trainers
        self._saving, state = self._intake.version, self._snapshot()
        # The first member writes, and answers; gathering what it writes may need them all.
        self._health.begin(trainers[0], SAVE, self._settings.health.update_timeout_s, now_s)
        for trainer in trainers:
            self._outbox.send(SaveCheckpoint(member=trainer, version=self._saving, engine_state=state))
