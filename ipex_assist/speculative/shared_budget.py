"""The budget of a request's second assistant: one account for both, so that both together risk what one may."""

from __future__ import annotations

import math

from ipex_assist.speculative.draft_budget import DraftBudget


class SharedBudget(DraftBudget):
    """Balance, tokens, and the reading that trust pays for are those of the first assistant's budget.

    Trust and stake are each assistant's own, and so is the time since its last draft: a cheap one that is tried often
    must not keep an expensive one from ever being tried.
    """

    def __init__(self, first: DraftBudget, own: DraftBudget) -> None:
        """own: what the second would have alone, whose trust and stake it keeps."""
        self.first, self.limit = first, first.limit
        self.trusted, self.stake = own.trusted, own.stake
        self.undrafted_s = math.inf

    @property
    def balance(self) -> float:
        """Seconds that the drafts of both gained over plain decoding."""
        return self.first.balance

    @balance.setter
    def balance(self, seconds: float) -> None:
        self.first.balance = seconds

    @property
    def tokens(self) -> int:
        """Output tokens so far."""
        return self.first.tokens

    @tokens.setter
    def tokens(self, count: int) -> None:
        self.first.tokens = count

    @property
    def granted(self) -> bool:
        """Whether the first reading of a whole context was granted to one of them."""
        return self.first.granted

    @granted.setter
    def granted(self, value: bool) -> None:
        self.first.granted = value
