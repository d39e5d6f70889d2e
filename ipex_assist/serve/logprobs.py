"""Log-probabilities in OpenAI's two formats, held back with the text so that no stop string leaks through them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.serve.backend import OutputChunk
from ipex_assist.serve.token_bytes import TokenBytes


@dataclass(frozen=True)
class TokenChoice:
    """A token with its bytes, its log-probability, and the most likely ones as (id, log-probability).

    shown: how many of its bytes the text shows; 0 for a special token, whose bytes are its name.
    """

    token: int
    bytes: bytes
    log_probability: float
    top: list[tuple[int, float]]
    shown: int

    def cut(self, room: int) -> TokenChoice:
        """The token cut to the first `room` bytes of its text."""
        if self.shown <= room:
            return self
        return replace(self, bytes=self.bytes[: len(self.bytes) - self.shown + room], shown=room)


def token_choice(listed: TokenLogprob, texts: TokenBytes) -> TokenChoice:
    """What an engine says of a token, with its bytes."""
    token, content = listed.token, texts.bytes_of(listed.token)
    shown = 0 if texts.hidden(token) else len(content)
    return TokenChoice(token, content, listed.log_probability, listed.top, shown)


@dataclass
class Logprobs:
    """Log-probabilities of one choice. stop: whether it has stop strings, which must not be shown. shows_end: whether
    the end-of-text token is listed, as in OpenAI's completions but not in its chat."""

    texts: TokenBytes
    stop: bool
    shows_end: bool = False
    _waiting: list[TokenChoice] = field(default_factory=list)
    _released: int = 0  # bytes of text released
    _passed: int = 0  # bytes of the tokens released

    def push(self, chunk: OutputChunk) -> list[TokenChoice]:
        """Add a chunk; returns the tokens whose text is released."""
        self._waiting += [token_choice(each, self.texts) for each in chunk.logprobs or []]
        text = "".join(token_delta.text for token_delta in chunk.token_deltas)
        if text and not self._released:
            self._begin(text)
        self._released += len(text.encode())
        if not self.stop:
            certain = len(self._waiting) - (not self.shows_end)  # the last may be the end-of-text token
            ready, self._waiting = self._waiting[:certain], self._waiting[certain:]
            return ready
        ready = []
        while len(self._waiting) > 1 and self._passed + self._waiting[0].shown <= self._released:
            ready.append(self._take())
        return ready

    def _begin(self, text: str) -> None:
        """SentencePiece drops the leading space of the first word, though its token has one."""
        first = next((place for place, each in enumerate(self._waiting) if each.shown), None)
        if first is not None and self._waiting[first].bytes.startswith(b" ") and not text.startswith(" "):
            self._waiting[first] = replace(self._waiting[first], shown=self._waiting[first].shown - 1)

    def finish(self, reason: str) -> list[TokenChoice]:
        """Return the rest, without the end-of-text token or a stop string's tokens. reason: Result.stop_reason."""
        rest, self._waiting = self._waiting, []
        if reason == "eos":
            return rest if self.shows_end else rest[:-1]
        if reason != "stop":
            return rest
        shown = []
        for each in rest:
            room = self._released - self._passed
            if room <= 0:
                break
            self._passed += each.shown
            shown.append(each.cut(room))
        return shown

    def _take(self) -> TokenChoice:
        taken = self._waiting.pop(0)
        self._passed += taken.shown
        return taken


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="backslashreplace")


def chat_form(tokens: list[TokenChoice], texts: TokenBytes) -> list[dict[str, Any]]:
    """In the format of /v1/chat/completions: token, logprob, bytes, top_logprobs."""

    def entry(content: bytes, value: float) -> dict[str, Any]:
        return {"token": _text(content), "logprob": value, "bytes": list(content)}

    return [
        {
            **entry(each.bytes, each.log_probability),
            "top_logprobs": [entry(texts.bytes_of(token), value) for token, value in each.top],
        }
        for each in tokens
    ]


def completion_form(
    tokens: list[TokenChoice], texts: TokenBytes, offset: int, top: int, first: int | None = None
) -> dict[str, Any]:
    """In the format of /v1/completions: parallel lists. offset: characters of text before; top: number of alternatives.

    first: the prompt's first token, which has no probability. Of alternatives with the same text the most likely one is
    kept.
    """
    names = [] if first is None else [texts.text_of(first)]
    offsets = [offset] * len(names)
    offset += sum(len(name) for name in names)
    likeliest: list[dict[str, float] | None] = [None] * len(names)
    values: list[float | None] = [None] * len(names)
    for each in tokens:
        offsets.append(offset)
        offset += len(_text(each.bytes))
        found: dict[str, float] = {}
        for token, value in each.top:
            found.setdefault(texts.text_of(token), value)
        likeliest.append(found)
    return {
        "tokens": [*names, *(_text(each.bytes) for each in tokens)],
        "token_logprobs": [*values, *(each.log_probability for each in tokens)],
        "top_logprobs": likeliest if top else None,
        "text_offset": offsets,
    }
