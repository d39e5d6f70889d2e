"""Draft lengths for several requests that share passes: pure functions of costs and probabilities. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ipex_assist.speculative.costs.acceptance import EDGES, Array
from ipex_assist.speculative.costs.pair_costs import Costs


class ExpectedTokens(Protocol):
    """Acceptance rates of a request's drafts, or the mean of several requests' (adapter_acceptance.py)."""

    def expected_tokens(self, longest: int) -> tuple[Array, Array]:
        """See Acceptance."""
        ...


@dataclass(frozen=True)
class JointDraftChoice:
    """At most `k` tokens a request, ending after one with less confidence than `min_confidence`.

    rate: expected tokens per second of all requests. gain: rate ÷ that of plain decoding.
    """

    k: int
    min_confidence: float
    rate: float
    gain: float


class BatchCosts:
    """Current costs of a pass in which `requests` requests decode beside `prefill_rows` prompt rows."""

    def __init__(self, costs: Costs, requests: int, prefill_rows: int = 0) -> None:
        self.requests, self.base = requests, requests + prefill_rows
        self._costs, self._verify = costs, np.array(costs.verify)
        self._draft = np.array([0.0, *(_draft_pass(costs, count) for count in range(1, requests + 1))])
        self._rows = np.arange(1, len(self._verify) + 1, dtype=np.float64)
        self.plain_s = float(self.pass_s(requests))  # seconds of a pass without drafts and prompts
        self.base_s = float(self.pass_s(self.base))  # seconds of a pass without drafts, with the prompt rows

    @property
    def token_s(self) -> float:
        """Seconds of plain decoding per token, over all requests."""
        return self.plain_s / self.requests

    def pass_s(self, rows: float | Array) -> Array:
        """Return the target's seconds; extrapolated in proportion to the rows, which is an upper bound."""
        known = len(self._verify)
        if isinstance(rows, int) and 1 <= rows <= known:  # what is interpolated below, in a fraction of the time
            one: Array = self._verify[rows - 1]
            return one
        seconds: Array = np.interp(rows, self._rows, self._verify) * np.maximum(1.0, np.asarray(rows) / known)
        return seconds

    def more_s(self, rows: float | Array) -> Array:
        """Return the seconds that `rows` drafted rows add to the pass."""
        return self.pass_s(self.base + rows) - self.base_s

    def block_s(self, requests: float) -> float:
        """Return the seconds of a pass that drafts a block for each of `requests`; 0 where drafts are made by steps."""
        return self._costs.blocks(requests)

    def draft_s(self, requests: float | Array) -> Array:
        """Return the seconds of a draft pass with a row for each of `requests`; below one, that share of it."""
        if isinstance(requests, int) and 0 <= requests < len(self._draft):
            one: Array = self._draft[requests]
            return one
        seconds: Array = np.interp(requests, np.arange(len(self._draft)), self._draft)
        return seconds

    def loss(self, drafters: int, k: int, *, free: bool = False) -> float:
        """Return the seconds that `k` tokens of each of `drafters` take; free: their source costs nothing."""
        drafting = 0.0 if free or not k else k * float(self.draft_s(drafters)) + self.block_s(drafters)
        return drafting + float(self.more_s(drafters * k))

    def could_gain(self, factor: float, drafters: int, longest: int) -> bool:
        """Whether drafts of `drafters` would gain this factor over plain decoding if every token were accepted."""
        return any(
            self.requests + drafters * k
            > factor * (self.plain_s + self.loss(drafters, k)) * self.requests / self.plain_s
            for k in range(1, longest + 1)
        )


def _draft_pass(costs: Costs, requests: int) -> float:
    if not costs.rows:
        return costs.draft
    known = len(costs.rows)
    grown = costs.rows[min(requests, known) - 1] / costs.rows[0]
    if requests > known:
        grown += (requests - known) * max(0.0, costs.rows[-1] / costs.rows[0] - 1) / max(1, known - 1)
    return costs.draft * grown


def best_joint_draft(
    acceptance: ExpectedTokens, batch_costs: BatchCosts, drafters: int, longest: int, *, free: bool = False
) -> JointDraftChoice:
    """Return the draft length of each of `drafters` requests that maximises the tokens per second of all together.

    free: the source costs nothing. k = 0 if plain decoding is fastest.
    """
    drafted, tokens = acceptance.expected_tokens(longest)
    many = drafters * drafted  # (edges, longest): requests that draft a token 1, 2, …
    seconds = batch_costs.plain_s + batch_costs.more_s(np.cumsum(many, axis=1))
    if not free:
        seconds = seconds + np.cumsum(batch_costs.draft_s(many), axis=1) + batch_costs.block_s(drafters)
    rates = (batch_costs.requests + drafters * tokens) / seconds
    plain = batch_costs.requests / batch_costs.plain_s
    edge, number = divmod(int(rates.argmax()), longest)
    rate = float(rates[edge, number])
    return (
        JointDraftChoice(number + 1, EDGES[edge], rate, rate / plain)
        if rate > plain
        else JointDraftChoice(0, 0.0, plain, 1.0)
    )


def worth_verifying(chances: Sequence[Sequence[float]], batch_costs: BatchCosts, rate: float) -> list[int]:
    """Return how many tokens of each draft to verify: the likeliest of all, as long as their rows are worthwhile.

    chances: the probability that a drafted token and all before it are accepted, non-increasing within a draft.
    rate: tokens per second that a row must match. A pass's cost may have steps, after which many rows are free, so the
    best number of rows is searched globally.
    """
    places = [(-chance, i, text) for text, draft in enumerate(chances) for i, chance in enumerate(draft)]
    places.sort()
    won = np.cumsum([-chance for chance, _, _ in places])
    gain = won - rate * batch_costs.more_s(np.arange(1, len(places) + 1, dtype=np.float64))
    best = int(gain.argmax()) + 1 if len(places) and gain.max() > 0 else 0
    kept = [0] * len(chances)
    for _, _, text in places[:best]:
        kept[text] += 1
    return kept
