"""Answers of /v1/responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ipex_assist.serve.answers.choice_texts import ChoiceText, ChoiceTexts, TextDelta
from ipex_assist.serve.answers.message_builder import MessageBuilder
from ipex_assist.serve.answers.output_items import ItemEvent, ResponseOutput
from ipex_assist.serve.answers.writer import Writer, event
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.protocol.common import new_id, now
from ipex_assist.serve.protocol.responses import ResponsesRequest
from ipex_assist.serve.service import Service
from ipex_assist.serve.tools import OutputForm
from ipex_assist.speculative.options import GenerationOptions


class ResponseWriter(Writer):
    """Writes a response of messages and function calls."""

    def __init__(
        self,
        service: Service,
        texts: ChoiceTexts,
        body: ResponsesRequest,
        options: GenerationOptions,
        kept: Callable[[dict[str, Any], dict[str, Any]], None],
        form: OutputForm,
    ) -> None:
        """kept: called at the end with the response, and the model's output as a message. form: how thoughts and
        calls are found."""
        super().__init__(texts)
        self._kept, self._number = kept, 0
        self._turn = MessageBuilder(form.reader())
        self._output = ResponseOutput(self._turn, None if body.wanted_logprobs is None else service.token_texts)
        format_ = body.text.format if body.text is not None else None
        given = body.model_dump(include={"instructions", "previous_response_id", "max_output_tokens", "metadata"})
        self._head: dict[str, Any] = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": now(),
            "model": service.facts.name,
            **given,
            "error": None,
            "incomplete_details": None,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "store": body.store is not False,
            "temperature": options.temperature,
            "text": {"format": {"type": "text"} if format_ is None else format_.model_dump(by_alias=True)},
            "tool_choice": body.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": [tool.model_dump() for tool in body.functions],
            "top_p": options.top_p,
            "truncation": "disabled",
        }

    def _event(self, name: str, fields: dict[str, Any]) -> str:
        name, number = f"response.{name}", self._number
        self._number += 1
        return event({"type": name, "sequence_number": number, **fields}, name)

    def _events(self, told: Iterator[ItemEvent]) -> Iterator[str]:
        for name, fields in told:
            yield self._event(name, fields)

    @property
    def _status(self) -> str:
        return "incomplete" if self.texts[0].finish_reason == "length" else "completed"

    def begin(self) -> Iterator[str]:
        """The events of the empty response."""
        empty = {**self._head, "status": "in_progress", "output": [], "usage": None}
        yield self._event("created", {"response": empty})
        yield self._event("in_progress", {"response": empty})

    def grown(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Events of text and calls; none while everything is held back."""
        yield from self._events(self._output.grow(text_delta))

    def ended(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Events of the rest, and of the last item's end."""
        yield from self._events(self._output.grow(text_delta))
        yield from self._events(self._output.end(self._status))

    def end(self) -> Iterator[str]:
        """The final event, with the whole response."""
        yield self._event(self._status, {"response": self.whole()})

    def whole(self) -> dict[str, Any]:
        """ModelResponse; passed to `kept`."""
        usage = self.texts.usage()
        response = {
            **self._head,
            "status": self._status,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "output": self._output.form(self._status),
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": self.texts.cached_tokens},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._turn.reasoning_tokens},
                "total_tokens": usage["total_tokens"],
            },
            **self.texts.report(),
        }
        message = self._turn.message()
        self._kept(response, {"role": "assistant", **message, "content": message["content"] or ""})
        return response

    def failed(self, error: ApiError) -> Iterator[str]:
        """The event of a failed response."""
        said = {"code": error.code or "server_error", "message": error.message}
        response = {**self._head, "status": "failed", "output": [], "usage": None, "error": said}
        yield self._event("failed", {"response": response})
