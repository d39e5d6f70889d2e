"""The ledger of a text: what its drafts won over plain decoding, and what they may still lose. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Of the time that plain decoding takes, what drafts that turn out wrong may cost: at the beginning, for the tokens to
# be expected, and further on as they come. The rest of the 3 % that we promise is for errors of the cost model.
STAKE, FURTHER = 0.016, 0.005
# A text ends when it likes: no more than so many tokens of it are counted on when the first drafts are paid for.
EXPECTED_TOKENS = 128
# What a pair that did well on an earlier text, or on this one so far, may lose on top of it.
TRUST = 0.04
TRUSTED_READING = 0.1  # and what it may spend on reading a prompt, which it then need not have won before
OUTLIER = 1.5  # a round's seconds ÷ those expected, beyond which they do not count


@dataclass
class DraftBudget:
    """Keeps the promise that drafting costs next to nothing where it does not pay.

    Each round's tokens are worth the seconds that they would have taken plainly. Nothing is drafted whose loss, were
    all of it wrong, the credit would not cover: the balance, a stake that every text has, and more where the pair is
    trusted. `plain` is everywhere the seconds of a plain pass as they are at that moment.
    """

    limit: int  # tokens that the text may get
    trusted: bool = False  # the pair did well on an earlier text
    balance: float = 0.0  # seconds won over plain decoding
    tokens: int = 0  # of the text so far
    undrafted_s: float = math.inf  # of plain decoding since a draft was last tried; no end to it where none was
    granted: bool = False  # the whole text was read on trust

    @property
    def expected_tokens(self) -> int:
        """How many tokens of the text are counted on before it is seen how long it is."""
        return min(self.limit, EXPECTED_TOKENS)

    def credit(self, plain: float, worthwhile: bool) -> float:
        """Return the seconds that may be lost from here on. pays: the drafts of this text were right often enough."""
        trust = TRUST * self.expected_tokens if self.trusted or worthwhile else 0.0
        stake = STAKE * max(self.expected_tokens, self.tokens) + FURTHER * self.tokens
        return self.balance + (trust + stake) * plain

    def book_round(self, tokens: int, plain: float) -> None:
        """Take in a round of `tokens` tokens, whether or not anything was drafted for it."""
        self.tokens += tokens
        self.undrafted_s += plain

    def book_draft(self, tokens: int, plain: float, expected: float, seconds: float) -> None:
        """Pay for a round with a draft, which brought `tokens` tokens, and was expected to take `expected` seconds.

        It costs the `seconds` that it took by the clock where that is more, since costs may be wrong; far more was
        somebody else's work.
        """
        self.balance += tokens * plain - min(max(seconds, expected), expected * OUTLIER)
        self.undrafted_s = 0.0

    @property
    def grants_reading(self) -> bool:
        """Whether the ledger will leave out a reading of the whole text: the first, by a pair that did well before."""
        return self.trusted and not self.granted

    def grant_reading(self, seconds: float) -> None:
        """Give back what the reading of the whole text took."""
        self.balance += seconds
        self.granted = True

    def trusts_reading(self, seconds: float, plain: float) -> bool:
        """Whether a trusted pair may read for so long, though it has not won that yet."""
        return self.trusted and seconds < TRUSTED_READING * self.expected_tokens * plain

    def trial_is_due(self, cost: float) -> bool:
        """Whether the allowance of the time since the last draft has grown to the price of another."""
        return self.undrafted_s * STAKE >= cost
