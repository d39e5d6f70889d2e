"""How often drafted tokens are accepted, by the draft's own confidence: counts that forget, and what they predict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# Lower edges of classes of confidence. Models spread most of their tokens over the last few.
EDGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
# What is believed before anything is seen: a share of tokens in each class, accepted as often as the confidence says,
# and how many tokens that belief weighs. It is favourable, so that a draft gets its chance.
_PRIOR_SHARE = (0.01, 0.02, 0.03, 0.03, 0.04, 0.05, 0.05, 0.05, 0.06, 0.08, 0.08, 0.50)
_PRIOR_ACCEPTANCE = (0.1, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.95, 0.97)
_PRIOR_TOKENS = 16.0
_HONESTY_TOKENS = 4.0  # that the belief in confidences as such weighs
_MEMORY = 0.98  # of a count, a round: about 50 rounds are remembered
# Of an earlier text no more than so many tokens count for the next one.
_CARRIED_TOKENS = 24.0


def _zeros() -> list[float]:
    return [0.0] * len(EDGES)


@dataclass
class Classes:
    """Decayed counts of drafted and of accepted tokens, one a class of confidence, and what the prior still weighs."""

    drafted: list[float] = field(default_factory=_zeros)
    accepted: list[float] = field(default_factory=_zeros)
    prior: float = _PRIOR_TOKENS

    def scale(self, factor: float) -> None:
        """Make all that was seen weigh less."""
        self.drafted = [count * factor for count in self.drafted]
        self.accepted = [count * factor for count in self.accepted]

    @property
    def expected(self) -> float:
        """Tokens that would have been accepted if the confidences were right."""
        return sum(count * rate for count, rate in zip(self.drafted, _PRIOR_ACCEPTANCE, strict=True))

    def splits(self, honesty: float) -> Iterator[Split]:
        """One for each class's lower edge: how tokens at or above it fare, and those below."""
        weights = [self.prior * share for share in _PRIOR_SHARE]
        counts = [seen + weight for seen, weight in zip(self.drafted, weights, strict=True)]
        hits = [
            seen + weight * min(1.0, honesty * rate)
            for seen, weight, rate in zip(self.accepted, weights, _PRIOR_ACCEPTANCE, strict=True)
        ]
        drafted, accepted = sum(counts), sum(hits)
        below_drafted = below_accepted = 0.0
        for index, edge in enumerate(EDGES):
            above = drafted - below_drafted
            if above <= 1e-9 * drafted:
                return
            yield Split(
                edge,
                above / drafted,
                max(0.0, accepted - below_accepted) / above,
                below_accepted / below_drafted if below_drafted else 0.0,
            )
            below_drafted += counts[index]
            below_accepted += hits[index]


@dataclass(frozen=True)
class Split:
    """Tokens by a confidence `least`: the share at or above it, and the acceptance rates above and below."""

    least: float
    share: float
    above: float
    below: float


class Acceptance:
    """What is known of one draft source. A draft's first token and its later ones are counted apart.

    Later tokens are reached behind accepted ones only, which are where the text is easy.
    """

    def __init__(self) -> None:
        self.first, self.later = Classes(), Classes()

    @property
    def seen(self) -> float:
        """Tokens behind these counts, decayed like them: how far they can be trusted."""
        return sum(self.first.drafted) + sum(self.later.drafted)

    @property
    def first_rate(self) -> float:
        """Of a draft's first tokens the share that was right, by what was seen alone; 0 where nothing was."""
        drafted = sum(self.first.drafted)
        return sum(self.first.accepted) / drafted if drafted else 0.0

    def observe(self, confidence: Sequence[float], drafted: int, accepted: int) -> None:
        """Take in one round: `accepted` of `drafted` tokens were right; what follows the first wrong one says nothing.

        confidence: of each token; a source that has none to give is taken to be certain.
        """
        for classes in (self.first, self.later):
            classes.scale(_MEMORY)
            classes.prior *= _MEMORY
        for i in range(min(accepted + 1, drafted)):
            classes = self.first if i == 0 else self.later
            index = class_of(confidence[i]) if i < len(confidence) else len(EDGES) - 1
            classes.drafted[index] += 1
            classes.accepted[index] += i < accepted

    def next_text(self) -> None:
        """Another text begins: what was learnt still counts, but little, and the draft gets its chance again."""
        seen = self.seen
        for classes in (self.first, self.later):
            classes.scale(min(1.0, _CARRIED_TOKENS / seen) if seen else 1.0)
            classes.prior = max(classes.prior, _PRIOR_TOKENS / 2)

    def splits(self) -> list[tuple[Split, Split]]:
        """For each threshold the split of first tokens and the one of later tokens.

        Classes of which little was seen are believed to be as honest about themselves as all are taken together.
        """
        accepted = sum(self.first.accepted) + sum(self.later.accepted)
        expected = self.first.expected + self.later.expected
        honesty = (accepted + _HONESTY_TOKENS) / (expected + _HONESTY_TOKENS)
        return list(zip(self.first.splits(honesty), self.later.splits(honesty), strict=False))


def class_of(confidence: float) -> int:
    """The class of a confidence, 0 ≤ it ≤ 1."""
    index = len(EDGES) - 1
    while index and confidence < EDGES[index]:
        index -= 1
    return index
