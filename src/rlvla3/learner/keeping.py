"""Where a Trainer's checkpoints go."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvla3.errors import UserError
from rlvla3.learner import checkpoint
from rlvla3.learner.api import Learner
from rlvla3.learner.checkpoint import Description, Kept, Weights
from rlvla3.messages import Version

if TYPE_CHECKING:
    from rlvla3.config import Config

_MOST_REJECTED = 3
_LOG = logging.getLogger(__name__)


class CheckpointKeeper:
    """Keeps a run's newest checkpoints and its best weights."""

    def __init__(self, folder: Path, config: "Config", fingerprint: Mapping[str, Any]) -> None:
        """Keep checkpoints in the run folder ``folder``.

        Args:
            folder: the run folder.
            config: the resolved configuration; ``checkpoint.keep`` newest checkpoints stay.
            fingerprint: of simulator and policy interface; JSON values.
        """
        self._folder = folder
        self._kept = Kept(folder / checkpoint.CHECKPOINTS, config.checkpoint.keep)
        self._config, self._fingerprint = config.model_dump_json(), fingerprint

    def save(self, learner: Learner, version: Version, engine_state: str) -> None:
        """Write a complete checkpoint, atomically."""
        self._kept.save(learner, self._description(version, None), engine_state)

    def save_best(self, version: Version, weights: Weights, score: float) -> None:
        """Keep these evaluation weights as the best so far."""
        self._kept.save_best(weights, self._description(version, score))

    def save_rejected(self, learner: Learner) -> None:
        """Keep the batch of an update that was not finite, with the learner as it is; only the first few
        of a run: the later ones tell the same."""
        folder = self._folder / checkpoint.REJECTED
        kept = [re.match(r"update-(\d+)-", path.name) for path in folder.glob("update-*")]
        if len(kept) >= _MOST_REJECTED:
            return
        number = 1 + max((int(found[1]) for found in kept if found), default=0)
        target = folder / f"update-{number}-version-{learner.version}"
        try:
            checkpoint.save_rejected(target, learner, self._description(Version(learner.version), None))
        except UserError as error:
            # A copy for a look later is no reason to end the run.
            _LOG.warning("%s", error)

    def restore(self, learner: Learner, path: Path) -> None:
        """Load a checkpoint of the same set-up into ``learner``, exactly.

        Raises:
            UserError: it is damaged, of another model or of another set-up.
        """
        folder = checkpoint.find(path, resume=True)
        checkpoint.check_fingerprint(folder, checkpoint.describe(folder).fingerprint, self._fingerprint)
        checkpoint.restore(folder, learner)

    def _description(self, version: Version, score: float | None) -> Description:
        return Description(
            version=int(version), score=score, fingerprint=self._fingerprint, config=self._config
        )
