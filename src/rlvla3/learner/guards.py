"""Why an update is skipped: which guard said so, what it found, where its bound is, and what to change."""

from __future__ import annotations

from collections.abc import Mapping


class SkippedError(Exception):
    """Nothing of an update may stay. Its text is one line for the user, the name of its metric first."""

    def __init__(
        self, metric: str, told: str, *, rejected: bool, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Say why.

        Args:
            metric: the figure that counts the reason.
            told: what was found, its bound, and the remedy.
            rejected: whether something was not finite, so that the batch is worth looking at.
            metrics: what the update was judged by.
        """
        super().__init__(f"{metric}: {told}")
        self.metric, self.rejected, self.metrics = metric, rejected, dict(metrics or {})


def not_finite(what: str, which: str) -> SkippedError:
    """``what``: the last word of the metric. ``which``: what is NaN or infinite, in words."""
    return SkippedError(
        f"not_finite_{what}",
        f"{which} must be finite and is not; mend what made it NaN or infinite (rewards, an algorithm of "
        "your own), or lower learner.options.lr",
        rejected=True,
    )


def too_far(kl: float, limit: float, metrics: Mapping[str, float]) -> SkippedError:
    """``kl``: mean estimate over the first minibatch, above ``limit``. ``metrics``: its figures."""
    return SkippedError(
        "too_large_kl",
        f"a mean KL of {kl:.3g} from the policy that acted, before the first step, exceeds "
        f"learner.options.target_kl = {limit:g}; raise it, or lower schedule.max_lag or learner.options.lr",
        rejected=False,
        metrics=metrics,
    )


def too_few(size: float, least: float) -> SkippedError:
    """``size``: effective sample size as a fraction of the chunks, below ``least``."""
    return SkippedError(
        "too_small_ess",
        f"an effective sample size of {size:.3g} of the chunks is less than learner.options.min_ess = "
        f"{least:g}; lower it, or schedule.max_lag, or learner.options.lr",
        rejected=False,
        metrics={"start_ess": size},
    )
