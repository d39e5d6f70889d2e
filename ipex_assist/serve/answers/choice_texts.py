"""The texts of a request's choices while they are generated, independent of the response format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ipex_assist.serve.backend import Finished, GenerationRequest, OutputChunk, TokenDelta
from ipex_assist.serve.draft_report import DraftCounts, report
from ipex_assist.serve.logprobs import Logprobs, TokenChoice
from ipex_assist.serve.protocol.common import Usage
from ipex_assist.serve.token_bytes import TokenBytes


@dataclass(frozen=True)
class TextDelta:
    """Newly released text of a choice, tokens if log-probabilities are requested, and its token deltas.

    drafted, accepted: tokens drafted for the pass, and those of them that were accepted.
    """

    text: str
    tokens: list[TokenChoice] = field(default_factory=list)
    token_deltas: list[TokenDelta] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    def draft(self, shown: list[str] | None = None) -> dict[str, Any]:
        """The object for `draft_details`. shown: what each token adds to the content, where that is not its text."""
        texts = [token_delta.text for token_delta in self.token_deltas] if shown is None else shown
        drafted = [token_delta.drafted for token_delta in self.token_deltas]
        token_deltas = [list(each) for each in zip(texts, drafted, strict=True)]
        return {"pieces": token_deltas, "drafted": self.drafted, "accepted": self.accepted}


@dataclass
class ChoiceText:
    """The text of one choice. tokens: released tokens with log-probabilities. new_tokens: output tokens so far."""

    index: int
    logprobs: Logprobs | None
    drafts: DraftCounts = field(default_factory=DraftCounts)
    tokens: list[TokenChoice] = field(default_factory=list)
    new_tokens: int = 0
    result: dict[str, Any] | None = None
    _shown: int = 0  # characters

    def take(self, chunk: OutputChunk) -> TextDelta:
        """Add a chunk."""
        self.drafts.count(chunk)
        self.new_tokens += len(chunk.token_deltas)
        text = "".join(token_delta.text for token_delta in chunk.token_deltas)
        self._shown += len(text)
        tokens = self.logprobs.push(chunk) if self.logprobs is not None else []
        self.tokens += tokens
        return TextDelta(text, tokens, chunk.token_deltas, chunk.drafted, chunk.accepted)

    def end(self, done: Finished) -> TextDelta:
        """Finish; returns what was held back."""
        self.result = done.result
        self.new_tokens = done.result["new_tokens"]
        tokens = self.logprobs.finish(done.result["stop_reason"]) if self.logprobs is not None else []
        self.tokens += tokens
        return TextDelta(done.result["text"][self._shown :], tokens)

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """OpenAI's finish reason of a finished choice."""
        assert self.result is not None
        return "length" if self.result["stop_reason"] in ("length", "context") else "stop"

    def report(self) -> dict[str, Any]:
        """Timings and draft statistics of this choice."""
        assert self.result is not None
        return report([self.result], self.drafts)


class ChoiceTexts:
    """The texts of all choices of a request. new_tokens: of all together so far. cached_tokens: of the prompt, that the
    prefix cache had for the first choice. reasoning_tokens: of the new ones, those of thoughts."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        prompt_tokens: int,
        token_texts: TokenBytes | None,
        *,
        shows_end: bool = False,
    ) -> None:
        """prompt_tokens: a prompt of several choices counts once. token_texts: set if log-probabilities are requested.
        shows_end: list the end-of-text token, too."""
        self.prompt_tokens, self.new_tokens = prompt_tokens, 0
        self.pictured = any(each.images for each in requests)  # the prompt has more tokens, which its result says
        self.cached_tokens = self.reasoning_tokens = 0
        self.all = [
            ChoiceText(
                index, None if token_texts is None else Logprobs(token_texts, bool(request.options.stop), shows_end)
            )
            for index, request in enumerate(requests)
        ]

    def __getitem__(self, index: int) -> ChoiceText:
        return self.all[index]

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage so far."""
        usage = Usage.of(self.prompt_tokens, self.new_tokens, self.reasoning_tokens)
        cached = {"cached_tokens": self.cached_tokens}
        return {**usage.model_dump(exclude_none=True), "prompt_tokens_details": cached}

    def report(self) -> dict[str, Any]:
        """Timings and draft statistics, summed over the choices."""
        counts = sum((text.drafts for text in self.all), DraftCounts())
        return report([text.result for text in self.all if text.result is not None], counts)
