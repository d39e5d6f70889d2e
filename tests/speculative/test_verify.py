"""Verification as mathematics: longest matching prefix, and rejection sampling that keeps the target's distribution."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare

from ipex_assist.executors.interface import LogitsError
from ipex_assist.speculative.sampling import Sampling, draw
from ipex_assist.speculative.verify import verify_greedy, verify_sampled

VOCAB, DRAWS = 8, 20000
# A correct sampler fails a test at this level once in ten thousand seeds; the seeds are fixed.
SIGNIFICANCE = 1e-4


def rows(*choices: int) -> torch.Tensor:
    """Logits whose arg-max is `choices`."""
    return torch.nn.functional.one_hot(torch.tensor(choices), VOCAB).float()


@pytest.mark.parametrize(
    ("drafted", "tokens", "accepted"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 0], [1, 2, 3], 2),
        ([0, 2, 3], [1], 0),
        ([0, 0, 0], [1], 0),
    ],
)
def test_greedy_keeps_the_matching_prefix(drafted: list[int], tokens: list[int], accepted: int) -> None:
    """A later match after a miss must not count."""
    assert verify_greedy(rows(1, 2, 3, 4), drafted) == (tokens, accepted)


def test_greedy_without_a_draft_is_plain() -> None:
    """Plain decoding is a round with nothing drafted."""
    assert verify_greedy(rows(5), []) == ([5], 0)


def distributions(seed: int, count: int, sampling: Sampling) -> torch.Tensor:
    """`count` random distributions, filtered as `sampling` says."""
    generator = torch.Generator().manual_seed(seed)
    return sampling.probabilities(torch.randn(count, VOCAB, generator=generator) * 2)


FILTERS = {
    "plain": Sampling(do_sample=True, top_k=0),
    "temperature": Sampling(do_sample=True, top_k=0, temperature=0.6),
    "top-k": Sampling(do_sample=True, top_k=3),
    "top-p": Sampling(do_sample=True, top_k=0, top_p=0.8),
    "all": Sampling(do_sample=True, top_k=5, top_p=0.9, temperature=1.3),
}


def assert_follows(counts: torch.Tensor, expected: torch.Tensor) -> None:
    """Chi-square of token counts against probabilities; a token of probability 0 must never come."""
    possible = expected > 0
    assert int(counts[~possible].sum()) == 0
    expected = expected[possible].double() / expected[possible].double().sum()
    observed = counts[possible].double()
    assert chisquare(observed, expected * observed.sum()).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("certain", [False, True], ids=["drawn draft", "certain draft"])
def test_sampled_tokens_follow_the_target(name: str, certain: bool) -> None:
    """First token, and second given the first, over thousands of rounds: a wrong residual or ratio shows in either."""
    sampling = FILTERS[name]
    target, draft = distributions(1, 3, sampling), distributions(2, 2, sampling)
    generator = torch.Generator().manual_seed(3)
    first, second = torch.zeros(VOCAB), torch.zeros(VOCAB)
    accepted_any = 0
    for _ in range(DRAWS):
        drafted = [2, 5] if certain else [draw(row, generator) for row in draft]
        tokens, accepted = verify_sampled(target, None if certain else draft, drafted, generator)
        assert len(tokens) == accepted + 1
        assert tokens[:accepted] == drafted[:accepted]
        first[tokens[0]] += 1
        if len(tokens) > 1:
            second[tokens[1]] += 1
        accepted_any += accepted > 0
    assert_follows(first, target[0])
    if not certain or target[0, 2] > 0:
        assert accepted_any > 0
        # Given that the first drafted token stayed, the second token follows row 1, whichever token that was.
        assert_follows(second, target[1])


def test_equal_distributions_accept_everything() -> None:
    """p = q: no token may be lost to rounding."""
    p = distributions(4, 4, FILTERS["plain"])
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        drafted = [draw(row, generator) for row in p[:3]]
        assert verify_sampled(p, p[:3], drafted, generator)[1] == 3


# ---- NaN and infinity

NAN, INFINITY = float("nan"), float("inf")


def verify(logits: torch.Tensor, drafted: list[int], sampled: bool) -> tuple[list[int], int]:
    """One round behind a text of 10 tokens, by either rule."""
    if not sampled:
        return verify_greedy(logits, drafted, 10)
    generator = torch.Generator().manual_seed(0)
    probabilities = Sampling(do_sample=True, top_k=3, top_p=0.9).probabilities(logits * 100)
    return verify_sampled(probabilities, None, drafted, generator, 10)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("value", [NAN, INFINITY])
@pytest.mark.parametrize("everywhere", [False, True])
def test_rows_that_are_no_numbers(sampled: bool, value: float, everywhere: bool) -> None:
    """All-NaN logits gave token 0. The first row that decides is named; rows behind a rejected token decide nothing."""
    for bad in range(4):
        logits = rows(1, 2, 3, 4)
        logits[bad, slice(None) if everywhere else 5] = value
        with pytest.raises(LogitsError, match=f"the target .* behind the {10 + bad} tokens"):
            verify(logits, [1, 2, 3], sampled)
        assert verify(logits, [0, 2, 3], sampled) == ([1], 0) if bad else True
        assert verify(logits, [1, 2, 0], sampled) == ([1, 2, 3], 2) if bad == 3 else True


@pytest.mark.parametrize("sampled", [False, True])
def test_tokens_that_are_forbidden_are_fine(sampled: bool) -> None:
    """Sampling's own filters write -inf; only where it is everywhere, nothing is left to choose."""
    logits = rows(1, 2)
    logits[:, 5:] = -INFINITY
    assert verify(logits, [1], sampled) == ([1, 2], 1)
    logits[1] = -INFINITY
    with pytest.raises(LogitsError):
        verify(logits, [1], sampled)
