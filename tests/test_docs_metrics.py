"""Every metric that a run logs is in docs/metrics.md, and every metric of an update there is logged."""

import ast
import re
from pathlib import Path

import bandit
import numpy as np
import pytest

from rlvla3.algorithms.registry import algorithm_class
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings

ROOT = Path(__file__).parent.parent
DOCUMENTED = set(re.findall(r"`([\w/]+)`", (ROOT / "docs" / "metrics.md").read_text()))
SOURCE = ROOT / "src" / "rlvla3"
LOGGING = {
    SOURCE / "monitor.py": {"_log": "", "_shares": "", "_groups": "", "_loads": "", "on_evaluation": ""},
    SOURCE / "core" / "engine.py": {"accounting": "accounting/"},
}
"""Functions whose dictionary keys are metrics, with what is put before them."""
NAMED_ELSEWHERE = re.compile(r"accounting/[A-Z]+|train/[A-Z]+")


def trained(kind: str, options: dict, **settings) -> Reinforcement:
    found = algorithm_class(kind)
    given = {"minibatch": 8, "epochs": 1, "value_warm_up": 0} | settings
    return Reinforcement(
        bandit.build(), found(found.Settings(**options)), ReinforcementSettings(**given), seed=0
    )


def update(learner: Reinforcement, first: int, lag: int = 0, group: int = 1, **changes) -> set[str]:
    """Names of an update's metrics; ``changes`` break fields of the slab."""
    version = learner.version - lag
    trajectories, slab = bandit.rollout(learner.model, 8, 2, version=version, first=first, group=group)
    for name, change in changes.items():
        slab[name.replace("__", ".")][0] += change
    learner.ingest(trajectories, slab)
    return {f"train/{re.sub(r'lag_[0-9]+/', 'lag_L/', name)}" for name in learner.update().metrics}


@pytest.fixture(scope="module")
def logged() -> set[str]:
    """Of updates with and without lag, groups, a reference and guards, and of updates that are skipped."""
    found: set[str] = set()
    runs = [
        (trained("ppo", {"kl_coefficient": 0.1}), 1, {}),
        (trained("grpo", {"group_size": 2, "score": "return"}), 2, {}),
        (trained("ppo", {}), 1, {"reward": np.nan}),
        (trained("ppo", {}), 1, {"record__log_prob": np.nan}),
        (trained("ppo", {}, lr=1e38, minibatch=1000), 1, {}),
        (trained("ppo", {}, target_kl=1e-9), 1, {"record__log_prob": -3.0}),
    ]
    for learner, group, changes in runs:
        found |= update(learner, 0, group=group, **changes)
        lag = min(learner.version, 1)  # a skipped update made no version
        found |= update(learner, 40, lag=lag, group=group, **changes)
    stale = trained("ppo", {}, min_ess=0.99)
    update(stale, 0)
    return found | update(stale, 40, lag=1, record__log_prob=-3.0)


def test_every_metric_of_an_update_is_documented(logged) -> None:
    assert {"train/lag_L/ess", "train/group/equal", "train/reference_kl", "train/start_ess"} <= logged
    assert {"train/not_finite_loss", "train/too_large_kl", "train/too_small_ess"} <= logged
    assert logged <= DOCUMENTED, logged - DOCUMENTED


def test_every_documented_metric_of_an_update_exists(logged) -> None:
    rare = {"train/not_finite_gradient"}  # needs a finite loss whose gradient is not
    documented = {n for n in DOCUMENTED if n.startswith("train/") and not NAMED_ELSEWHERE.fullmatch(n)}
    assert documented - rare <= logged, documented - logged


@pytest.mark.parametrize(("file", "functions"), LOGGING.items(), ids=lambda value: getattr(value, "stem", ""))
def test_every_metric_of_a_run_is_documented(file, functions) -> None:
    tree = ast.parse(file.read_text())
    seen = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name in functions:
            seen.add(function.name)
            for name in _keys(function):
                pattern = functions[function.name] + name
                known = any(re.fullmatch(pattern, documented) for documented in DOCUMENTED)
                assert known or NAMED_ELSEWHERE.fullmatch(pattern.replace("[A-Z]+", "X")), pattern
    assert seen == set(functions)


def _keys(function: ast.FunctionDef):
    """Keys of dictionaries that it makes or fills, as patterns: a name that is put in is capital letters."""
    keys: list[ast.expr | None] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            keys += node.keys
        elif isinstance(node, ast.DictComp):
            keys.append(node.key)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys.append(node.slice)
    for key in keys:
        if isinstance(key, ast.Constant) and key.value not in ("version", "time_s"):
            yield key.value
        elif isinstance(key, ast.JoinedStr):
            yield "".join(p.value if isinstance(p, ast.Constant) else "[A-Z]+" for p in key.values)
