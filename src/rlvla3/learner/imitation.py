"""Supervised learning on demonstrated action chunks: the warm start of reinforcement learning."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rlvla3.algorithms.schedules import decay, warm_up
from rlvla3.errors import UserError
from rlvla3.learner.optimiser import Optimiser
from rlvla3.learner.settings import ImitationSettings
from rlvla3.learner.tensors import read_tensors, write_tensors
from rlvla3.policies.weights import copy_into

FORMAT = 1
"""Version of the files that ``save`` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """M demonstrated chunks."""

    observation: Mapping[str, npt.NDArray[Any]]
    """Raw fields [M, ...]."""
    task: npt.NDArray[np.int64]
    """Task index [M]."""
    actions: npt.NDArray[np.float32]
    """[M, C, A] in env units."""

    def __post_init__(self) -> None:
        count = len(self.actions)
        if count == 0 or self.actions.ndim != 3:
            shape = list(self.actions.shape)
            raise UserError(f"demonstrations need actions [M, C, A] with M ≥ 1, got {shape}; record some")
        for name, array in {**self.observation, "task": self.task}.items():
            if len(array) != count:
                raise UserError(
                    f"demonstrations: field {name!r} has {len(array)} entries for {count} actions"
                )

    def take(
        self, index: npt.NDArray[np.int64]
    ) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.float32]]:
        """Observations (with ``task`` and ``elapsed``) and actions at ``index``."""
        observation = {name: array[index] for name, array in self.observation.items()}
        observation["task"] = self.task[index]
        observation["elapsed"] = np.zeros(len(index), np.float32)
        return observation, self.actions[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationProgress:
    """Told after each step."""

    step: int
    """Steps done."""
    steps: int
    loss: float
    lr: float
    elapsed_s: float


class Imitation:
    """Trains what the model calls ``imitation`` parameters, in steps, resumable."""

    def __init__(self, model: Any, settings: ImitationSettings, *, seed: int) -> None:
        self.model, self.settings, self.seed = model, settings, seed
        self.step = 0
        self.used_s = 0.0
        model.requires_grad_(False)
        parameters = dict(model.trainable("imitation"))
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        self._optimiser = Optimiser(
            parameters,
            value_names=frozenset(),
            lr=settings.lr,
            value_lr=0.0,
            weight_decay=settings.weight_decay,
            gradient_clip=settings.gradient_clip,
            ema=settings.ema,
        )

    @property
    def done(self) -> bool:
        """Whether all steps, or the budget, are used."""
        budget = self.settings.budget_s
        return self.step >= self.settings.steps or (budget > 0 and self.used_s >= budget)

    def run(
        self,
        data: Demonstrations,
        *,
        fit_processors: bool = True,
        report: Callable[[ImitationProgress], None] = lambda progress: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> float:
        """Train until ``done`` or ``stop()``, then put averaged weights (if configured) in place.

        Args:
            data: the demonstrations.
            fit_processors: set the normalisation from ``data`` first (only before the first step).
            report: called after each step.
            stop: asked before each step.

        Returns:
            Mean loss of the last 20 steps.

        Raises:
            UserError: the loss is not finite.
        """
        if fit_processors and self.step == 0:
            self.model.fit_processors_to(data.observation, data.actions)
        losses: list[float] = []
        start_s = time.monotonic() - self.used_s
        with _threads(self.settings.threads):
            while not self.done and not stop():
                losses.append(self._step(data))
                self.used_s = time.monotonic() - start_s
                report(
                    ImitationProgress(
                        step=self.step,
                        steps=self.settings.steps,
                        loss=losses[-1],
                        lr=self._optimiser.rates["policy"],
                        elapsed_s=self.used_s,
                    )
                )
        if self.done and self._optimiser.average:
            copy_into(dict(self.model.trainable("imitation")), self._optimiser.average, "average")
        return float(np.mean(losses[-20:])) if losses else float("nan")

    def _step(self, data: Demonstrations) -> float:
        observation, actions = data.take(self._batch(len(data.actions)))
        generator = torch.Generator().manual_seed(_seed(self.seed, self.step))
        self._optimiser.set_rate(self._rate())
        self._optimiser.zero_gradients()
        loss = self.model.imitation_loss(observation, actions, generator)
        torch.autograd.backward(loss)
        value = float(loss.detach())
        if self._optimiser.step() is None:
            raise UserError(
                f"imitation step {self.step}: loss {value} or its gradient is not finite; "
                "check the demonstrations for NaN, or lower imitation.options.lr"
            )
        self.step += 1
        return value

    def _rate(self) -> float:
        settings = self.settings
        progress = self.step / settings.steps
        if settings.budget_s > 0:
            progress = max(progress, self.used_s / settings.budget_s)
        return warm_up(self.step, settings.warm_up) * decay("cosine", progress, settings.lr_final)

    def _batch(self, count: int) -> npt.NDArray[np.int64]:
        """Indices of the present step: shuffled passes over the data, named by (seed, pass)."""
        first = self.step * self.settings.batch
        wanted = np.arange(first, first + self.settings.batch)
        orders = {
            number: np.random.default_rng([self.seed, number]).permutation(count)
            for number in np.unique(wanted // count)
        }
        return np.array([orders[i // count][i % count] for i in wanted], np.int64)

    # --- state ------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write weights, average, optimiser and counters into ``folder``."""
        write_tensors(folder / "weights.safetensors", self.model.state_dict())
        write_tensors(folder / "average.safetensors", self._optimiser.average)
        write_tensors(folder / "optimiser.safetensors", self._optimiser.state())
        state = {"format": FORMAT, "step": self.step, "used_s": self.used_s, "seed": self.seed}
        (folder / "imitation.json").write_text(json.dumps(state, indent=2))

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, exactly.

        Raises:
            UserError: a file is damaged, of another format or of another model.
        """
        path = folder / "imitation.json"
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({error}); use another checkpoint") from error
        if state.get("format") != FORMAT:
            raise UserError(f"{path}: format {state.get('format')!r} is not {FORMAT}")
        for name, target in (("weights", self.model.state_dict()), ("average", self._optimiser.average)):
            file = folder / f"{name}.safetensors"
            copy_into(target, read_tensors(file), str(file))
        file = folder / "optimiser.safetensors"
        self._optimiser.load_state(read_tensors(file), str(file))
        self.step, self.used_s, self.seed = state["step"], state["used_s"], state["seed"]


def _seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
