"""Incremental detokenization: whole characters only, holding back text that may become a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character


class TokenDecoder(Protocol):
    """The part of a transformers tokenizer used here."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = ...) -> Any: ...


class IncrementalDetokenizer:
    """Decodes a growing list of tokens, releasing text as it becomes certain.

    Tokens are decoded together with the few before them, because a tokenizer may write a token differently at the
    beginning of a text. Text is held back while it ends inside a character or inside a possible stop string.
    """

    def __init__(self, tokenizer: TokenDecoder, stop: Sequence[str] = ()) -> None:
        """stop: non-empty strings; the text ends before the first of them."""
        self.tokenizer = tokenizer
        self.stop = tuple(stop)
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
        before = self._decode(self.tokens[self._context : self._done])
        after = self._decode(self.tokens[self._context :])
        if len(after) > len(before) and not after.endswith(REPLACEMENT):
            self._take(after[len(before) :])
            self._context, self._done = self._done, len(self.tokens)
        return self._release(hold=True)

    def finish(self) -> str:
        """Return the rest: incomplete characters as U+FFFD, and text held back for a stop string."""
        if not self.stopped:
            before = self._decode(self.tokens[self._context : self._done])
            self._take(self._decode(self.tokens[self._context :])[len(before) :])
            self._done = len(self.tokens)
        return self._release(hold=False)

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def _take(self, piece: str) -> None:
        # A stop string may have begun in earlier text; nothing before _released can be part of one.
        self._decoded += piece
        found = [(at, stop) for stop in self.stop if (at := self._decoded.find(stop, self._released)) >= 0]
        if found:
            first, self.stop_text = min(found, key=lambda each: each[0])
            self._decoded = self._decoded[:first]

    def _release(self, hold: bool) -> str:
        end = len(self._decoded)
        if hold and not self.stopped:
            end -= max((_overlap(self._decoded, stop) for stop in self.stop), default=0)
        piece = self._decoded[self._released : end]
        self._released = max(self._released, end)
        return piece


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
