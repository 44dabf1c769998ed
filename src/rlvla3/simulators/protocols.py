"""Published ways to evaluate: what has to be equal for two success rates to be comparable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationProtocol:
    """How somebody else measures success on a simulator's tasks.

    An adapter that knows some has a method ``protocols()``, name -> protocol for its settings.
    """

    source: str
    """Where its values were looked up: repository, file and commit."""
    episodes: int
    """Episodes of each task; they begin in initial states 0, 1, … of the split ``held_out``."""
    replan: int
    """Sub-steps executed for one inference."""
    options: Mapping[str, Any]
    """Simulator options that it fixes."""
