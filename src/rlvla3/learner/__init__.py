"""Learning: reinforcement updates, supervised warm start, checkpoints."""
