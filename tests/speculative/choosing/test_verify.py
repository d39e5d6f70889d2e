"""Verification as mathematics: the longest prefix that is the target's own choice, greedy and sampled alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from distributions import assert_follows, probabilities

from ipex_assist.executors.interface import LogitsError
from ipex_assist.speculative.choosing.sampling import Sampling, choose
from ipex_assist.speculative.choosing.verify import choices, verify

pytestmark = pytest.mark.one_stack

VOCAB, DRAWS = 8, 3000
GREEDY = Sampling()


def rows(*best: int) -> torch.Tensor:
    """Logits whose arg-max is `best`."""
    return torch.nn.functional.one_hot(torch.tensor(best), VOCAB).float()


@pytest.mark.parametrize(
    ("drafted", "tokens", "accepted"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 0], [1, 2, 3], 2),
        ([0, 2, 3], [1], 0),
        ([0, 0, 0], [1], 0),
        ([0, 1, 2], [1], 0),
    ],
)
def test_the_matching_prefix_is_kept(drafted: list[int], tokens: list[int], accepted: int) -> None:
    """A later match after a miss must not count."""
    assert verify([1, 2, 3, 4], drafted) == (tokens, accepted)
    assert verify(choices(rows(1, 2, 3, 4), GREEDY, [], drafted), drafted) == (tokens, accepted)


def test_without_a_draft_it_is_plain() -> None:
    """Plain decoding is a round with nothing drafted."""
    assert verify(choices(rows(5), GREEDY, []), []) == ([5], 0)


def test_no_choice_behind_a_miss_is_asked_for() -> None:
    """Choosing among 152,000 tokens takes a while, and most rows of a wrong draft need none."""
    asked = []

    def counted() -> Iterator[int]:
        for token in (1, 2, 3, 4):
            asked.append(token)
            yield token

    assert verify(counted(), [1, 0, 3]) == ([1, 2], 1)
    assert asked == [1, 2]


FILTERS = {
    "plain": Sampling(do_sample=True, top_k=0),
    "temperature": Sampling(do_sample=True, top_k=0, temperature=0.6),
    "top-k": Sampling(do_sample=True, top_k=3),
    "top-p": Sampling(do_sample=True, top_k=0, top_p=0.8),
    "min-p": Sampling(do_sample=True, top_k=0, min_p=0.2),
    "all": Sampling(do_sample=True, top_k=5, top_p=0.9, min_p=0.05, temperature=1.3),
}


def logits(seed: int, count: int) -> torch.Tensor:
    """`count` random rows."""
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("certain", [False, True], ids=["same noise", "certain draft"])
def test_sampled_tokens_follow_the_target(name: str, certain: bool) -> None:
    """First token, and second given the first, over thousands of seeds; the tokens are those without a draft."""
    target, draft = logits(1, 3), logits(2, 2)
    expected = probabilities(target, FILTERS[name])
    first, second = torch.zeros(VOCAB), torch.zeros(VOCAB)
    both, accepted_any = torch.zeros(VOCAB, VOCAB), 0
    for seed in range(DRAWS):
        sampling = replace(FILTERS[name], seed=seed, prompt_length=10)
        drafted = [2, 5] if certain else [choose(row.numpy(), sampling, i) for i, row in enumerate(draft)]
        tokens, accepted = verify(choices(target, sampling, [0] * 10, drafted), drafted)
        assert len(tokens) == accepted + 1
        assert tokens[:accepted] == drafted[:accepted]
        alone = [choose(row.numpy(), sampling, i) for i, row in enumerate(target)]
        assert tokens == alone[: len(tokens)]
        first[alone[0]] += 1
        second[alone[1]] += 1
        both[alone[0], alone[1]] += 1
        accepted_any += accepted > 0
    assert_follows(first, expected[0])
    assert_follows(second, expected[1])
    # Noise of one position says nothing about that of the next.
    assert_follows(both.flatten(), torch.outer(expected[0], expected[1]).flatten())
    assert accepted_any > 0 or (certain and expected[0, 2] == 0)


@pytest.mark.parametrize("name", FILTERS)
def test_acceptance_is_what_the_paper_promises(name: str) -> None:
    """Both choose x with the probability 1 / Σ_y max(p_y / p_x, q_y / q_x); other noise would give Σ p q."""
    target, draft = logits(1, 1)[0], logits(2, 1)[0]
    p, q = (probabilities(row[None], FILTERS[name])[0] for row in (target, draft))
    both = (p > 0) & (q > 0)
    ratios = torch.maximum(p[None, :] / p[both][:, None], q[None, :] / q[both][:, None])
    promised = float((1 / ratios.sum(-1)).sum())
    hits = 0
    for seed in range(4000):
        sampling = replace(FILTERS[name], seed=seed)
        hits += choose(target.numpy(), sampling, 3) == choose(draft.numpy(), sampling, 3)
    assert hits / 4000 == pytest.approx(promised, abs=0.03)
    assert promised > float(p @ q) + 0.06, "nothing is tested here"


def test_equal_rows_accept_everything() -> None:
    """The same bits are the same choice."""
    target = logits(4, 4)
    for seed in range(200):
        sampling = replace(FILTERS["all"], seed=seed)
        drafted = [choose(row.numpy(), sampling, 5 + i) for i, row in enumerate(target[:3])]
        assert verify(choices(target, sampling, [0] * 5, drafted), drafted)[1] == 3


# ---- NaN and infinity

NAN, INFINITY = float("nan"), float("inf")
SAMPLED = Sampling(do_sample=True, top_k=3, top_p=0.9, temperature=0.01, seed=0)
PENALTY = Sampling(do_sample=True, top_k=0, repetition_penalty=1.1, temperature=0.01, seed=0)
EITHER = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALTY], ids=["greedy", "filters", "penalty"])


def round_of(rows: torch.Tensor, drafted: list[int], sampling: Sampling) -> tuple[list[int], int]:
    """One round behind a text of 10 tokens."""
    return verify(choices(rows, sampling, [0] * 10, drafted), drafted, 10)


@EITHER
@pytest.mark.parametrize("value", [NAN, INFINITY])
@pytest.mark.parametrize("everywhere", [False, True])
def test_rows_that_are_no_numbers(sampling: Sampling, value: float, everywhere: bool) -> None:
    """All-NaN logits gave token 0. The first row that decides is named; rows behind a rejected token decide nothing."""
    for bad in range(4):
        logits = rows(1, 2, 3, 4)
        logits[bad, slice(None) if everywhere else 5] = value
        with pytest.raises(LogitsError, match=f"the target .* after {10 + bad} tokens"):
            round_of(logits, [1, 2, 3], sampling)
        assert round_of(logits, [0, 2, 3], sampling) == ([1], 0) if bad else True
        assert round_of(logits, [1, 2, 0], sampling) == ([1, 2, 3], 2) if bad == 3 else True


@EITHER
def test_tokens_that_are_forbidden_are_fine(sampling: Sampling) -> None:
    """A grammar, or another model's filters, write -inf; only where it is everywhere, nothing is left to choose."""
    logits = rows(1, 2)
    logits[:, 5:] = -INFINITY
    assert round_of(logits, [1], sampling) == ([1, 2], 1)
    logits[1] = -INFINITY
    with pytest.raises(LogitsError):
        round_of(logits, [1], sampling)


@pytest.mark.parametrize("top_k", [0, 4])
def test_a_forbidden_token_is_never_chosen(top_k: int) -> None:
    """Not even where top-k would have room for it."""
    row = torch.full((VOCAB,), -INFINITY)
    row[3], row[6] = 0.0, -1.0
    chosen = {choose(row.numpy(), Sampling(do_sample=True, top_k=top_k, seed=seed), 0) for seed in range(100)}
    assert chosen == {3, 6}
