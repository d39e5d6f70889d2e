"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.serve.answers.choice_texts import ChoiceText, ChoiceTexts, TextDelta
from ipex_assist.serve.answers.writer import ChunkWriter
from ipex_assist.serve.logprobs import TokenChoice, completion_form, token_choice
from ipex_assist.serve.protocol.completions import CompletionRequest
from ipex_assist.serve.service import Service

OBJECT = "text_completion"


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt that is repeated before its completion."""

    text: str
    tokens: list[int]


class CompletionWriter(ChunkWriter):
    """Writes text completions, with log-probabilities if requested."""

    def __init__(
        self,
        service: Service,
        texts: ChoiceTexts,
        body: CompletionRequest,
        echoed: Sequence[EchoedPrompt] | None = None,
    ) -> None:
        """echoed: the prompt of each choice, if prompts are to be repeated."""
        super().__init__(service, texts, "cmpl-", OBJECT, body.stream_options)
        self._echoed = echoed
        self._service, self._top, self._details = service, body.logprobs, bool(body.draft_details)
        self._offsets = [0] * len(texts.all)

    def begin(self) -> Iterator[str]:
        """The echoed prompts."""
        for text, echoed in zip(self.texts.all, self._echoed or (), strict=False):
            yield self.chunk(self._choice(text, TextDelta(echoed.text), None))

    def grown(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """A chunk; none while everything is held back."""
        if text_delta.text or text_delta.tokens or self._details:
            yield self.chunk(self._choice(text, text_delta, None))

    def ended(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """The last chunk of a choice."""
        yield self.chunk(self._choice(text, text_delta, text.finish_reason), **self.report_of(text))

    def _choice(self, text: ChoiceText, text_delta: TextDelta, reason: str | None) -> dict[str, Any]:
        offset = self._offsets[text.index]
        logprobs = self._logprobs(text_delta.tokens, offset) if text_delta.tokens else None
        self._offsets[text.index] += sum(len(token) for token in (logprobs or {}).get("tokens", []))
        choice: dict[str, Any] = {"index": text.index, "text": text_delta.text, "logprobs": logprobs}
        if self._details and text_delta.token_deltas:
            choice["draft"] = text_delta.draft()
        return {**choice, "finish_reason": reason}

    def _logprobs(self, tokens: list[TokenChoice], offset: int) -> dict[str, Any]:
        return completion_form(tokens, self._service.token_texts, offset, self._top or 0)

    def _with_prompt(self, text: ChoiceText, echoed: EchoedPrompt) -> dict[str, Any] | None:
        if self._top is None:
            return None
        assert text.result is not None
        texts = self._service.token_texts
        listed = msgspec.convert(text.result["prompt_logprobs"] or [], list[TokenLogprob])
        prompt = [token_choice(each, texts) for each in listed]
        return completion_form([*prompt, *text.tokens], texts, 0, self._top, echoed.tokens[0])

    def whole(self) -> dict[str, Any]:
        """The completion as one object."""
        choices = []
        for text in self.texts.all:
            assert text.result is not None
            logprobs = None if self._top is None else self._logprobs(text.tokens, 0)
            prompt = ""
            if self._echoed is not None:
                prompt = self._echoed[text.index].text
                logprobs = self._with_prompt(text, self._echoed[text.index])
            choices.append(
                {
                    "index": text.index,
                    "text": prompt + text.result["text"],
                    "logprobs": logprobs,
                    "finish_reason": text.finish_reason,
                }
            )
        return self.completed(OBJECT, choices)
