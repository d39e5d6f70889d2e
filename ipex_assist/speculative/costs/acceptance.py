"""Acceptance rates of drafted tokens by the draft's own confidence: decayed counts, and predictions from them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ipex_assist.speculative.costs.position_ratios import CLASSES, Array, PositionRatios

# Lower edges of the confidence bins. Models put most of their tokens into the last few.
EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
assert len(EDGES) == CLASSES
# The prior: the share of tokens in each bin, acceptance rates close to the confidence, and the prior's weight in
# tokens. It is optimistic, so that a new draft is tried.
_FIRST_SHARE = np.array((0.02, 0.04, 0.05, 0.05, 0.05, 0.06, 0.06, 0.06, 0.07, 0.08, 0.07, 0.39))
_LATER_SHARE = np.array((0.01, 0.02, 0.03, 0.03, 0.04, 0.05, 0.05, 0.05, 0.06, 0.08, 0.08, 0.50))
_PRIOR_ACCEPTANCE = np.array((0.1, 0.2, 0.3, 0.35, 0.45, 0.55, 0.65, 0.72, 0.82, 0.93, 0.96, 0.98))
_PRIOR_TOKENS = 16.0
_SCALE_TOKENS = 8.0  # weight of the prior that confidences are calibrated …
_CLASS_TOKENS = 8.0  # … and, in each bin, of the rate that all bins together predict
MEMORY = 0.98  # decay of a count per round: about 50 rounds are remembered
_SLOWER = 0.25  # exponent of the decay of counts by position, which hang on the source more than on the text
# Counts of an earlier request weigh at most this many tokens in the next one.
_CARRIED_TOKENS = 24.0


@dataclass(frozen=True)
class ThresholdRates:
    """For each bin edge as a threshold: the share of tokens at or above it, and acceptance rates above and below."""

    share: Array
    above: Array
    below: Array


def _zeros() -> Array:
    return np.zeros(len(EDGES))


@dataclass
class ConfidenceBins:
    """Decayed counts of drafted tokens by confidence bin, each (edges,), and the prior's remaining weight.

    drafted, accepted: of verified tokens. proposed: of all, verified or not.
    """

    share: Array  # of the prior
    proposed: Array = field(default_factory=_zeros)
    drafted: Array = field(default_factory=_zeros)
    accepted: Array = field(default_factory=_zeros)
    prior: float = _PRIOR_TOKENS

    def scale(self, factor: float) -> None:
        """Scale the weight of all observations."""
        self.proposed *= factor
        self.drafted *= factor
        self.accepted *= factor

    @property
    def seen(self) -> float:
        """Number of verified tokens, decayed."""
        return float(self.drafted.sum())

    @property
    def expected(self) -> float:
        """How many tokens would have been accepted at the prior's rates."""
        return float(self.drafted @ _PRIOR_ACCEPTANCE)

    def rates(self, confidence_scale: float) -> Array:
        """Return the acceptance rate of each bin, (edges,)."""
        believed = np.minimum(1.0, confidence_scale * _PRIOR_ACCEPTANCE)
        rates: Array = (self.accepted + _CLASS_TOKENS * believed) / (self.drafted + _CLASS_TOKENS)
        return rates

    def splits(self, confidence_scale: float) -> ThresholdRates:
        """Return shares and acceptance rates above and below each edge as a threshold, (edges,) each."""
        rates = self.rates(confidence_scale)
        tokens = self.proposed + self.prior * self.share
        drafted, accepted = np.cumsum(tokens), np.cumsum(tokens * rates)
        below_drafted, below_accepted = drafted - drafted[0], accepted - accepted[0]
        below_drafted[1:], below_accepted[1:] = drafted[:-1], accepted[:-1]
        above_drafted, above_accepted = drafted[-1] - below_drafted, accepted[-1] - below_accepted
        return ThresholdRates(
            above_drafted / drafted[-1],
            above_accepted / np.maximum(above_drafted, 1e-9),
            below_accepted / np.maximum(below_drafted, 1e-9),
        )


class ExpectedTokens(Protocol):
    """Acceptance rates of a request's drafts, or the mean of several requests' (adapter_acceptance.py)."""

    def expected_tokens(self, longest: int) -> tuple[Array, Array]:
        """See Acceptance."""
        ...


class Acceptance:
    """Acceptance statistics of one draft source, kept separately for a draft's first token and its later ones.

    Later tokens are verified only after accepted ones, that is where the text is easy to predict. By confidence they
    share one statistic, which `positions` corrects for each position.
    """

    def __init__(self, memory: float = MEMORY, *, by_position: bool = False) -> None:
        """memory: the factor by which counts decay with each observation.

        by_position: later tokens differ by position, as those of a draft head do. A small model's, which read the
        drafted tokens as it reads any text, are taken to be alike: what their positions differ by is chance.
        """
        self.first, self.later, self.memory = ConfidenceBins(_FIRST_SHARE), ConfidenceBins(_LATER_SHARE), memory
        self.positions, self.by_position = PositionRatios(), by_position
        self._expected: dict[int, tuple[Array, Array]] = {}  # by the longest draft, since the last observation

    @classmethod
    def from_counts(cls, counts: dict[str, dict[str, Any]]) -> Acceptance:
        """Restore from the result of `as_counts`. Raises KeyError, TypeError or ValueError for anything else."""
        known = cls()
        for classes, stored in ((known.first, counts["first"]), (known.later, counts["later"])):
            drafted, accepted = (np.array([float(count) for count in stored[key]]) for key in ("drafted", "accepted"))
            if not len(drafted) == len(accepted) == len(EDGES):
                raise ValueError(f"{len(drafted)} and {len(accepted)} classes instead of {len(EDGES)}")
            if not ((drafted < 1e12).all() and (accepted >= 0).all() and (accepted <= drafted).all()):
                raise ValueError("counts that cannot be")
            classes.proposed, classes.drafted, classes.accepted = drafted.copy(), drafted, accepted
        known.positions = PositionRatios.from_counts(counts.get("positions"))
        return known

    def as_counts(self) -> dict[str, dict[str, Any]]:
        """Return drafted and accepted tokens by confidence bin, and by position, decayed, for JSON."""
        bins = {
            name: {"drafted": classes.drafted.tolist(), "accepted": classes.accepted.tolist()}
            for name, classes in (("first", self.first), ("later", self.later))
        }
        return {**bins, "positions": self.positions.as_counts()}

    @property
    def seen(self) -> float:
        """Number of verified tokens, decayed: how far the counts can be trusted."""
        return self.first.seen + self.later.seen

    @property
    def first_rate(self) -> float:
        """Acceptance rate of first tokens, without the prior; 0 before any observation."""
        drafted = self.first.seen
        return float(self.first.accepted.sum()) / drafted if drafted else 0.0

    def observe(self, confidence: Sequence[float], drafted: int, accepted: int) -> None:
        """Record one round: `accepted` of `drafted` tokens were right; those after the first wrong one do not count.

        confidence: of each drafted token, and of tokens after them that were trimmed before verification. Missing
        confidences count as 1.
        """
        self._expected.clear()
        for classes in (self.first, self.later):
            classes.scale(self.memory)
            classes.prior *= self.memory
        self.positions.scale(self.memory**_SLOWER)
        for i in range(min(accepted + 1, max(drafted, len(confidence)))):
            classes = self.later if i else self.first
            index = bin_of(confidence[i]) if i < len(confidence) else len(EDGES) - 1
            classes.proposed[index] += 1
            classes.drafted[index] += i < drafted
            classes.accepted[index] += i < accepted
            if self.by_position and 0 < i < drafted:
                self.positions.observe(i, index, i < accepted)

    def take(self, other: Acceptance) -> None:
        """Replace these counts by a copy of another's."""
        self._expected.clear()
        for mine, theirs in ((self.first, other.first), (self.later, other.later)):
            mine.proposed, mine.drafted = theirs.proposed.copy(), theirs.drafted.copy()
            mine.accepted, mine.prior = theirs.accepted.copy(), theirs.prior
        self.positions, self.by_position = other.positions.copy(), other.by_position

    def for_next_text(self, memory: float = MEMORY, carried: float = _CARRIED_TOKENS) -> Acceptance:
        """Return a copy for another request, in which the counts weigh little, so that drafts are tried again.

        carried: tokens that they weigh at most.
        """
        known, seen = Acceptance(memory, by_position=self.by_position), self.seen
        for mine, theirs in ((self.first, known.first), (self.later, known.later)):
            factor = min(1.0, carried / seen) if seen else 1.0
            theirs.proposed, theirs.drafted = mine.proposed * factor, mine.drafted * factor
            theirs.accepted = mine.accepted * factor
            theirs.prior = max(mine.prior, _PRIOR_TOKENS / 2)
        known.positions = self.positions.copy(min(1.0, carried / seen) if seen else 1.0)
        return known

    def expected_tokens(self, longest: int) -> tuple[Array, Array]:
        """Return (edges, longest) twice: the chance that token j is drafted, and accepted tokens expected up to j.

        Row e is for drafts that stop after the first token whose confidence is below edge e. With a share g of tokens
        at or above the edge, accepted with probability h, and l below it, token j is drafted with probability g^(j-1)
        and accepted with (gh)^(j-1) (gh + (1-g)l), where h and l of a position are times its ratio. Both are read-only.
        """
        if longest not in self._expected:
            self._expected[longest] = self._expected_tokens(longest)
        return self._expected[longest]

    def _expected_tokens(self, longest: int) -> tuple[Array, Array]:
        first, later = self.splits()
        ratios = np.array(self._ratios(self.later.rates(self._confidence_scale)))
        ratios = ratios[np.minimum(np.arange(longest), len(ratios) - 1)]
        above = np.minimum(1.0, later.above[:, None] * ratios)
        below = np.minimum(1.0, later.below[:, None] * ratios)
        above[:, 0], below[:, 0] = first.above, first.below
        share = np.repeat(later.share[:, None], longest, axis=1)
        share[:, 0] = first.share
        drafted, reached = _before(share), _before(share * above)
        right = share * above + (1 - share) * below
        tokens = np.cumsum(reached * right, axis=1)
        for table in (drafted, tokens):
            table.flags.writeable = False
        return drafted, tokens

    def chances(self, confidences: Sequence[Sequence[float]], drafted: Sequence[int]) -> list[list[float]]:
        """Return, for each token of several drafts, the probability that it and all tokens before it are accepted."""
        confidence_scale = self._confidence_scale
        later = self.later.rates(confidence_scale)
        rates, ratios = (self.first.rates(confidence_scale).tolist(), later.tolist()), self._ratios(later)
        drafts = []
        for confidence, count in zip(confidences, drafted, strict=True):
            reached, chances = 1.0, []
            for i in range(count):
                index = bin_of(confidence[i]) if i < len(confidence) else len(EDGES) - 1
                reached *= min(1.0, rates[i > 0][index] * ratios[min(i, len(ratios) - 1)])
                chances.append(reached)
            drafts.append(chances)
        return drafts

    def _ratios(self, rates: Array) -> list[float]:
        """Of each position; rates: of each bin of later tokens."""
        return self.positions.ratios(rates) if self.by_position else [1.0]

    @property
    def _confidence_scale(self) -> float:
        accepted = float(self.first.accepted.sum() + self.later.accepted.sum())
        expected = self.first.expected + self.later.expected
        return (accepted + _SCALE_TOKENS) / (expected + _SCALE_TOKENS)

    def splits(self) -> tuple[ThresholdRates, ThresholdRates]:
        """Return the threshold rates of first tokens and of later ones.

        Bins with few observations are assumed to be as well calibrated as all bins together.
        """
        confidence_scale = self._confidence_scale
        return self.first.splits(confidence_scale), self.later.splits(confidence_scale)


def _before(goes_on: Array) -> Array:
    """Return (edges, longest): the probability that token 1, 2, … is drafted, or reached: the product of those before.

    goes_on: (edges, longest), the probability that it is not the last.
    """
    table: Array = np.ones_like(goes_on)
    np.cumprod(goes_on[:, :-1], axis=1, out=table[:, 1:])
    return table


def bin_of(confidence: float) -> int:
    """Return the index of the bin of a confidence between 0 and 1."""
    return max(0, bisect_right(EDGES, confidence) - 1)
