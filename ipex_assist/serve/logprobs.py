"""Log-probabilities in OpenAI's two forms, held back with the text so that no stop text leaks through them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ipex_assist.serve.backend import OutputChunk
from ipex_assist.serve.token_bytes import TokenBytes


@dataclass(frozen=True)
class TokenChoice:
    """A token of a text with its bytes, its log-probability, and the likeliest ones (id, log-probability).

    shown: how many bytes at its end it adds to the text: none where it is a special token, whose bytes are its name.
    """

    token: int
    bytes: bytes
    log_probability: float
    top: list[tuple[int, float]]
    shown: int

    def cut(self, room: int) -> TokenChoice:
        """The same where no more than `room` bytes of the text are left."""
        if self.shown <= room:
            return self
        return replace(self, bytes=self.bytes[: len(self.bytes) - self.shown + room], shown=room)


def token_choice(listed: dict[str, Any], texts: TokenBytes) -> TokenChoice:
    """From what an engine says: token, log_probability, top."""
    token, top = listed["token"], [(int(other), float(value)) for other, value in listed["top"]]
    content = texts.bytes_of(token)
    return TokenChoice(token, content, listed["log_probability"], top, 0 if texts.hidden(token) else len(content))


@dataclass
class Logprobs:
    """Of one text. stop: whether it may end before a stop text, of which nothing is shown then. shows_end: whether the
    end-of-text token is listed, as in OpenAI's completions, and not in its chat."""

    texts: TokenBytes
    stop: bool
    shows_end: bool = False
    _waiting: list[TokenChoice] = field(default_factory=list)
    _released: int = 0  # bytes of the text that are certain
    _passed: int = 0  # bytes of the tokens that were given out

    def push(self, chunk: OutputChunk) -> list[TokenChoice]:
        """Take in a part; returns the tokens whose text is certain."""
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
        """A SentencePiece tokenizer writes no space before a text's first word, though its token has one."""
        first = next((place for place, each in enumerate(self._waiting) if each.shown), None)
        if first is not None and self._waiting[first].bytes.startswith(b" ") and not text.startswith(" "):
            self._waiting[first] = replace(self._waiting[first], shown=self._waiting[first].shown - 1)

    def finish(self, reason: str) -> list[TokenChoice]:
        """The rest. reason: Result.stop_reason; the end-of-text token and what follows a stop text are left out."""
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
    """As /v1/chat/completions has them: token, logprob, bytes, top_logprobs."""

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
    """As /v1/completions has them: lists side by side. offset: characters of the text before; top: how many likeliest.

    first: a prompt's first token, before the others; it has no probability. Of likeliest tokens that are written alike
    the likelier one is kept.
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
