"""The reinforcement learner: trajectories in, new policy versions out."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rlvla3.algorithms.api import Algorithm, LossInputs
from rlvla3.algorithms.normalise import Statistics, blend, explained_variance, normalise, statistics
from rlvla3.algorithms.schedules import decay, warm_up
from rlvla3.errors import UserError
from rlvla3.learner import rejected
from rlvla3.learner import samples as intake
from rlvla3.learner.api import Slab, UpdateReport
from rlvla3.learner.metrics import Means, behaviour_metrics, logprob_gap, trajectory_metrics
from rlvla3.learner.optimiser import Optimiser
from rlvla3.learner.samples import Samples
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.learner.tensors import read_tensors, write_tensors
from rlvla3.messages import Channel, Trajectory
from rlvla3.policies.weights import copy_into

FORMAT = 1
"""Version of the files that ``save`` writes."""
_GAP_CHUNKS = 32
"""Chunks that the log-prob gap is measured on: it costs one small pass."""


class _NotFiniteError(Exception):
    """A loss or gradient of this update is not finite."""


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
        recompute_values: bool = False,
    ) -> None:
        """Take over ``model``: only what trains in ``reinforcement`` keeps gradients.

        Args:
            model: a ``PolicyModel`` that is a ``torch.nn.Module``.
            algorithm: estimates advantages and computes the loss.
            settings: of the learner.
            seed: of the order of minibatches.
            streaming: whether ``ingest`` already computes the first pass's gradient, with one
                optimiser step at the pass's end.
            recompute_values: whether the learner computes bootstrap values from the last
                observation instead of taking those of the slab.
        """
        self.model, self.algorithm, self.settings, self.seed = model, algorithm, settings, seed
        self._streaming, self._recompute_values = streaming, recompute_values
        self.version = 0
        self.skipped = 0
        self._start_s: float | None = None
        self._used_before_s = 0.0
        self._advantages: Statistics | None = None
        self._earlier: tuple[int, Mapping[str, Tensor]] | None = None
        """The version before this one and its trained weights."""
        self._rejected: tuple[Samples, str] | None = None
        """Batch of the last update, if that was skipped, and why."""
        model.requires_grad_(False)
        parameters = dict(model.trainable("reinforcement"))
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        self._optimiser = Optimiser(
            parameters,
            value_names=frozenset(name for name, _ in model.trainable("value")),
            lr=settings.lr,
            value_lr=settings.value_lr,
            weight_decay=settings.weight_decay,
            gradient_clip=settings.gradient_clip,
            ema=settings.ema,
        )
        self._forget()

    def _forget(self) -> None:
        self._parts: list[Samples] = []
        self._trajectories: list[Trajectory] = []
        self._estimate_means = Means()
        self._first_pass = Means()
        self._streamed = 0
        self._fault: _NotFiniteError | None = None
        self._optimiser.zero_gradients()

    # --- taking in --------------------------------------------------------------------------

    def ingest(self, trajectories: Sequence[Trajectory], slab: Slab) -> None:
        """Copy trajectories out of the slab, with advantages, prefixes and, when streaming, the
        first pass's gradient.

        Raises:
            ValueError: a chunk's behaviour version is newer than the version held.
        """
        if not trajectories:
            return
        self._rejected = None
        if self._start_s is None:
            self._start_s = time.monotonic() - self._used_before_s
        part, metrics = intake.gather(
            trajectories,
            slab,
            self.model,
            self.algorithm,
            recompute_values=self._recompute_values,
        )
        if part.version.max() > self.version:
            raise ValueError(
                f"behaviour version {part.version.max()} is newer than the learner's {self.version}"
            )
        part = self._with_proximal(part)
        self._parts.append(part)
        self._trajectories.extend(trajectories)
        self._estimate_means.add(metrics, len(part))
        if self._streaming and self._advantages is not None:
            try:
                self._accumulate(part, self._advantages)
            except _NotFiniteError as fault:
                self._fault = fault

    def _accumulate(self, part: Samples, given: Statistics) -> None:
        """Add the gradient of the summed loss; its division by the count comes with the step."""
        for piece in part.pieces(part.in_order(), self.settings.minibatch):
            loss, metrics = self._loss(piece, given)
            torch.autograd.backward(loss * len(piece))
            self._first_pass.add(metrics, len(piece))
            self._streamed += len(piece)

    # --- one update -------------------------------------------------------------------------

    def update(self) -> UpdateReport:
        """Run the (remaining) epochs over everything taken in, then forget it.

        An update with a loss or gradient that is not finite changes nothing: weights, average and
        optimiser are put back bit-equal, and the report says ``skipped``.

        Raises:
            ValueError: nothing was taken in.
        """
        if not self._parts:
            raise ValueError("update without any trajectory taken in")
        samples = intake.join(self._parts)
        before = self._optimiser.snapshot()
        metrics = self._fixed_metrics(samples) | self._gap(samples)
        try:
            metrics |= self._epochs(samples)
        except _NotFiniteError as reason:
            self._optimiser.restore(before)
            self._rejected = samples, str(reason)
            self.skipped += 1
            skipped = True
            metrics |= {str(reason): 1.0}
        else:
            self._earlier = self.version, before.parameters
            self.version += 1
            skipped = False
        metrics |= {"skipped_updates": float(self.skipped), "version": float(self.version)}
        self._forget()
        return UpdateReport(skipped=skipped, rejected=skipped, metrics=metrics)

    def _with_proximal(self, samples: Samples) -> Samples:
        """With the log-probs of chunks of earlier versions under the present one, where the algorithm asks
        for them. For chunks of the present version they are what the Generator recorded."""
        if not self.algorithm.needs.proximal:
            return samples
        proximal = samples.proximal.copy()
        earlier = np.flatnonzero(samples.version < self.version)
        with torch.no_grad():
            for first in range(0, len(earlier), self.settings.minibatch):
                chosen = earlier[first : first + self.settings.minibatch]
                piece = samples.take(chosen)
                evaluation = self.model.evaluate(piece.prefix, piece.observation, piece.record)
                proximal[chosen] = evaluation.log_prob.cpu().numpy()
        return replace(samples, proximal=proximal)

    def _gap(self, samples: Samples) -> dict[str, float]:
        """The log-prob gap, on some chunks of the newest version whose weights are at hand: the present one
        or, where every chunk is older, the one before. Empty where all are older still."""
        versions = {self.version: None, **({self._earlier[0]: self._earlier[1]} if self._earlier else {})}
        known = samples.version[np.isin(samples.version, list(versions))]
        if not len(known):
            return {}
        newest = int(known.max())
        piece = samples.take(np.flatnonzero(samples.version == newest)[:_GAP_CHUNKS])
        weights = versions[newest]
        with torch.no_grad(), self._optimiser.exchanged(weights) if weights else nullcontext():
            log_prob = self.model.evaluate(piece.prefix, piece.observation, piece.record).log_prob
        return logprob_gap(log_prob, torch.from_numpy(piece.record["log_prob"]).to(log_prob.device))

    def _epochs(self, samples: Samples) -> dict[str, float]:
        if self._fault is not None:
            raise self._fault
        own = statistics(samples.advantage, torch.ones_like(samples.advantage, dtype=torch.bool))
        if not np.isfinite(own.std):
            raise _NotFiniteError("not_finite_advantage")
        streamed = self._streamed > 0
        given = self._advantages if streamed and self._advantages is not None else own
        self._optimiser.set_rate(self.rate_factor(self.version))
        means = Means()
        if streamed:
            means.merge(self._first_pass)
            self._optimiser.scale_gradients(1.0 / self._streamed)
            means.add({"grad_norm": self._step()}, 1)
        epochs = 1 if streamed else 0
        wanted = 0 if self.warming_up and self.settings.value_passes else self.settings.epochs
        for epoch in range(epochs, wanted):
            kl = self._epoch(samples, given, epoch, means)
            epochs = epoch + 1
            if self.settings.target_kl and kl > self.settings.target_kl:
                break
        for number in range(self.settings.value_passes):
            self._value_pass(samples, self.settings.epochs + number)
        if not self._optimiser.finite():
            raise _NotFiniteError("not_finite_weights")
        self._advantages = blend(self._advantages, own, self.settings.statistics_keep)
        metrics = means.values() | {"epochs": float(epochs), "lr": self._optimiser.rates["policy"]}
        return metrics | {"advantage_mean": own.mean, "advantage_std": own.std}

    def _epoch(self, samples: Samples, given: Statistics, epoch: int, means: Means) -> float:
        """One pass in minibatches; returns its mean KL from the behaviour policy."""
        kl = Means()
        for piece in samples.pieces(self._order(samples, epoch), self.settings.minibatch):
            self._optimiser.zero_gradients()
            loss, metrics = self._loss(piece, given)
            torch.autograd.backward(loss)
            metrics["grad_norm"] = self._step()
            means.add(metrics, len(piece))
            kl.add({"kl": metrics["kl"]}, len(piece))
        return kl.values()["kl"]

    def _value_pass(self, samples: Samples, number: int) -> None:
        """One pass of the value head alone, in minibatches; ``number`` names its shuffle."""
        for piece in samples.pieces(self._order(samples, number), self.settings.minibatch):
            self._optimiser.zero_gradients()
            value = self.model.value(piece.prefix, piece.observation)
            behaviour = torch.from_numpy(piece.record["log_prob"]).to(value.device)
            inputs = self._inputs(piece, behaviour, value, torch.zeros_like(value), piece.advantage)
            loss, _ = self.algorithm.loss(inputs, value_only=True)
            if not torch.isfinite(loss):
                raise _NotFiniteError("not_finite_loss")
            torch.autograd.backward(loss)
            self._step()

    def _order(self, samples: Samples, epoch: int) -> npt.NDArray[np.int64]:
        """A shuffle named by (seed, version, epoch) of the chunks sorted by (episode, chunk)."""
        generator = np.random.default_rng([self.seed, self.version, epoch])
        return samples.in_order()[generator.permutation(len(samples))]

    def _loss(self, piece: Samples, given: Statistics) -> tuple[Tensor, dict[str, float]]:
        evaluation = self.model.evaluate(piece.prefix, piece.observation, piece.record)
        device = evaluation.value.device
        advantage = piece.advantage.to(device)
        if self.settings.normalise_advantages:
            advantage = normalise(advantage, given)
        inputs = self._inputs(piece, evaluation.log_prob, evaluation.value, evaluation.entropy, advantage)
        loss, metrics = self.algorithm.loss(inputs, value_only=self.warming_up)
        numbers = {name: float(value) for name, value in metrics.items()}
        if not torch.isfinite(loss):
            raise _NotFiniteError("not_finite_loss")
        return loss, numbers

    def _inputs(
        self, piece: Samples, log_prob: Tensor, value: Tensor, entropy: Tensor, advantage: Tensor
    ) -> LossInputs:
        device = value.device
        return LossInputs(
            log_prob=log_prob,
            behaviour_log_prob=torch.from_numpy(piece.record["log_prob"]).to(device),
            proximal_log_prob=torch.from_numpy(piece.proximal).to(device),
            value=value,
            behaviour_value=torch.from_numpy(piece.record["value"]).to(device),
            entropy=entropy,
            advantage=advantage.to(device),
            returns=piece.returns.to(device),
            mask=torch.ones(len(piece), dtype=torch.bool, device=device),
        )

    def _step(self) -> float:
        norm = self._optimiser.step()
        if norm is None:
            raise _NotFiniteError("not_finite_gradient")
        return norm

    @property
    def warming_up(self) -> bool:
        """Whether the next update trains the value head only."""
        return self.version < self.settings.value_warm_up

    def rate_factor(self, version: int) -> float:
        """Factor of both learning rates for the update from ``version`` to the next."""
        settings = self.settings
        progress = version / settings.schedule_versions
        if settings.schedule_s:
            progress = max(progress, self.used_s / settings.schedule_s)
        return warm_up(version, settings.lr_warm_up) * decay(
            settings.lr_schedule, progress, settings.lr_final
        )

    @property
    def used_s(self) -> float:
        """Seconds since the first trajectory was taken in, without the time between resumes."""
        return time.monotonic() - self._start_s if self._start_s is not None else self._used_before_s

    def _fixed_metrics(self, samples: Samples) -> dict[str, float]:
        """What does not depend on how the update goes."""
        behaviour_value = torch.from_numpy(samples.record["value"])
        return {
            **self._estimate_means.values(),
            **(trajectory_metrics(self._trajectories) if self._trajectories else {}),
            **behaviour_metrics(samples.version, self.version),
            "chunks": float(len(samples)),
            "explained_variance": explained_variance(behaviour_value, samples.returns),
        }

    # --- weights ----------------------------------------------------------------------------

    def weights(self, channel: Channel) -> Mapping[str, npt.NDArray[Any]]:
        """Copies of parameters and buffers; ``evaluation`` has the averaged ones where configured."""
        arrays: dict[str, npt.NDArray[Any]] = dict(self.model.arrays())
        if channel == "evaluation":
            for name, tensor in self._optimiser.average.items():
                arrays[name] = tensor.cpu().numpy().copy()
        return arrays

    def save(self, folder: Path) -> None:
        """Write weights, average, optimiser and counters into ``folder``."""
        write_tensors(folder / "weights.safetensors", self.model.state_dict())
        write_tensors(folder / "average.safetensors", self._optimiser.average)
        write_tensors(folder / "optimiser.safetensors", self._optimiser.state())
        state = {
            "format": FORMAT,
            "version": self.version,
            "skipped": self.skipped,
            "seed": self.seed,
            "used_s": self.used_s,
            "advantages": asdict(self._advantages) if self._advantages else None,
        }
        (folder / "learner.json").write_text(json.dumps(state, indent=2))

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, exactly; trajectories taken in so far are forgotten.

        Raises:
            UserError: a file is damaged, of another format or of another model.
        """
        state = _read_state(folder / "learner.json")
        weights = folder / "weights.safetensors"
        copy_into(self.model.state_dict(), read_tensors(weights), str(weights))
        average = folder / "average.safetensors"
        copy_into(self._optimiser.average, read_tensors(average), str(average))
        optimiser = folder / "optimiser.safetensors"
        self._optimiser.load_state(read_tensors(optimiser), str(optimiser))
        self.version, self.skipped, self.seed = state["version"], state["skipped"], state["seed"]
        self._start_s, self._used_before_s = None, state["used_s"]
        self._advantages = Statistics(**state["advantages"]) if state["advantages"] else None
        self._earlier = self._rejected = None
        self._forget()

    def save_rejected(self, folder: Path) -> None:
        """Add the batch of the last update, which was skipped.

        Raises:
            ValueError: the last update was not skipped.
        """
        if self._rejected is None:
            raise ValueError("the last update was not skipped")
        rejected.write(folder, *self._rejected)

    def replay(self, folder: Path) -> UpdateReport:
        """Load a rejected batch with the state saved beside it, and run its update again.

        Streaming runs compute the first pass in the order of arrival; here it is shuffled as in all others.

        Raises:
            UserError: the folder holds no rejected batch, or is damaged.
        """
        self.load(folder)
        samples, _ = rejected.read(folder, self.model)
        self._parts = [samples]
        return self.update()

    def restart_average(self) -> None:
        """Let the averaged weights start again from the present ones (after loading a warm start)."""
        self._optimiser.restart_average()


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); use another checkpoint") from error
    if state.get("format") != FORMAT:
        raise UserError(
            f"{path}: format {state.get('format')!r} is not {FORMAT}; load it with the rlvla3 that wrote it"
        )
    return state
