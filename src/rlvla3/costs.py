"""The one cost model: what profiling and benchmarks measure and the virtual runtime spends."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that operations take on one machine."""

    sub_step_s: float
    """Mean of one env sub-step (log-normal); a slot waits for its slowest env."""
    sub_step_cv: float
    """Coefficient of variation (standard deviation / mean) of a sub-step."""
    chunk_s: float = 0.0
    """Fixed part of stepping a slot by one chunk."""
    observe_s: float = 0.0
    """Rendering and copying one env's observation."""
    reset_s: float = 0.0
    inference_s: float = 0.0
    """Fixed part of an inference batch."""
    inference_per_sample_s: float = 0.0
    train_per_chunk_s: float = 0.0
    """Seconds of all passes over one trained chunk."""
    publish_s: float = 0.0
    load_s: float = 0.0
    message_s: float = 0.0
    """From one role through the controller to another."""
