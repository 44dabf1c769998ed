"""Normalisation statistics by hand, and the tokenizer."""

import numpy as np
import pytest
import torch

from rlvla3.policies import words
from rlvla3.policies.transforms import Normaliser


def test_mean_and_deviation_by_hand() -> None:
    normaliser = Normaliser(2, "mean_std")
    normaliser.fit(np.array([[1.0, 10.0], [3.0, 30.0]], np.float32), "state")
    torch.testing.assert_close(normaliser.normalise(torch.tensor([1.0, 40.0])), torch.tensor([-1.0, 2.0]))
    torch.testing.assert_close(normaliser.restore(torch.tensor([-1.0, 2.0])), torch.tensor([1.0, 40.0]))


def test_quantiles_become_minus_one_and_one() -> None:
    normaliser = Normaliser(1, "quantile")
    normaliser.fit(np.linspace(0.0, 100.0, 101, dtype=np.float32)[:, None], "state")
    torch.testing.assert_close(normaliser.normalise(torch.tensor([[1.0], [50.0], [99.0]])).flatten(),
                               torch.tensor([-1.0, 0.0, 1.0]))  # fmt: skip


@pytest.mark.parametrize("mode", ["mean_std", "quantile"])
def test_a_constant_dimension_stays_finite_and_warns(mode) -> None:
    normaliser = Normaliser(2, mode)
    values = np.array([[5.0, 0.0], [5.0, 1.0], [5.0, 2.0]], np.float32)
    with pytest.warns(UserWarning, match=r"action: dimensions \[0\] never vary"):
        normaliser.fit(values, "action")
    found = normaliser.normalise(torch.from_numpy(values))
    assert torch.isfinite(found).all()
    assert not found[:, 0].any()


def test_digest_tells_statistics_and_modes_apart() -> None:
    first, second, third = Normaliser(1, "mean_std"), Normaliser(1, "mean_std"), Normaliser(1, "quantile")
    assert first.digest() == second.digest() != third.digest()
    second.shift.fill_(0.5)
    assert first.digest() != second.digest()


def test_tokens_are_words() -> None:
    tokens = words.tokenize(["Press the BUTTON!", "press zyzzyva a b c"], 4)
    assert tokens.shape == (2, 4)
    assert tokens[0, 3] == words.PAD
    assert tokens[0, 0] == tokens[1, 0] == 1 + words.KNOWN.index("press")
    assert 1 + len(words.KNOWN) <= tokens[1, 1] < words.VOCABULARY
    assert len(set(words.KNOWN)) == len(words.KNOWN)
