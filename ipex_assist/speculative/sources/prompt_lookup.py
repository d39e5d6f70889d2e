"""Prompt lookup: drafts what followed an earlier occurrence of the last few tokens. No model, no cost."""

from __future__ import annotations

from collections.abc import Sequence

from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal

NGRAM = 2  # tokens that must match; one alone has too many continuations
PLACES = 8  # latest occurrences of an n-gram that are searched for the longest match
LONGEST = 32  # tokens compared at most; a longer match is as good as certain
# From this match length on, a copied draft is better than a model's, and free.
LONG_MATCH = 8


class PromptLookup(DraftSource):
    """Copies the continuation of the longest earlier match of the last tokens.

    An index from n-grams to the positions after them grows with the context, a few operations a token.
    Source: A. Saxena, Prompt Lookup Decoding, 2023; transformers' `prompt_lookup_num_tokens`.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._indexed = NGRAM  # n-grams that end before this token are in the index
        self._found = (0, 0)  # the last match …
        self._found_at = 0  # … and the number of tokens it was searched for

    def unread(self, tokens: Sequence[int]) -> int:
        """Return 0: reading costs nothing."""
        return 0

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Copy up to `plan.k` tokens. Each has the confidence 1 - 1 / (matching tokens before it + 1)."""
        place, length = self.match(tokens)
        if length == 0:
            return Proposal([])
        copied: list[int] = []
        confidence: list[float] = []
        for i in range(plan.k):
            # Past the end of the context the copy continues with itself, so that periodic text repeats.
            at = place + i
            copied.append(tokens[at] if at < len(tokens) else copied[at - len(tokens)])
            confidence.append(1 - 1 / (length + i + 1))
            if confidence[-1] < plan.min_confidence:
                break
        yield from ()  # no model is asked
        return Proposal(copied, confidence)

    def accept(self, count: int) -> None:
        """Nothing to do: the next call's tokens show what was accepted."""

    def match(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return the position after the longest earlier match of the last tokens, the latest of equals, and its length.

        Length 0 if the last NGRAM tokens did not occur before. Searched once a length: a pass asks several times.
        """
        if self._found_at != len(tokens):
            self._found, self._found_at = self._search(tokens), len(tokens)
        return self._found

    def _search(self, tokens: Sequence[int]) -> tuple[int, int]:
        for end in range(self._indexed, len(tokens)):
            places = self._places.setdefault(tuple(tokens[end - NGRAM : end]), [])
            places.append(end)
            del places[:-PLACES]
        self._indexed = max(self._indexed, len(tokens))
        best, longest = 0, 0
        for place in reversed(self._places.get(tuple(tokens[-NGRAM:]), ())):
            length = _agreeing(tokens, place)
            if length > longest:
                best, longest = place, length
        return best, longest


def _agreeing(tokens: Sequence[int], place: int) -> int:
    """Return how many tokens before `place` match those before the end, at most LONGEST."""
    length = 0
    while length < min(LONGEST, place) and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
        length += 1
    return length


class LookupWithFallback(DraftSource):
    """Prompt lookup if it has a long match, else another source.

    The other source does not read tokens that lookup drafted; it catches up, several tokens a pass, when used again.
    """

    def __init__(self, lookup: PromptLookup, other: DraftSource, long_match: int = LONG_MATCH) -> None:
        self.lookup, self.other, self.long_match = lookup, other, long_match
        self.sources, self.may_pause = (other,), other.may_pause
        self._last: DraftSource = lookup

    @property
    def drafted_by(self) -> str | None:
        """Who made the last proposal, where the other source is one of two assistants."""
        by = self.other.drafted_by
        return "lookup" if self._last is self.lookup and by is not None else by

    def copies(self, tokens: Sequence[int]) -> bool:
        """Whether the next proposal would be a copy."""
        return self.lookup.match(tokens)[1] >= self.long_match

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
