"""Where the Trainer's checkpoints go."""

from pathlib import Path


class CheckpointKeeper:
    """TEMP."""

    def __init__(self, folder, config, fingerprint):
        self._folder = Path(folder)

    def save(self, learner, version, engine_state):
        """TEMP."""

    def save_best(self, version, weights, score):
        """TEMP."""
