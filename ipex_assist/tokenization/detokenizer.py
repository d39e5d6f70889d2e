"""Incremental detokenization: whole characters only, holding back text that may become a stop string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
# Of a prompt that a text goes on after: enough for a decoder to know that it is no beginning; more, up to so many,
# where these are special tokens, which it leaves out.
_TOKENS_BEFORE, _MOST_BEFORE = 4, 64


class TokenDecoder(Protocol):
    """The part of a transformers tokenizer used here."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = ...) -> Any: ...


class IncrementalDetokenizer:
    """Decodes a growing list of tokens, releasing text as it becomes certain.

    Tokens are decoded together with the few before them, because a tokenizer may write a token differently at the
    beginning of a text. Text is held back while it ends inside a character or inside a possible stop string.
    """

    def __init__(
        self,
        tokenizer: TokenDecoder,
        stop: Sequence[str] = (),
        before: Sequence[int] = (),
        special: Mapping[int, str] | None = None,
    ) -> None:
        """stop: non-empty strings; the text ends before the first of them.

        before: tokens that the text goes on after: SentencePiece's decoders drop the space of a text's first word.
        special: names of tokens that texts do not show, for stop strings that have one in them.
        """
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
        count = _TOKENS_BEFORE
        while count < min(len(before), _MOST_BEFORE) and not self._decode(list(before[-count:])):
            count *= 2
        self._before = list(before[-count:])
        if self._before and self._decode(self._before).endswith(REPLACEMENT):
            self._before = []  # the first tokens complete a character of the prompt
        self._special = special or {}
        self._named = ""  # _decoded with the names of special tokens in it, where there are any
        self._hidden: list[tuple[int, int]] = []  # where those names are
        self._longest = max(map(len, self.stop), default=0)
        self.tokens: list[int] = []
        self.stop_text: str | None = None  # the stop string that is complete
        self._decoded = ""  # all complete characters so far
        self._released = 0  # how many of them were released
        self._context = 0  # decoding starts at this token
        self._done = 0  # tokens whose text is in _decoded

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self.stop_text is not None

    @property
    def text(self) -> str:
        """The text released so far."""
        return self._decoded[: self._released]

    def push(self, token: int) -> str:
        """Add a token; returns newly released text. Sets `stopped` when a stop string is complete."""
        self.tokens.append(token)
        before, after = self._texts()
        if len(after) > len(before) and not after.endswith(REPLACEMENT):
            self._take(after[len(before) :])
            self._context, self._done = self._done, len(self.tokens)
        if token in self._special and not self.stopped:
            self._take("", self._special[token])
        return self._release(hold=True)

    def finish(self) -> str:
        """Return the rest: incomplete characters as U+FFFD, and text held back for a stop string."""
        if not self.stopped:
            before, after = self._texts()
            self._take(after[len(before) :])
            self._done = len(self.tokens)
        return self._release(hold=False)

    def _texts(self) -> tuple[str, str]:
        """The text of the tokens since `_context`: of those that are in `_decoded`, and of all."""
        first = self._before if self._context == 0 else []
        known = self._decode(first + self.tokens[self._context : self._done])
        return known, self._decode(first + self.tokens[self._context :])

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def _take(self, piece: str, name: str = "") -> None:
        """Add text, and the name of a special token after it; end the text where that completes a stop string."""
        # A stop string may have begun in earlier text; nothing before _released can be part of one.
        self._decoded += piece
        found = [(at, stop) for stop in self.stop if (at := self._decoded.find(stop, self._released)) >= 0]
        if self._special:
            start = max(0, len(self._named) + 1 - self._longest)
            self._named += piece + name
            if name:
                self._hidden.append((len(self._named) - len(name), len(self._named)))
            found += [(self._shown(at), stop) for stop in self.stop if (at := self._named.find(stop, start)) >= 0]
        if found:
            first, self.stop_text = min(found, key=lambda each: each[0])
            self._decoded = self._decoded[:first]

    def _shown(self, at: int) -> int:
        """The place in _decoded that a place in _named is."""
        return at - sum(min(end, at) - start for start, end in self._hidden if start < at)

    def _release(self, hold: bool) -> str:
        end = len(self._decoded)
        if hold and not self.stopped:
            end -= max((_overlap(self._decoded, stop) for stop in self.stop), default=0)
            if self._hidden:
                end = min(end, *(self._shown(len(self._named) - _overlap(self._named, stop)) for stop in self.stop))
        piece = self._decoded[self._released : end]
        self._released = max(self._released, end)
        return piece


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
