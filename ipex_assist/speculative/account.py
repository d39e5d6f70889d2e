"""The account: seconds that drafts gained over plain decoding and may lose, of all requests. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

LOST_SHARE = 0.03  # of plain decoding time is what drafting may cost where it never helps: the promise, and all of it
# Tokens whose allowance a request is granted when it begins: one plain pass, for a first draft. So the promise holds
# from that many tokens on, and a shorter answer loses one pass at most. What it did not earn is taken back at its end:
# many short answers lose no more than a long one.
FIRST_TOKENS = int(1 / LOST_SHARE)
KEPT_PASSES = 8.0  # plain passes that earlier requests' gains cover at most when another begins
OUTLIER = 1.5  # measured ÷ expected seconds are clipped at this ratio: the rest was taken by other processes


@dataclass
class Account:
    """A conservative bandit's budget (Wu, Shariff, Lattimore and Szepesvári 2016, arXiv:1602.04282), in seconds.

    A draft is made only if its loss, should all of it be rejected, is at most the balance: what drafts have gained,
    less what they cost (draft and target passes, reading, planning, hidden states), and LOST_SHARE of the time in which
    plain decoding would have brought the tokens that came, and the first ones of running requests that will come.

    ahead: tokens whose allowance is granted, and that have not come. token_s: of plain decoding, by what is known now.
    """

    earned_s: float = 0.0
    ahead: float = 0.0
    token_s: float = 0.0

    @property
    def granted_s(self) -> float:
        """Allowance of tokens that have not come."""
        return LOST_SHARE * self.ahead * self.token_s

    @property
    def balance_s(self) -> float:
        """Seconds that may be lost."""
        return self.earned_s + self.granted_s

    def begin(self, tokens: float, plain_s: float) -> None:
        """Grant a new request the allowance of its first tokens, and forget gains beyond KEPT_PASSES."""
        self.earned_s = min(self.earned_s, KEPT_PASSES * plain_s)
        self.ahead += tokens

    def allow(self, tokens: float, token_s: float) -> None:
        """Add the allowance of tokens that came."""
        self.earned_s += LOST_SHARE * tokens * token_s

    def charge(self, seconds: float, most: float) -> None:
        """Charge what drafting took beside the passes that it is for, up to `most` seconds."""
        self.earned_s -= min(max(0.0, seconds), max(0.0, most))

    def book(self, gained_s: float, extra_s: float) -> None:
        """Book a pass with drafts: what plain decoding takes for the accepted tokens, and what the pass took longer."""
        self.earned_s += gained_s - extra_s
