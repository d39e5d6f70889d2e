"""A request's drafting budget: seconds its drafts gained over plain decoding, and may still lose. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Share of plain decoding time that rejected drafts may cost: up front for the expected tokens, and further for each
# token that comes. The rest of the promised 3 % is for errors of the cost model, and for what no clock shows: a request
# with a draft head has more of that in each round, and its stake is smaller.
STAKE, HEAD_STAKE, FURTHER = 0.02, 0.015, 0.005
# The stake shrinks by half for as many tokens of earlier texts, verified of a source that did not pay in them.
DOUBTED_TOKENS = 8
# A request may end early: the up-front stake counts on at most this many tokens.
EXPECTED_TOKENS = 128
# Additional share for a pair that did well in an earlier request, or in this one so far.
TRUST = 0.04
TRUSTED_READING = 0.1  # and for reading a prompt, before any draft has gained that
MOST_OF_CREDIT = 0.25  # that preparing to draft may take, each time
OUTLIER = 1.5  # measured ÷ expected seconds of a round are clipped at this ratio


@dataclass
class DraftAccount:
    """What a request's drafts have gained and cost so far: one account, whoever drafts for it."""

    balance: float = 0.0  # seconds gained over plain decoding
    tokens: int = 0  # output tokens so far
    granted: bool = False  # the first reading of the whole context was already granted


@dataclass
class DraftBudget:
    """Bounds what drafting may cost where it never helps.

    A round's tokens are credited with the seconds that plain decoding takes for them. Nothing is drafted whose loss, if
    all of it is rejected, exceeds the credit: the balance, a stake that every request has, and more for a trusted pair.
    `plain` is always the current seconds of a plain pass.
    """

    limit: int  # output tokens at most
    trusted: bool = False  # the pair did well in an earlier request
    stake: float = STAKE  # less for a source that never helped in earlier requests
    account: DraftAccount = field(default_factory=DraftAccount)
    # Seconds of plain decoding since the last draft; infinite before the first, and after one that was right.
    undrafted_s: float = math.inf

    @property
    def expected_tokens(self) -> int:
        """Output tokens that the stake is computed for."""
        return min(self.limit, EXPECTED_TOKENS)

    def credit(self, plain: float, worthwhile: bool) -> float:
        """Return the seconds that may still be lost. worthwhile: this request's drafts are accepted often enough."""
        trust = TRUST * self.expected_tokens if self.trusted or worthwhile else 0.0
        stake = self.stake * max(self.expected_tokens, self.account.tokens) + FURTHER * self.account.tokens
        return self.account.balance + (trust + stake) * plain

    def book_round(self, tokens: int, plain: float) -> None:
        """Count a round of `tokens` tokens, with or without a draft."""
        self.account.tokens += tokens
        self.undrafted_s += plain

    def book_draft(
        self, tokens: int, plain: float, expected: tuple[float, float], seconds: tuple[float, float]
    ) -> None:
        """Book a round with a draft, which brought `tokens` tokens.

        expected, seconds: of drafting and of the target's pass, expected and measured. Drafting is charged what it
        took: it is a loss of so many seconds, whatever calibration says. The pass is charged the expected seconds at
        least, since it stands against a plain one. Far more time than expected was taken by other processes: clipped.
        """
        took = seconds[0] + max(seconds[1], expected[1])
        self.account.balance += tokens * plain - min(took, sum(expected) * OUTLIER)
        self.undrafted_s = 0.0 if tokens == 1 else math.inf

    def book_empty_draft(self, expected: float, seconds: float) -> None:
        """Charge a draft of which nothing could be proposed: the tokens of another tokenizer may be half a character.

        expected, seconds: of drafting. One that took next to no time did not begin, and may be tried again at once.
        """
        self.account.balance -= min(seconds, expected * OUTLIER)
        if seconds > expected / 2:
            self.undrafted_s = 0.0

    @property
    def grants_reading(self) -> bool:
        """Whether reading the whole context is free of charge: the first time, for a trusted pair."""
        return self.trusted and not self.account.granted

    def grant_reading(self, seconds: float) -> None:
        """Refund the seconds of reading the whole context."""
        self.account.balance += seconds
        self.account.granted = True

    def book_reading(self, seconds: float) -> None:
        """Charge a draft head's pass over a prompt, unless the first reading is free of charge."""
        if not self.grants_reading:
            self.account.balance -= seconds

    def book_overhead(self, seconds: float, plain: float) -> None:
        """Charge what drafting takes beside passes: plans, hidden states. Far more was taken by other processes."""
        self.account.balance -= min(seconds, (OUTLIER - 1) * plain)

    def book_start(self, seconds: float, plain: float) -> None:
        """Charge what preparing to draft took, at most a share of the credit: of a short text it would take all."""
        self.account.balance -= min(seconds, MOST_OF_CREDIT * max(0.0, self.credit(plain, worthwhile=False)))

    def rounds_until(
        self, cost: float, reading: float, plain: float, worthwhile: bool, trial: bool, asking: float = 0.0
    ) -> int:
        """Return after how many plain rounds of one token a draft of this `cost` may be made.

        reading: the part of the cost that a trial may leave out of what has to be due. trial: the draft is one.
        asking: seconds that planning it takes, which the credit has to cover as well.
        """
        grows = (FURTHER + self.stake * (self.account.tokens >= self.expected_tokens)) * plain
        covered = (cost + asking - self.credit(plain, worthwhile)) / grows
        due = ((cost - reading) / STAKE - self.undrafted_s) / plain if trial else 0.0
        rounds = max(covered, due)
        return math.ceil(rounds) if rounds > 0 else 0

    def trusts_reading(self, seconds: float, plain: float) -> bool:
        """Whether a trusted pair may read for `seconds`, though its drafts have not gained that yet."""
        return self.trusted and seconds < TRUSTED_READING * self.expected_tokens * plain

    def trial_is_due(self, cost: float) -> bool:
        """Whether the usual stake of the time since the last draft has grown to another's cost, or it was right."""
        return self.undrafted_s * STAKE >= cost
