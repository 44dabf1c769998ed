"""The algorithm in docs/algorithms/own.md is whole: it is imported from the page, and trains."""

import re
from pathlib import Path

import bandit
import numpy as np
import pytest

from rlvla3.algorithms.own import Own
from rlvla3.algorithms.registry import algorithm_class
from rlvla3.errors import UserError
from rlvla3.learner.reinforcement import Reinforcement
from rlvla3.learner.settings import ReinforcementSettings

PAGE = Path(__file__).parent.parent / "docs" / "algorithms" / "own.md"
KIND = "algorithm_of_the_page:WeightedRegression"


@pytest.fixture
def found(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "algorithm_of_the_page.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    return algorithm_class(KIND)


def learner(made, **settings) -> Reinforcement:
    given = {"minibatch": 64, "lr": 2e-3, "value_warm_up": 0} | settings
    return Reinforcement(bandit.build(), Own(made, KIND), ReinforcementSettings(**given), seed=0)


def test_the_example_trains(found) -> None:
    trained = learner(found(found.Settings(gamma=0.0)), value_passes=1)
    before = trained.weights("rollout")
    trajectories, slab = bandit.rollout(trained.model, 48, 2)
    trained.ingest(trajectories, slab)
    report = trained.update()
    assert not report.skipped
    assert np.isfinite(report.metrics["loss"])
    after = trained.weights("rollout")
    moved = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    assert any(name.startswith("value_head.") for name in moved)
    assert any(name.startswith("expert_blocks.") for name in moved)


def test_a_fault_of_the_example_is_told_as_the_page_says(found) -> None:
    class Wrong(found):
        def loss(self, inputs, *, value_only):
            loss, figures = super().loss(inputs, value_only=value_only)
            return loss.mean(), figures

    trained = learner(Wrong(found.Settings()))
    trained.ingest(*bandit.rollout(trained.model, 4, 2))
    with pytest.raises(UserError, match=r"loss must be a tensor \[8\], it is \(\)"):
        trained.update()
