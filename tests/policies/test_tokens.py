"""Action tokens against numbers computed by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlvla3.policies import tokens


@pytest.mark.parametrize(
    ("number", "span", "token"),
    [
        (-1.0, 1.0, 0),
        (1.0, 1.0, 255),
        (-9.0, 1.0, 0),
        (9.0, 3.0, 255),
        (1 / 255, 1.0, 128),
        (-3 / 255, 3.0, 127),
    ],
)
def test_encoding_by_hand(number: float, span: float, token: int) -> None:
    assert tokens.encode(torch.tensor([number]), span).tolist() == [token]


def test_decoding_by_hand() -> None:
    found = tokens.decode(torch.tensor([0, 51, 255]), 3.0)
    torch.testing.assert_close(found, torch.tensor([-3.0, 3.0 * (102 / 255 - 1), 3.0]))


@given(st.floats(-1, 1), st.sampled_from([1.0, 3.0]))
def test_decoding_is_within_half_a_bin(share: float, span: float) -> None:
    number = torch.tensor(share * span)
    assert abs(float(tokens.decode(tokens.encode(number, span), span) - number)) <= span / 255 + 1e-6


def test_every_token_comes_back() -> None:
    every = torch.arange(tokens.BINS)
    assert torch.equal(tokens.encode(tokens.decode(every, 3.0), 3.0), every)


def test_log_probs_and_entropy_by_hand() -> None:
    """Logits ln 1, ln 3: at temperature 1 they are 1/4 and 3/4, at 1/2 squared, 1/10 and 9/10."""
    logits = torch.tensor([[0.0, math.log(3.0)]])
    for temperature, low, high in ((1.0, 0.25, 0.75), (0.5, 0.1, 0.9)):
        found = tokens.log_softmax(logits, temperature)
        torch.testing.assert_close(found.exp(), torch.tensor([[low, high]]))
        assert float(tokens.log_prob(found, torch.tensor([1]))) == pytest.approx(math.log(high), abs=1e-6)
        expected = -low * math.log(low) - high * math.log(high)
        assert float(tokens.entropy(found)) == pytest.approx(expected, abs=1e-6)


def test_log_probs_of_other_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="one dimension more"):
        tokens.log_prob(torch.zeros(2, 3, 4), torch.zeros(2, 4).long())


def test_choosing() -> None:
    log_probs = torch.tensor([[0.2, 0.5, 0.3]]).log()
    assert tokens.choose(log_probs, None).tolist() == [1]
    assert tokens.choose(log_probs, torch.tensor([[0.0, 0.0, 1.0]])).tolist() == [2]
    torch.manual_seed(0)
    gumbel = -torch.empty(20_000, 3).exponential_().log()
    share = torch.bincount(tokens.choose(log_probs, gumbel)) / 20_000
    torch.testing.assert_close(share, torch.tensor([0.2, 0.5, 0.3]), atol=0.015, rtol=0)
