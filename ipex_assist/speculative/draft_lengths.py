"""The draft length that brings the most tokens a second, and the drafted tokens worth verifying. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ipex_assist.speculative.costs.acceptance import EDGES, Acceptance, ExpectedTokens
from ipex_assist.speculative.costs.adapter_acceptance import mean_of
from ipex_assist.speculative.costs.batch_costs import BatchCosts

MOST_TRIES = 6  # cuts of the adapters, the likeliest first, that are compared

T = TypeVar("T")


@dataclass(frozen=True)
class DraftLength:
    """At most `k` tokens a request, ending after one with less confidence than `min_confidence`; 0: plain decoding.

    tokens: expected from a pass. rate: expected tokens per second of all requests. gain: rate ÷ that of plain decoding.
    """

    k: int
    min_confidence: float
    tokens: float
    rate: float
    gain: float


def best_length(
    acceptance: ExpectedTokens,
    batch_costs: BatchCosts,
    drafters: int,
    longest: int,
    *,
    free: bool = False,
    overhead_s: float = 0.0,
) -> DraftLength:
    """Return the draft length of each of `drafters` requests that maximises the tokens per second of all together.

    free: the source costs nothing. overhead_s: of a pass with drafts, beside the models' passes.

    Without a threshold, with one request, and each token accepted with probability h, this maximises
    (1 - h^(k+1)) / (1 - h) tokens in k·draft + verify(k+1) seconds: Leviathan et al. 2023, section 3.5, with a measured
    verification cost for each number of rows.
    """
    drafted, tokens = acceptance.expected_tokens(longest)
    many = drafters * drafted  # (edges, longest): requests that draft a token 1, 2, …
    if (
        drafters == 1
    ):  # the expectation of the costs, which may have steps; of many requests, the costs of the expected rows
        more = np.cumsum(drafted * np.diff(batch_costs.more_s(np.arange(longest + 1, dtype=np.float64))), axis=1)
    else:
        more = batch_costs.more_s(np.cumsum(many, axis=1))
    seconds = batch_costs.plain_s + overhead_s + more
    if not free:
        seconds = seconds + np.cumsum(batch_costs.draft_s(many), axis=1) + batch_costs.block_s(drafters)
    brought = batch_costs.requests + drafters * tokens
    rates = brought / seconds
    plain = batch_costs.requests / batch_costs.plain_s
    edge, number = divmod(int(rates.argmax()), longest)
    rate = float(rates[edge, number])
    if rate <= plain:
        return DraftLength(0, 0.0, batch_costs.requests, plain, 1.0)
    return DraftLength(number + 1, EDGES[edge], float(brought[edge, number]), rate, rate / plain)


def best_group(
    drafts: Sequence[T],
    known: Sequence[Acceptance],
    costs: BatchCosts,
    longest: int,
    *,
    free: bool = False,
    overhead_s: float = 0.0,
) -> tuple[list[T], DraftLength]:
    """Return those of `drafts`, at least one, that maximise the tokens per second if they draft and the others do not.

    known: the rates of each; requests with the same rates draft together or not at all. They are taken in the order in
    which their first tokens are likely to be right.
    """
    groups: dict[int, list[int]] = {}
    for place, each in enumerate(known):
        groups.setdefault(id(each), []).append(place)
    likeliest = sorted(groups.values(), key=lambda places: -first_token(known[places[0]]))
    step = -(-len(likeliest) // MOST_TRIES)
    found: tuple[list[int], DraftLength] | None = None
    for end in sorted({*range(step, len(likeliest), step), len(likeliest)}):
        places = [place for group in likeliest[:end] for place in group]
        rates = mean_of([known[place] for place in places])
        length = best_length(rates, costs, len(places), longest, free=free, overhead_s=overhead_s)
        if found is None or length.rate > found[1].rate:
            found = places, length
    assert found is not None, "best_group needs a draft"
    return [drafts[place] for place in sorted(found[0])], found[1]


def worth_verifying(
    chances: Sequence[Sequence[float]], batch_costs: BatchCosts, rate: float, most_s: float = math.inf
) -> list[int]:
    """Return how many tokens of each draft to verify: the likeliest of all, as long as their rows are worthwhile.

    chances: the probability that a drafted token and all before it are accepted, non-increasing within a draft.
    rate: tokens per second that a row must match. most_s: seconds that all rows may take. A pass's cost may have steps,
    after which many rows are free, so the best number of rows is searched globally.
    """
    places = [(-chance, i, text) for text, draft in enumerate(chances) for i, chance in enumerate(draft)]
    places.sort()
    won = np.cumsum([-chance for chance, _, _ in places])
    seconds = batch_costs.more_s(np.arange(1, len(places) + 1, dtype=np.float64))
    gain = np.where(seconds <= most_s, won - rate * seconds, 0.0)
    best = int(gain.argmax()) + 1 if len(places) and gain.max() > 0 else 0
    kept = [0] * len(chances)
    for _, _, text in places[:best]:
        kept[text] += 1
    return kept


def first_token(acceptance: Acceptance) -> float:
    """Return the chance that a draft's first token is right, whatever its confidence."""
    return float(acceptance.expected_tokens(1)[1][0, 0])
