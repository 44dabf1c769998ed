"""Advantage statistics and explained variance by hand."""

import math

import pytest
import torch

from rlvla3.algorithms.normalise import Statistics, blend, explained_variance, normalise, statistics


def test_statistics_by_hand() -> None:
    found = statistics(torch.tensor([1.0, 3.0]))
    assert found == Statistics(mean=2.0, std=1.0)
    torch.testing.assert_close(normalise(torch.tensor([4.0]), found), torch.tensor([2.0]))


def test_equal_advantages_become_zero() -> None:
    same = torch.full((5,), 0.3)
    found = normalise(same, statistics(same))
    assert torch.isfinite(found).all()
    assert found.abs().max() < 1.0


def test_statistics_of_two_holders_are_those_of_all() -> None:
    """One holds 1 and 3, the other 5: mean 3, deviations 2, 0, 2."""
    others = iter(([1.0, 5.0], [4.0]))

    def total(values):
        return [own + other for own, other in zip(values, next(others), strict=True)]

    found = statistics(torch.tensor([1.0, 3.0]), total)
    assert found.mean == 3.0
    assert found.std == pytest.approx(math.sqrt(8 / 3))
    assert next(others, None) is None


def test_blend_by_hand() -> None:
    # mean ½·0 + ½·2; second moment ½·1 + ½·(1 + 4) = 3; variance 3 − 1
    found = blend(Statistics(mean=0.0, std=1.0), Statistics(mean=2.0, std=1.0), 0.5)
    assert found.mean == 1.0
    assert found.std == pytest.approx(math.sqrt(2.0))
    new = Statistics(mean=5.0, std=2.0)
    assert blend(None, new, 0.9) == new


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 2.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.tensor([1.0, 1.0]), returns) == 0.0
    assert explained_variance(torch.tensor([2.0, 0.0]), returns) == -3.0
    assert explained_variance(torch.tensor([2.0, 0.0]), torch.ones(2)) == 0.0


def test_nothing_to_take_statistics_of() -> None:
    with pytest.raises(ValueError, match="no numbers"):
        statistics(torch.ones(0))
    with pytest.raises(ValueError, match="shape"):
        explained_variance(torch.ones(2), torch.ones(3))
