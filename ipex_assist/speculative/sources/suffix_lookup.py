"""Suffix lookup: drafts what followed where the text's last tokens occurred before. No model, a few microseconds."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.schedule import LONGEST_DRAFT, DraftPlan
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.earlier_text import EarlierText
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.speculative.sources.text_index import copied_drafts, text_index

# From this confidence on, that of one match of 8 tokens, a copied draft is better than a model's, and free.
SURE = 4 * 8**3 / (4 * 8**3 + 1)


class SuffixLookup(DraftSource):
    """Drafts from the text so far, and from earlier text if there is any.

    Each place where the last tokens occurred votes for what followed there, the more the longer it matches: a draft
    has the tokens with the most votes, and their part of all votes as its confidence. Every token of the text is
    entered once, when it is settled, so that there is nothing to roll back.
    Sources: A. Saxena, Prompt Lookup Decoding, 2023; G. Oliaro et al., SuffixDecoding, 2024 (arXiv:2411.04975), whose
    counts by frequency these votes are.
    """

    def __init__(self, earlier: EarlierText | None = None) -> None:
        """earlier: text of others that may be copied."""
        self._earlier = earlier or EarlierText()
        self._own = text_index()
        self._drafts = copied_drafts([self._own, *self._earlier.indexes], LONGEST_DRAFT)
        self._indexed = 0  # tokens of the text
        self._found = Proposal([])

    def unread(self, tokens: Sequence[int]) -> int:
        """Return 0: reading costs nothing."""
        return 0

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Copy up to `plan.k` tokens."""
        found = self.after(tokens)
        sure = (i + 1 for i, each in enumerate(found.confidence) if each < plan.min_confidence)
        count = min(plan.k, next(sure, len(found.tokens)))
        yield from ()  # no model is asked
        return Proposal(found.tokens[:count], found.confidence[:count])

    def accept(self, count: int) -> None:
        """Nothing to do: the next call's tokens show what was accepted."""

    def after(self, tokens: Sequence[int]) -> Proposal:
        """Return the longest draft after `tokens`. Looked up once a length: a pass asks several times."""
        if self._indexed != len(tokens):
            self._own.append(tokens[self._indexed :])
            self._indexed = len(tokens)
            with self._earlier.lock:
                self._found = Proposal(*self._drafts.draft())
        return self._found


class LookupWithFallback(DraftSource):
    """Suffix lookup where it is sure, else another source.

    The other source does not read tokens that lookup drafted; it catches up, several tokens a pass, when used again.
    """

    def __init__(self, lookup: SuffixLookup, other: DraftSource, sure: float = SURE) -> None:
        self.lookup, self.other, self.sure = lookup, other, sure
        self.sources, self.may_pause = (other,), other.may_pause
        self._last: DraftSource = lookup

    @property
    def drafted_by(self) -> str | None:
        """Who made the last proposal, where the other source is one of two assistants."""
        by = self.other.drafted_by
        return "lookup" if self._last is self.lookup and by is not None else by

    def copies(self, tokens: Sequence[int]) -> bool:
        """Whether the next proposal would be a copy."""
        confidence = self.lookup.after(tokens).confidence
        return bool(confidence) and confidence[0] >= self.sure

    def unread(self, tokens: Sequence[int]) -> int:
        """Return the unread tokens of the source that would draft next."""
        return (self.lookup if self.copies(tokens) else self.other).unread(tokens)

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """A copy, or the other source's draft."""
        self._last = self.lookup if self.copies(tokens) else self.other
        return (yield from self._last.steps(tokens, plan))

    def accept(self, count: int) -> None:
        """Passed on to the source of the last proposal."""
        self._last.accept(count)
