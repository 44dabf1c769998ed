"""A policy in float64 whose every number is a linear map: gradients can be compared to the last digits."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlvla3.algorithms.registry import algorithm_class
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings
from rlvla3.messages import Episode, Row, Start, Trajectory, Version
from rlvla3.policies.api import Evaluation

CHUNK, ACTION, FEATURES = 3, 2, 4
SHAPES = {"chunk": (), "action": (CHUNK,), "token": (CHUNK, ACTION)}
ALGORITHMS = {
    "ppo": ("ppo", {"correction": "decoupled"}),
    "ppo none": ("ppo", {"correction": "none"}),
    "ppo vtrace": ("ppo", {"correction": "vtrace"}),
    "ppo truncated_is": ("ppo", {"correction": "truncated_is"}),
    "ppo gaussian": ("ppo", {"correction": "gaussian"}),
    "grpo": ("grpo", {"group_size": 2, "kl_coefficient": 0.1, "score": "return"}),
    "rloo": ("rloo", {"group_size": 2, "score": "return"}),
    "reinforce++": ("reinforce++", {"kl_coefficient": 0.1, "kl_estimator": "k2"}),
}


class ExactPolicy(nn.Module):
    """Log-probs of stored actions under a normal distribution around a linear map, and linear values."""

    def __init__(self, level: str, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.level = level

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.3 * torch.randn(*shape, generator=generator, dtype=torch.float64))

        self.mean, self.critic = parameter(FEATURES, CHUNK * ACTION), parameter(FEATURES)
        self.spread = parameter(CHUNK * ACTION)

    def prefix(self, observation: Any, record: Any) -> tuple[Tensor, ...]:
        return ()

    def _features(self, observation: Any) -> Tensor:
        return torch.from_numpy(np.asarray(observation["x"], np.float64))

    def evaluate(self, prefix: Any, observation: Any, record: Any) -> Evaluation:
        features = self._features(observation)
        mean = (features @ self.mean).view(-1, CHUNK, ACTION)
        spread = self.spread.view(CHUNK, ACTION)
        action = torch.from_numpy(np.asarray(record["action"], np.float64))
        log_prob = -0.5 * ((action - mean) * (-spread).exp()) ** 2 - spread
        if self.level == "action":
            log_prob = log_prob.sum(2)
        elif self.level == "chunk":
            log_prob = log_prob.sum((1, 2))
        entropy = spread.sum().expand(len(features))
        return Evaluation(log_prob=log_prob, entropy=entropy, value=features @ self.critic)

    def value(self, prefix: Any, observation: Any) -> Tensor:
        return self._features(observation) @ self.critic

    def trainable(self, stage: str) -> list[tuple[str, nn.Parameter]]:
        names = dict(self.named_parameters())
        return [("critic", names["critic"])] if stage == "value" else list(names.items())

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: tensor.detach().numpy().copy() for name, tensor in self.state_dict().items()}


def learner(name: str, level: str, **options: Any) -> Reinforcement:
    """A learner of one of ``ALGORITHMS`` at a ratio level."""
    kind, settings = ALGORITHMS[name]
    found = algorithm_class(kind)
    streaming = options.pop("streaming", False)
    given = {"minibatch": 1000, "epochs": 1, "value_warm_up": 0, "lr": 1e-2, "gradient_clip": 1e9} | options
    return Reinforcement(
        ExactPolicy(level),
        found(found.Settings(**settings)),
        ReinforcementSettings(**given),
        seed=0,
        streaming=streaming,
    )


def rollout(
    model: ExactPolicy, rows: int, *, version: int, first: int, stale: bool = False
) -> tuple[list[Trajectory], dict[str, np.ndarray]]:
    """Trajectories of 1 to 4 chunks, the last chunk of some cut short; with ``stale`` the first chunks were
    acted by the version before, whose log-probs were a little different."""
    random, chunks = np.random.default_rng(first + 1), 4
    x = random.standard_normal((rows, chunks + 1, FEATURES))
    x[1::2, 0] = x[0 : rows - rows % 2 : 2, 0]  # members of a group begin alike
    action = random.standard_normal((rows, chunks, CHUNK, ACTION))
    flat = model.evaluate(
        (), {"x": x[:, :chunks].reshape(-1, FEATURES)}, {"action": action.reshape(-1, CHUNK, ACTION)}
    )
    log_prob = flat.log_prob.detach().numpy().reshape(rows, chunks, *SHAPES[model.level])
    versions = np.full((rows, chunks), version, np.int64)
    if stale:
        versions[:, 0] -= 1
        log_prob[:, 0] += 0.1 * random.standard_normal(log_prob[:, 0].shape)
    length = random.integers(1, chunks + 1, rows)
    sub_steps = np.full((rows, chunks), CHUNK, np.int32)
    sub_steps[np.arange(rows), length - 1] = random.integers(1, CHUNK + 1, rows)
    slab = {
        "observation.x": x,
        "observation.task": np.zeros((rows, chunks + 1), np.int64),
        "record.action": action,
        "record.log_prob": log_prob.astype(np.float32),
        "record.value": flat.value.detach().numpy().reshape(rows, chunks).astype(np.float32),
        "reward": random.standard_normal((rows, chunks, CHUNK)).astype(np.float32),
        "sub_steps": sub_steps,
        "version": versions,
        "bootstrap_value": random.standard_normal(rows).astype(np.float32),
        "episode": np.arange(first, first + rows),
    }
    trajectories = [
        Trajectory(
            row=Row(row),
            episode=Episode(first + row),
            group=first + row // 2,
            start=Start(task=0, split="train", state=row // 2),
            first_chunk=0,
            chunks=int(length[row]),
            sub_steps=int(sub_steps[row, : length[row]].sum()),
            end="terminated" if row % 3 else "truncated",
            success=bool(row % 2),
            solved_at_reset=False,
            total_reward=float(random.standard_normal()),
            oldest_version=Version(int(versions[row, 0])),
        )
        for row in range(rows)
    ]
    return trajectories, slab
