"""An algorithm of the user's own: what it does wrong is told in one line, with its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

from rlvla3.algorithms.api import Algorithm, Estimates, Figures, Groups, LossInputs, Needs, Rollouts, Score
from rlvla3.errors import UserError
from rlvla3.plugins import guarded

if TYPE_CHECKING:
    from torch import Tensor


OF_UPDATES = frozenset(
    ("grad_norm", "lr", "epochs", "steps", "version", "chunks", "trajectories", "sub_steps")
)
"""Figures of a whole update, which one of a chunk must not stand in for."""


class Own:
    """Passes everything on to an algorithm and looks at what comes back."""

    def __init__(self, algorithm: Algorithm, kind: str) -> None:
        """Take over ``algorithm``, which the setting ``algorithm.kind`` names ``kind``.

        Raises:
            UserError: it does not say what it needs.
        """
        self._algorithm, self._kind = algorithm, kind
        self.needs: Needs = getattr(algorithm, "needs", None)  # type: ignore[assignment]
        if not isinstance(self.needs, Needs):
            raise self._error("its attribute needs must be a Needs")
        if self.needs.groups is not None:
            self._check_groups(self.needs.groups)

    def _check_groups(self, groups: Any) -> None:
        if not isinstance(groups, Groups):
            raise self._error("needs.groups must be a Groups or None")
        rules = {
            "size must be an integer of at least 2": _is_count(groups.size, 2),
            "score must be success or return": groups.score in get_args(Score),
            "replacements must be an integer of at least 0": _is_count(groups.replacements, 0),
            "tolerance must be a number of at least 0": isinstance(groups.tolerance, int | float)
            and groups.tolerance >= 0,
        }
        for rule, kept in rules.items():
            if not kept:
                raise self._error(f"needs.groups.{rule}, it is {getattr(groups, rule.partition(' ')[0])!r}")

    def estimates(self, rollouts: Rollouts) -> tuple[Estimates, Figures]:
        """As the algorithm's; advantages and returns [N, T], figures [N]."""
        with guarded("algorithm.kind", self._kind, self._algorithm.estimates):
            found: Any = self._algorithm.estimates(rollouts)
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Estimates)):
            raise self._error("estimates must return (Estimates, figures)")
        shape = tuple(rollouts.reward.shape)
        for name in ("advantage", "returns"):
            self._check(f"estimates: {name}", getattr(found[0], name), shape)
        self._check_figures("estimates", found[1], shape[:1])
        return found[0], found[1]

    def loss(self, inputs: LossInputs, *, value_only: bool) -> tuple[Tensor, Figures]:
        """As the algorithm's; losses and figures [B]."""
        with guarded("algorithm.kind", self._kind, self._algorithm.loss):
            found: Any = self._algorithm.loss(inputs, value_only=value_only)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise self._error("loss must return (losses, figures)")
        shape = tuple(inputs.value.shape)
        self._check("loss", found[0], shape)
        if not found[0].requires_grad:
            raise self._error("loss must have a gradient; compute it from log_prob or value")
        self._check_figures("loss", found[1], shape)
        return found[0], found[1]

    def _check_figures(self, what: str, figures: Any, shape: tuple[int, ...]) -> None:
        if not isinstance(figures, dict):
            raise self._error(f"{what}: figures must be a dict of tensors, they are {type(figures).__name__}")
        for name, values in figures.items():
            if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in OF_UPDATES:
                raise self._error(
                    f"{what}: figure {name!r} must be named in small letters, digits and _, and not as a "
                    "figure of the update; choose another name"
                )
            self._check(f"{what}: figure {name!r}", values, shape)

    def _check(self, what: str, values: Any, shape: tuple[int, ...]) -> None:
        found = getattr(values, "shape", None)
        if found is None or tuple(found) != shape:
            shown = type(values).__name__ if found is None else str(tuple(found))
            raise self._error(f"{what} must be a tensor {list(shape)}, it is {shown}")

    def _error(self, text: str) -> UserError:
        return UserError(f"algorithm.kind = {self._kind!r}: {text}; see rlvla3.algorithms.api")


def _is_count(number: Any, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least
