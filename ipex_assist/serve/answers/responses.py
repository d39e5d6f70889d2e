"""Answers of /v1/responses, and those that are kept so that others can follow them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ipex_assist.serve.answers.texts import GrowingText, Growth, Texts
from ipex_assist.serve.answers.writer import Writer, compact, event
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.logprobs import chat_form
from ipex_assist.serve.protocol.common import OPENAI, new_id, now
from ipex_assist.serve.protocol.responses import ResponsesRequest
from ipex_assist.serve.service import Service

MOST_KEPT = 1024  # answers; the longest unused go first
MOST_CHARACTERS = 64 << 20  # of these and their conversations

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Kept:
    """An answer with the turns of its conversation, its own as the last."""

    response: dict[str, Any]
    messages: Messages

    @cached_property
    def size(self) -> int:
        """Characters of the answer and of all turns."""
        return len(compact(self.response)) + sum(len(message["content"]) for message in self.messages)


class KeptResponses:
    """Answers by their ids, in memory, at most so many of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._size = 0

    def keep(self, kept: Kept) -> None:
        """Take one in, and let go of those that nobody has asked for the longest."""
        self._kept[kept.response["id"]] = kept
        self._size += kept.size
        while self._kept and (len(self._kept) > MOST_KEPT or self._size > MOST_CHARACTERS):
            _, gone = self._kept.popitem(last=False)
            self._size -= gone.size

    def find(self, name: str, param: str | None = None) -> Kept:
        """The answer of this id; 404 where it is not kept, or not any more."""
        if name not in self._kept:
            raise ApiError(
                404,
                f"no answer {name[:100]!r} is kept: only the latest are, in memory, unless asked with store=false",
                param=param,
                code="previous_response_not_found" if param else None,
            )
        self._kept.move_to_end(name)
        return self._kept[name]

    def forget(self, name: str) -> None:
        """Let go of one; 404 where there is none."""
        self._size -= self.find(name).size
        del self._kept[name]


class ResponseWriter(Writer):
    """One text, as a response of one message."""

    def __init__(self, service: Service, texts: Texts, body: ResponsesRequest, kept: Callable[[dict], None]) -> None:
        """kept: called with the whole answer at its end."""
        super().__init__(texts)
        self._service, self._kept = service, kept
        self._number = 0
        self._message = new_id("msg_")
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
            "parallel_tool_calls": True,
            "store": body.store is not False,
            "temperature": OPENAI["temperature"] if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"} if format_ is None else format_.model_dump(by_alias=True)},
            "tool_choice": "auto",
            "tools": [],
            "top_p": OPENAI["top_p"] if body.top_p is None else body.top_p,
            "truncation": "disabled",
        }

    def _event(self, name: str, **fields: Any) -> str:
        number, self._number = self._number, self._number + 1
        return event({"type": name, "sequence_number": number, **fields}, name)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message, "output_index": 0, "content_index": 0}

    def _logprobs(self, growth: Growth) -> list[dict[str, Any]]:
        return chat_form(growth.tokens, self._service.token_texts) if growth.tokens else []

    def _part(self) -> dict[str, Any]:
        text = self.texts[0]
        listed = chat_form(text.tokens, self._service.token_texts) if text.tokens else []
        shown = "" if text.result is None else text.result["text"]
        return {"type": "output_text", "text": shown, "annotations": [], "logprobs": listed}

    def _item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        return {"type": "message", "id": self._message, "status": status, "role": "assistant", "content": content}

    @property
    def _status(self) -> str:
        return "incomplete" if self.texts[0].finish_reason == "length" else "completed"

    def begin(self) -> Iterator[str]:
        """The response, its message and its text, as yet empty."""
        empty = {**self._head, "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", response=empty)
        yield self._event("response.in_progress", response=empty)
        yield self._event("response.output_item.added", output_index=0, item=self._item("in_progress"))
        yield self._event("response.content_part.added", **self._place(), part=self._part())

    def grown(self, text: GrowingText, growth: Growth) -> Iterator[str]:
        """Some text, unless all is held back."""
        if growth.text or growth.tokens:
            logprobs = self._logprobs(growth)
            yield self._event("response.output_text.delta", **self._place(), delta=growth.text, logprobs=logprobs)

    def ended(self, text: GrowingText, growth: Growth) -> Iterator[str]:
        """The text, its part and its message as a whole."""
        yield from self.grown(text, growth)
        part = self._part()
        done = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._event("response.output_text.done", **self._place(), **done)
        yield self._event("response.content_part.done", **self._place(), part=part)
        yield self._event("response.output_item.done", output_index=0, item=self._item(self._status))

    def end(self) -> Iterator[str]:
        """The whole answer."""
        yield self._event(f"response.{self._status}", response=self.whole())

    def whole(self) -> dict[str, Any]:
        """ModelResponse; it is kept from now on."""
        usage = self.texts.usage()
        response = {
            **self._head,
            "status": self._status,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "output": [self._item(self._status)],
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
            **self.texts.report(),
        }
        self._kept(response)
        return response

    def failed(self, error: ApiError) -> Iterator[str]:
        """The response without an answer."""
        said = {"code": error.code or "server_error", "message": error.message}
        response = {**self._head, "status": "failed", "output": [], "usage": None, "error": said}
        yield self._event("response.failed", response=response)
