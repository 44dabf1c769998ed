"""Several ranks, each a process: what they compute together is written to files and compared."""

import faulthandler
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bandit
import numpy as np

ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"gamma": 0.9, "kl_coefficient": 0.05}),
    "grpo": ("grpo", {"group_size": 2, "score": "return"}),
    "vtrace": ("ppo", {"correction": "vtrace", "kl_coefficient": 0.05, "kl_estimator": "k1"}),
    "reinforce++": ("reinforce++", {"gamma": 0.9}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the ranks do."""

    algorithm: str = "ppo"
    sharded: bool = False
    streaming: bool = False
    frozen: bool = True
    """Whether the prefix is frozen."""
    stored: bool = False
    """Whether rollouts store it."""
    options: tuple[tuple[str, Any], ...] = ()
    """Settings of the learner."""
    updates: int = 2
    skips: int = 0
    """Updates that a guard skips, at the beginning."""
    trajectories: int = 7
    load: str = ""
    save: str = ""


Found = tuple[list[dict[str, float]], dict[str, Any]]
"""Metrics of each update; weights, average and first gradient by name."""


def compute(folder: Path, ranks: int, plans: Mapping[str, Plan]) -> dict[str, Found]:
    """Run the plans one after the other on so many ranks."""
    folder.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    listed = {name: asdict(plan) for name, plan in plans.items()}
    processes = [
        context.Process(target=_work, args=(rank, ranks, str(folder), listed)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
        if process.exitcode != 0:
            for other in processes:
                other.kill()
            raise AssertionError(f"a rank ended with {process.exitcode}")
    found = {}
    for number, name in enumerate(plans):
        metrics = json.loads((folder / f"{number}.json").read_text())
        with np.load(folder / f"{number}.npz") as arrays:
            found[name] = metrics, dict(arrays)
    return found


def _work(rank: int, ranks: int, folder: str, plans: dict[str, dict[str, Any]]) -> None:
    import torch

    from rlvla3.learner.ranks import Ranks

    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(60, exit=True)
    Ranks.join(rank, ranks, f"{folder}/store", sharded=False, device="cpu")
    for number, plan in enumerate(plans.values()):
        _World(rank, ranks, Path(folder) / str(number), Plan(**plan)).run()
    sys.stderr.flush()
    os._exit(0)  # gloo's threads need not be waited for


class _World:
    """One rank."""

    def __init__(self, rank: int, ranks: int, folder: Path, plan: Plan) -> None:
        from rlvla3.algorithms.registry import algorithm_class
        from rlvla3.learner.ranks import Ranks
        from rlvla3.learner.reinforcement import Reinforcement
        from rlvla3.learner.settings import ReinforcementSettings
        from rlvla3.learner.sharding import shard

        self.folder, self.plan = folder, plan
        self.ranks = Ranks(rank, ranks, sharded=plan.sharded)
        self.settings = bandit.SMALL.model_copy(
            update={"freeze_prefix": plan.frozen, "store_prefix": plan.stored}
        )
        model = bandit.build(settings=self.settings)
        shard(model, self.ranks)
        kind, options = ALGORITHMS[plan.algorithm]
        found = algorithm_class(kind)
        given = {
            "minibatch": 9,
            "epochs": 2,
            "lr": 1e-4,
            "value_lr": 1e-4,
            "value_warm_up": 0,
            **dict(plan.options),
        }
        self.learner = Reinforcement(
            model,
            found(found.Settings(**options)),
            ReinforcementSettings(**given),
            seed=3,
            streaming=plan.streaming,
            ranks=self.ranks,
        )
        self.gradients: dict[str, np.ndarray] = {}
        self._watch()

    def _watch(self) -> None:
        """Keep the gradients of the first step, summed over ranks."""
        optimiser, step = self.learner._optimiser, self.learner._optimiser.step

        def stepped(**options):
            if not self.gradients:
                self.learner.ranks.sum_gradients(list(optimiser.parameters.values()))
                whole = {n: p.grad for n, p in optimiser.parameters.items() if p.grad is not None}
                for name, gradient in whole.items():
                    full = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                    self.gradients[name] = full.numpy().copy()
                if self.ranks.size > 1 and not self.ranks.sharded:
                    optimiser.scale_gradients(1.0 / self.ranks.size)  # they are summed once more
            return step(**options)

        optimiser.step = stepped

    def run(self) -> None:
        if self.plan.load:
            self.learner.load(Path(self.plan.load))
        found = [self._update() for _ in range(self.plan.updates)]
        if self.plan.save:
            target = Path(self.plan.save)
            if self.ranks.first:
                target.mkdir(parents=True)
            self.learner.save(target if self.ranks.first else None)
        arrays = {f"weight/{n}": a for n, a in self.learner.weights("rollout").items()}
        arrays |= {f"average/{n}": a for n, a in self.learner.weights("evaluation").items()}
        arrays |= {f"gradient/{n}": a for n, a in self.gradients.items()}
        if self.ranks.first:
            np.savez(self.folder.with_suffix(".npz"), **arrays)
            self.folder.with_suffix(".json").write_text(json.dumps(found))

    def _update(self) -> dict[str, float]:
        """Rounds of one group for each rank, as the engine deals them; some ranks get nothing at the end."""
        acting = bandit.build(settings=self.settings)
        acting.load_arrays(self.learner.weights("rollout"))
        version = self.learner.version
        trajectories, slab = bandit.rollout(
            acting, 2 * self.plan.trajectories, 2, version=version, first=1000 * version, group=2
        )
        if version:
            slab["record.log_prob"][::3] += 0.05  # an earlier version acted these
            slab["version"][::3] -= 1
        if self.learner.skipped < self.plan.skips:
            slab["record.log_prob"][1, 0] -= 4.0  # so unlikely that hardly another chunk counts
            slab["version"][1, 0] -= 1
        groups = [trajectories[n : n + 2] for n in range(0, len(trajectories), 2)]
        while len(groups) % self.ranks.size:
            groups.append([])
        for n in range(0, len(groups), self.ranks.size):
            self.learner.ingest(groups[n + self.ranks.rank], slab)
        report = self.learner.update()
        return dict(report.metrics) | {"was_skipped": float(bool(report.skipped))}
