"""Indexes of text that drafts copy from: those of the native core, and the same in Python where it was not built."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.library import library
from ipex_assist.native.token_index import SEPARATOR, CopiedDrafts, TokenIndex

# As in native/lookup/token_chains.h, which says why: tokens compared, the n-grams that have chains, places looked at.
LONGEST, NGRAMS, PLACES = 64, (6, 2, 1), 32


class TextIndex(Protocol):
    """Tokens, and where each n-gram of them occurred."""

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and chains."""

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end."""


class Drafts(Protocol):
    """Drafts from several indexes for the text of the first one."""

    def draft(self) -> tuple[list[int], list[float]]:
        """Return the tokens drafted, and the confidence in each."""


def text_index(most: int = 0) -> TextIndex:
    """Return an empty index. most: tokens kept, the latest; 0: all of them."""
    return TokenIndex(most) if _in_core() else TokenLists(most)


def copied_drafts(indexes: Sequence[TextIndex], longest: int) -> Drafts:
    """Return what drafts at most `longest` tokens from indexes that `text_index` made."""
    core = [index for index in indexes if isinstance(index, TokenIndex)]
    if len(core) == len(indexes):
        return CopiedDrafts(core, longest)
    return VotedDrafts([index for index in indexes if isinstance(index, TokenLists)], longest)


def _in_core() -> bool:
    try:
        library()
    except IpexAssistError:
        return False
    return True


class TokenLists:
    """A TokenIndex in Python, which finds the same places: some 10 µs a token, and 0.2 to 1 ms a draft."""

    def __init__(self, most: int = 0) -> None:
        """most: tokens kept, the latest; 0: all of them."""
        self.size, self._most = 0, most  # tokens appended so far
        self._tokens = array("i")  # in a ring as soon as there are `most`
        self._latest = [array("I", bytes(4 * 64)) for _ in NGRAMS]  # by hash: the end of the latest n-gram, 0: none
        self._previous = [array("I") for _ in NGRAMS]  # by slot: the end of the one before it

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and chains."""
        return 4 * sum(map(len, (self._tokens, *self._latest, *self._previous)))

    @property
    def oldest(self) -> int:
        """The position of the first token that is kept."""
        return self.size - len(self._tokens)

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens to the end."""
        for token in tokens[-self._most :]:
            if self._most and len(self._tokens) == self._most:
                self._tokens[self.size % self._most] = token
            else:
                self._tokens.append(token)
                for previous in self._previous:
                    previous.append(0)
            self.size += 1
            if len(self._tokens) >= 2 * len(self._latest[0]):
                self._latest = [array("I", bytes(8 * len(each))) for each in self._latest]  # twice as many
                for position in range(self.oldest + 1, self.size):
                    self._link(position)
            self._link(self.size)

    def at(self, position: int) -> int:
        """Return the token at a position; SEPARATOR for one that was forgotten or has not come."""
        return self._tokens[self._slot(position)] if self.oldest <= position < self.size else SEPARATOR

    def before(self, position: int, count: int) -> Sequence[int]:
        """Return the tokens at the `count` positions before this one, all of which are kept."""
        first, end = self._slot(position - count), self._slot(position - 1) + 1
        return self._tokens[first:end] if first < end else self._tokens[first:] + self._tokens[:end]

    def find(self, text: Sequence[int]) -> list[tuple[int, int]]:
        """Return the places where the last of `text` occurred: the position after each, and how many tokens match."""
        found: list[tuple[int, int]] = []
        known = LONGEST + 1  # longer matches were found by a longer n-gram
        for n, latest, previous in zip(NGRAMS, self._latest, self._previous, strict=True):
            place = _place(tuple(text[-n:]), latest)
            position, last, places = latest[place] if len(text) >= n else 0, self.size + 1, 0
            while self.oldest < position < last and places < PLACES:
                if position < self.size:
                    longest = min(LONGEST, len(text), position - self.oldest)
                    pairs = zip(reversed(self.before(position, longest)), reversed(text), strict=False)
                    length = next((i for i, (ours, wanted) in enumerate(pairs) if ours != wanted), longest)
                    if n <= length < known:
                        found.append((position, length))
                        places += 1
                position, last = previous[self._slot(position - 1)], position
            known = n
        return found

    def _slot(self, position: int) -> int:
        return position % self._most if self._most else position

    def _link(self, position: int) -> None:
        slot, end = self._slot(position - 1), tuple(self.before(position, min(NGRAMS[0], position - self.oldest)))
        for n, latest, previous in zip(NGRAMS, self._latest, self._previous, strict=True):
            if len(end) >= n:
                place = _place(end[-n:], latest)
                previous[slot], latest[place] = latest[place], position


def _place(ngram: tuple[int, ...], latest: array[int]) -> int:
    return hash(ngram) & (len(latest) - 1)


class VotedDrafts:
    """CopiedDrafts in Python, by the same votes (native/lookup/token_chains.h: draft_from)."""

    def __init__(self, indexes: Sequence[TokenLists], longest: int) -> None:
        self._indexes, self._longest = indexes, longest

    def draft(self) -> tuple[list[int], list[float]]:
        """Return the tokens drafted, and the confidence in each."""
        own, tokens, confidence = self._indexes[0], list[int](), list[float]()
        text = own.before(own.size, min(LONGEST, own.size - own.oldest))
        places = [
            (index, position, length**3 * (1 if index is own else 1 / 16) * (1 if number else 4))
            for index in self._indexes
            for number, (position, length) in enumerate(index.find(text))
        ]
        while places and len(tokens) < self._longest:
            following = [
                tokens[position - own.size] if index is own and position >= own.size else index.at(position)
                for index, position, _ in places
            ]
            votes: defaultdict[int, float] = defaultdict(float)
            for token, (_, _, vote) in zip(following, places, strict=True):
                votes[token] += vote
            votes.pop(SEPARATOR, None)
            if not votes:
                break
            best = max(votes, key=votes.__getitem__)
            tokens.append(best)
            confidence.append(votes[best] / (sum(votes.values()) + 1))
            places = [
                (index, position + 1, vote)
                for token, (index, position, vote) in zip(following, places, strict=True)
                if token == best
            ]
        return tokens, confidence
