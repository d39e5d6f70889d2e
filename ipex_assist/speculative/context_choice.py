"""How much of the context a draft reads: all of it, or its last tokens, by what that costs and the credit covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.draft_budget import EXPECTED_TOKENS, DraftBudget
from ipex_assist.speculative.schedule import RoundState

WORTH = 1.01  # a draft must promise this factor over plain decoding
# Last tokens of the context that a draft reads if reading all of it is too expensive.
CONTEXTS = (64, 32, 16, 8)
PROBES = (4, 2)  # if even the shortest is: such a draft measures what reading costs
# By such factors a disturbed calibration may overestimate the cost of reading.
OFTEN_DISTURBED, MOST_DISTURBED = 4.0, 16.0


@dataclass
class RoundCosts:
    """Seconds that drafts take in the current round, with the reading before them.

    context: the draft reads the last so many tokens, where that is less than it has not read; None: all of them.
    """

    live: LiveCosts
    now: RoundState = field(default_factory=lambda: RoundState(0, 0, 0))
    skipped: int = 0  # tokens at the start of the context that the source has not read

    @property
    def costs(self) -> Costs:
        """Of the source whose turn it is: the model, or copies where nothing is unread."""
        return self.live.costs if self.now.unread else self.live.lookup_costs

    def is_part(self, context: int | None) -> bool:
        """Whether the source reads only a part of the context, with the last `context` tokens of it."""
        return context is not None and self.now.rereads and (self.skipped > 0 or self.now.unread > context)

    def to_read(self, context: int | None) -> int:
        """Return the number of tokens that the source reads before it drafts."""
        if context is None:
            return self.now.length if self.skipped else self.now.unread
        return min(self.now.unread, context)

    def reading(self, context: int | None) -> float:
        """Return the seconds of reading them."""
        return self.costs.reading(self.to_read(context))

    def drafting(self, k: int, context: int | None) -> float:
        """Return the seconds of reading and of drafting `k` tokens."""
        return self.reading(context) + self.costs.drafting(k)

    def loss(self, k: int, context: int | None) -> float:
        """Return the extra seconds of a round with `k` drafted tokens over a plain one."""
        return self.costs.loss(k, self.reading(context))

    @property
    def has_read_nearly_all(self) -> bool:
        """Whether the source has so little to read that no part of it is worth a choice."""
        return self.now.unread <= CONTEXTS[-1] and not self.skipped


@dataclass
class ContextChoice:
    """Whether a draft reads all of the context, and otherwise how much of it.

    credit: returns the seconds that drafts may still lose. gain: of drafts from all of the context, relative to plain
    decoding.
    """

    round: RoundCosts
    budget: DraftBudget
    credit: Callable[[], float]

    def end_of_text(self) -> int:
        """Return how many of the last tokens half of the credit covers; few if it covers no useful part."""
        credit = self.credit()
        covered = next((size for size in CONTEXTS if self.round.costs.reading(size) < credit / 2), CONTEXTS[-1])
        if self.may_afford_all(OFTEN_DISTURBED):
            covered = CONTEXTS[-1]
        probes = () if self.round.live.reading_known else PROBES
        return next((size for size in (covered, *probes) if self.round.loss(1, size) <= credit), covered)

    def may_afford_all(self, factor: float) -> bool:
        """Whether the credit covers all of the context if calibration took reading to be `factor` × too expensive."""
        if self.round.live.reading_known or self.budget.trusted:
            return False
        return self.round.reading(None) / factor + self.round.loss(1, 1) <= self.credit()

    def reads_all(self, gain: float, last_chance: bool) -> bool:
        """Whether to read all of the context: if the remaining tokens repay it and the budget allows it.

        last_chance: another draft from a part would leave too little credit to read all.
        """
        if self.round.has_read_nearly_all:
            return True
        cost = self.round.reading(None)
        if self.round.skipped and self.budget.account.balance > 0:
            # How much the whole context would improve the drafts is unknown.
            return cost < 0.5 * self.budget.account.balance and cost < 0.25 * self._won(gain)
        trusted = self.budget.trusts_reading(cost, self.round.live.costs.verifying(1))
        affordable = trusted or cost < self.credit() / 2 or last_chance
        return self._repaid(gain) and affordable

    def reserve(self, gain: float) -> float:
        """Return the credit that drafts from a part leave for one from all of the context; 0 where it is out of reach.

        Once drafts have gained, they may spend all of it.
        """
        loss = self.round.loss(1, None)
        return loss if self._repaid(gain) and self.budget.account.balance <= 0 and loss <= self.credit() else 0.0

    def _repaid(self, gain: float) -> bool:
        """Whether the remaining tokens should repay reading all of the context."""
        return gain > WORTH and self.round.reading(None) < self._won(gain)

    def _won(self, gain: float) -> float:
        """Return the seconds that drafts should gain in the remaining tokens."""
        plain_s = self.round.live.costs.verifying(1)
        return min(self.round.now.remaining, EXPECTED_TOKENS) * plain_s * (1 - 1 / gain)
