"""A text that is read while it grows: readers are coroutines, which wait where it ends too early."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar

from ipex_assist.serve.tools.dialects import ID, INDEX
from ipex_assist.serve.tools.json_scanner import SPACE

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]  # waits for more text at each step

_PLACE = {INDEX: re.compile(r"\d+"), ID: re.compile(r"[\w.:-]*")}


class GrowingText:
    """The text so far, and how far it was read."""

    def __init__(self) -> None:
        self._buffer, self._at, self._over = "", 0, False

    def _peek(self, count: int = 1) -> Reading[str]:
        """The next characters; fewer only at the end."""
        while len(self._buffer) - self._at < count and not self._over:
            yield
        return self._buffer[self._at : self._at + count]

    def _space(self, characters: str = SPACE) -> Reading[None]:
        while True:
            rest = self._buffer[self._at :]
            self._at += len(rest) - len(rest.lstrip(characters))
            if self._at < len(self._buffer) or self._over:
                return
            yield

    def _word(self, word: str) -> Reading[bool]:
        """Whether a word comes next, which is taken then."""
        while True:
            piece = self._buffer[self._at : self._at + len(word)]
            if piece == word:
                self._at += len(word)
                return True
            if not word.startswith(piece) or self._over:
                return False
            yield

    def _match(self, pattern: re.Pattern[str]) -> Reading[str]:
        """What a pattern matches next, as far as it goes."""
        while True:
            found = pattern.match(self._buffer, self._at)
            if self._over or (len(self._buffer) > self._at and (found is None or found.end() < len(self._buffer))):
                break
            yield
        text = found[0] if found else ""
        self._at += len(text)
        return text

    def _words_next(self, words: Iterable[str]) -> Reading[bool]:
        """Whether these words come next, with any space before each; nothing is taken if not."""
        start = self._at
        for word in words:
            yield from self._space()
            place = _PLACE.get(word)
            found = bool((yield from self._match(place))) if place is not None else (yield from self._word(word))
            if not found:
                self._at = start
                return False
        return True
