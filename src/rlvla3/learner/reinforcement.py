"""The reinforcement learner: trajectories in, new policy versions out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlvla3.algorithms.api import Algorithm
from rlvla3.algorithms.normalise import Statistics, blend, explained_variance, statistics
from rlvla3.algorithms.schedules import decay, warm_up
from rlvla3.learner import gap, rejected, state
from rlvla3.learner.api import Slab, UpdateReport
from rlvla3.learner.guards import SkippedError, not_finite, too_few
from rlvla3.learner.metrics import (
    Means,
    effective_sample_size,
    lag_metrics,
    trajectory_figures,
)
from rlvla3.learner.minibatches import Chunks
from rlvla3.learner.parts import Parts
from rlvla3.learner.ranks import Ranks
from rlvla3.learner.samples import Samples, blanks, gather, join
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.learner.streaming import FirstPass
from rlvla3.learner.updating import Update
from rlvla3.messages import Channel, Trajectory
from rlvla3.policies.wrapping import base_of


class Reinforcement:
    """Implements ``rlvla3.learner.api.Learner`` with any policy model and algorithm."""

    def __init__(
        self,
        model: Any,
        algorithm: Algorithm,
        settings: ReinforcementSettings,
        *,
        seed: int,
        streaming: bool = False,
        final_values: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        """Take over ``model``: only what trains in ``reinforcement`` keeps gradients.

        Args:
            model: a ``PolicyModel`` that is a ``torch.nn.Module``; where ranks share the weights,
                they are spread already (``sharding.shard``).
            algorithm: estimates advantages and computes the loss.
            settings: of the learner.
            seed: of the order of minibatches.
            streaming: whether ``ingest`` already computes the first pass's gradient, with one
                optimiser step at the pass's end.
            final_values: whether the learner computes bootstrap values from the last
                observation instead of taking those of the slab.
            ranks: the Trainer members that compute together.
        """
        self.model, self.algorithm, self.settings, self.seed = model, algorithm, settings, seed
        self.ranks = ranks or Ranks()
        self._parts = Parts.of(model, algorithm, settings, self.ranks)
        self._optimiser = self._parts.optimiser
        self._recomputing = self._parts.recomputing(final_values)
        self._streaming = streaming
        self.version = 0
        self.skipped = 0
        self.shortened = 0
        self._start_s: float | None = None
        self._used_before_s = 0.0
        self._advantages: Statistics | None = None
        self._earlier: tuple[int, Mapping[str, Tensor]] | None = None
        """The version before this one and its trained weights."""
        self._rejected: tuple[Samples, str] | None = None
        """Batch of the last update, if something in it was not finite, and what."""
        self._forget()

    def _forget(self) -> None:
        self._taken: list[Samples] = []
        self._blank: Samples | None = None
        self._trajectories: list[Trajectory] = []
        self._estimate_means = Means()
        self._first_pass: FirstPass | None = None
        self._optimiser.zero_gradients()

    # --- taking in --------------------------------------------------------------------------

    def ingest(self, trajectories: Sequence[Trajectory], slab: Slab) -> None:
        """Copy trajectories out of the slab, with advantages, prefixes and, when streaming, the
        first pass's gradient. Every rank is given equally many calls; some may have no trajectories.

        Raises:
            ValueError: a chunk's behaviour version is newer than the version held.
        """
        if not trajectories and self.ranks.size == 1:
            return
        self._rejected = None
        if self._start_s is None:
            self._start_s = time.monotonic() - self._used_before_s
        part, figures = gather(
            trajectories,
            slab,
            self.algorithm,
            self._recomputing,
            version=self.version,
            aggregate=self.settings.aggregate,
        )
        if self._blank is None:
            self._blank = blanks(self._recomputing.blank(slab), 1)
        self._taken.append(part)
        self._trajectories.extend(trajectories)
        self._estimate_means.add_each({n: values.double().numpy() for n, values in figures.items()})
        self._estimate_means.add_each(trajectory_figures(trajectories))
        if self._streams:
            self._stream(part)

    @property
    def _streams(self) -> bool:
        """Whether this update's first pass is streamed: not where its advantages are still to be normalised
        by statistics that do not exist yet."""
        own = self.settings.streamed_statistics == "own" or not self.algorithm.needs.normalised
        return self._streaming and (own or self._advantages is not None)

    def _stream(self, part: Samples) -> None:
        assert self._blank is not None
        if self._first_pass is None:
            own = self.algorithm.needs.normalised and self.settings.streamed_statistics == "own"
            self._first_pass = FirstPass(
                self._parts,
                version=self.version,
                given=self._advantages if self.algorithm.needs.normalised and not own else None,
                own_statistics=own,
                centre=self._advantages.mean if self._advantages else 0.0,
                value_only=self.warming_up,
            )
        self._first_pass.add(part, self._blank)

    # --- one update -------------------------------------------------------------------------

    def update(self) -> UpdateReport:
        """Run the (remaining) epochs over everything taken in, then forget it.

        An update with a loss or gradient that is not finite, or that the guard stops at its first step,
        changes nothing: weights, average and optimiser are put back bit-equal, and the report says so.

        Raises:
            ValueError: nothing was taken in.
        """
        if not self._taken:
            raise ValueError("update without any trajectory taken in")
        samples = join(self._taken)
        chunks = Chunks.of(samples, self.ranks)
        if not len(chunks):
            raise ValueError("update without any trajectory taken in")
        before = self._optimiser.snapshot()
        metrics = self._fixed_metrics(samples, chunks) | self._gap(samples, chunks)
        skipped: SkippedError | None = None
        try:
            metrics |= self._passes(samples, chunks)
        except SkippedError as reason:
            self._optimiser.restore(before)
            self._rejected = (samples, reason.metric) if reason.rejected else None
            self.skipped += 1
            skipped = reason
            metrics |= {**reason.metrics, reason.metric: 1.0}
        else:
            self._earlier = self.version, before.parameters
            self.version += 1
        metrics |= {
            "skipped_updates": float(self.skipped),
            "shortened_updates": float(self.shortened),
            "version": float(self.version),
        }
        self._forget()
        # Of several ranks each has a part only, so nothing could be replayed.
        kept = skipped is not None and skipped.rejected and self.ranks.size == 1
        return UpdateReport(skipped=str(skipped or ""), rejected=kept, metrics=metrics)

    def _passes(self, samples: Samples, chunks: Chunks) -> dict[str, float]:
        settings, needs = self.settings, self.algorithm.needs
        own = statistics(samples.advantage, self._total)
        # Also where nothing comes of it: ranks that share weights would keep the gradient for later.
        streamed = self._first_pass.finish(own) if self._first_pass is not None else None
        if not np.isfinite(own.std):
            raise not_finite("advantage", "every advantage")
        found = self._guarded_ess(samples)
        self._optimiser.set_rate(self.rate_factor(self.version))
        update = self._made_update(samples, chunks, own if needs.normalised else None)
        epochs = self._epochs(update, streamed)
        for number in range(settings.value_passes if needs.values else 0):
            update.value_pass(settings.epochs + number)
        if not self._optimiser.finite():
            raise not_finite("weights", "each of the weights after the last step")
        self._advantages = blend(self._advantages, own, settings.statistics_keep)
        self.shortened += update.shortened
        return {
            **update.value_means.over(self.ranks).values(),
            **update.means.over(self.ranks).values(),
            **found,
            "epochs": float(epochs),
            "steps": float(update.steps),
            "lr": self._optimiser.rates["policy"],
            "advantage_mean": own.mean,
            "advantage_std": own.std,
        }

    def _made_update(self, samples: Samples, chunks: Chunks, own: Statistics | None) -> Update:
        """With statistics of earlier updates where the first pass was streamed with them (or would have been,
        had the batch not been replayed): all epochs have the same."""
        assert self._blank is not None
        earlier = self._streaming and self.settings.streamed_statistics == "earlier"
        given = self._advantages if own is not None and earlier and self._advantages is not None else own
        return Update(
            self._parts,
            samples=samples,
            chunks=chunks,
            blank=self._blank,
            shuffle=(self.seed, self.version),
            given=given,
            value_only=self.warming_up,
        )

    def _epochs(self, update: Update, streamed: tuple[bool, Means] | None) -> int:
        """Passes over the chunks, the streamed one first; returns how many were begun."""
        epochs = 0
        if streamed is not None:
            update.step(streamed[1], finite=streamed[0])
            epochs = 1
        wanted = 0 if self.warming_up and self.settings.value_passes else self.settings.epochs
        while epochs < wanted and not update.shortened:
            update.epoch(epochs)
            epochs += 1
        return epochs

    def _guarded_ess(self, samples: Samples) -> dict[str, float]:
        """Effective sample size of the chunks under the policy at the start, where that is known.

        Raises:
            SkippedError: it is too small.
        """
        if not (self.algorithm.needs.proximal or self.settings.min_ess):
            return {}
        found = effective_sample_size(samples.log_weight(), self.ranks)
        if found < self.settings.min_ess:
            raise too_few(found, self.settings.min_ess)
        return {"start_ess": found}

    def _total(self, values: Sequence[float]) -> Sequence[float]:
        return [float(total) for total in self.ranks.sum(values)]

    def _gap(self, samples: Samples, chunks: Chunks) -> dict[str, float]:
        assert self._blank is not None
        weights: dict[int, Mapping[str, Tensor]] = {self.version: {}}
        if self._earlier is not None:
            weights.setdefault(*self._earlier)
        return gap.measured(self._parts, self._recomputing, samples, chunks, self._blank, weights)

    @property
    def warming_up(self) -> bool:
        """Whether the next update trains the value head only."""
        return self.algorithm.needs.values and self.version < self.settings.value_warm_up

    def rate_factor(self, version: int) -> float:
        """Factor of both learning rates for the update from ``version`` to the next."""
        settings = self.settings
        progress = version / settings.schedule_versions
        if settings.schedule_s:
            # One clock for all ranks: they must step alike.
            used_s = float(self.ranks.sum([self.used_s if self.ranks.first else 0.0])[0])
            progress = max(progress, used_s / settings.schedule_s)
        return warm_up(version, settings.lr_warm_up) * decay(
            settings.lr_schedule, progress, settings.lr_final
        )

    @property
    def used_s(self) -> float:
        """Seconds since the first trajectory was taken in, without the time between resumes."""
        return time.monotonic() - self._start_s if self._start_s is not None else self._used_before_s

    def _fixed_metrics(self, samples: Samples, chunks: Chunks) -> dict[str, float]:
        """What does not depend on how the update goes."""
        counts = [len(self._trajectories), sum(t.sub_steps for t in self._trajectories)]
        trajectories, sub_steps = self._total(counts)
        found = {
            **self._estimate_means.over(self.ranks).values(),
            **lag_metrics(chunks.version, self.version),
            "trajectories": trajectories,
            "sub_steps": sub_steps,
            "chunks": float(len(chunks)),
        }
        if self.algorithm.needs.values:
            value = torch.from_numpy(samples.value)
            found["explained_variance"] = explained_variance(value, samples.returns, self._total)
        return found

    # --- weights ----------------------------------------------------------------------------

    def weights(self, channel: Channel) -> Mapping[str, npt.NDArray[Any]]:
        """Copies of what the model publishes; ``evaluation`` has the averaged weights where configured. Ranks
        that share weights must all ask."""
        average = self._optimiser.average if channel == "evaluation" else {}
        with self._optimiser.exchanged(average) if average else nullcontext():
            arrays: dict[str, npt.NDArray[Any]] = dict(self.model.arrays())
        return arrays

    def base(self) -> Mapping[str, npt.NDArray[Any]]:
        """What ``weights`` leaves out because it never trains."""
        return base_of(self.model)

    def save(self, folder: Path | None) -> None:
        """Write weights, average, optimiser, reference and counters into ``folder``; every rank takes part,
        and the first knows the folder."""
        counters = state.Counters(
            version=self.version,
            skipped=self.skipped,
            shortened=self.shortened,
            seed=self.seed,
            used_s=self.used_s,
            advantages=self._advantages,
        )
        state.write(folder, self._parts, self._recomputing, counters)

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, on any number of ranks, exactly; trajectories taken in so far are
        forgotten.

        Raises:
            UserError: a file is damaged, of another format or of another model.
        """
        found = state.read(folder, self._parts, self._recomputing)
        self.version, self.skipped, self.seed = found.version, found.skipped, found.seed
        self.shortened, self._advantages = found.shortened, found.advantages
        self._start_s, self._used_before_s = None, found.used_s
        self._earlier = self._rejected = None
        self._forget()

    def save_rejected(self, folder: Path) -> None:
        """Add the batch of the last update, which something not finite was in; of this rank alone.

        Raises:
            ValueError: the last update had no such batch.
        """
        if self._rejected is None:
            raise ValueError("the last update was not rejected")
        rejected.write(folder, *self._rejected)

    def replay(self, folder: Path) -> UpdateReport:
        """Load a rejected batch with the state saved beside it, and run its update again.

        Streaming runs compute the first pass in the order of arrival; here it is shuffled as in all others.

        Raises:
            UserError: the folder holds no rejected batch, or is damaged.
        """
        self.load(folder)
        samples, _ = rejected.read(folder, self.model)
        self._taken = [samples]
        self._blank = samples.take(np.zeros(1, np.int64))
        return self.update()

    def restart_average(self) -> None:
        """Let the averaged weights start again from the present ones (after loading a warm start)."""
        self._optimiser.restart_average()
