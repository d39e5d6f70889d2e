"""Answers of /v1/messages, Anthropic's API: blocks of thinking, text and calls, whole or as events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from ipex_assist.serve.answers.choice_texts import ChoiceText, ChoiceTexts, TextDelta
from ipex_assist.serve.answers.message_builder import MessageBuilder
from ipex_assist.serve.answers.writer import Writer, event
from ipex_assist.serve.errors import MESSAGES, ApiError
from ipex_assist.serve.protocol.common import new_id
from ipex_assist.serve.service import Service
from ipex_assist.serve.tools import CallDelta, OutputForm, ParsedEvent, Thought


class AnswerBlocks:
    """The blocks of an answer, in order, and their events: each begins, grows and stops before the next one begins."""

    def __init__(self, *, shows_thoughts: bool = True) -> None:
        """shows_thoughts: whether blocks of thinking have their text; without it there is only word that it was."""
        self._shows_thoughts = shows_thoughts
        self._blocks: list[dict[str, Any]] = []
        self._arguments = ""  # of the last block, if it is a call
        self._open = False

    def take(self, parsed: ParsedEvent) -> Iterator[str]:
        """Events of a thought, of text, or of a call."""
        if isinstance(parsed, Thought):
            text = parsed.text if self._shows_thoughts else ""
            yield from self._grow({"type": "thinking", "thinking": "", "signature": ""}, "thinking", text)
        elif isinstance(parsed, CallDelta):
            yield from self._call(parsed)
        elif parsed and (parsed.strip() or self._is_last("text")):  # space around calls is no block
            yield from self._grow({"type": "text", "text": ""}, "text", parsed)

    def end(self) -> Iterator[str]:
        """Events of the end; an answer has at least one block."""
        if not self._blocks:
            yield from self._begin({"type": "text", "text": ""})
        yield from self._stop()

    def form(self) -> list[dict[str, Any]]:
        """All blocks, when they have ended."""
        return self._blocks

    def _is_last(self, kind: str) -> bool:
        return self._open and self._blocks[-1]["type"] == kind

    def _grow(self, empty: dict[str, Any], name: str, text: str) -> Iterator[str]:
        if not self._is_last(empty["type"]):
            yield from self._begin(empty)
        if text:
            self._blocks[-1][name] += text
            yield self._event("delta", delta={"type": f"{name}_delta", name: text})

    def _call(self, call: CallDelta) -> Iterator[str]:
        if call.id is not None:
            number = call.id.removeprefix("call_")
            yield from self._begin({"type": "tool_use", "id": f"toolu_{number}", "name": call.name, "input": {}})
            self._arguments = ""
        self._arguments += call.arguments
        if call.arguments:
            yield self._event("delta", delta={"type": "input_json_delta", "partial_json": call.arguments})

    def _begin(self, empty: dict[str, Any]) -> Iterator[str]:
        yield from self._stop()
        self._blocks.append(dict(empty))
        self._open = True
        yield self._event("start", content_block=empty)

    def _stop(self) -> Iterator[str]:
        if not self._open:
            return
        if self._is_last("tool_use"):
            self._blocks[-1]["input"] = _object(self._arguments)
        elif self._is_last("thinking"):
            yield self._event("delta", delta={"type": "signature_delta", "signature": ""})
        yield self._event("stop")
        self._open = False

    def _event(self, name: str, **fields: Any) -> str:
        kind = f"content_block_{name}"
        return event({"type": kind, "index": len(self._blocks) - 1, **fields}, kind)


def _object(arguments: str) -> dict[str, Any]:
    """The arguments of a call, which a model that is not held to a schema may have left unfinished."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


class MessagesWriter(Writer):
    """Writes a message."""

    def __init__(self, service: Service, texts: ChoiceTexts, form: OutputForm, *, shows_thoughts: bool = True) -> None:
        """form: how thoughts and calls are found. shows_thoughts: see AnswerBlocks."""
        super().__init__(texts)
        self._turn = MessageBuilder(form.reader())
        self._blocks = AnswerBlocks(shows_thoughts=shows_thoughts)
        self._head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": service.facts.name}

    def _usage(self) -> dict[str, Any]:
        read, cached = self.texts.prompt_tokens, self.texts.cached_tokens
        counts = {"input_tokens": read - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
        thought = self._turn.reasoning_tokens
        details = {"output_tokens_details": {"thinking_tokens": thought}} if thought else {}
        return {**counts, "output_tokens": self.texts.new_tokens, **details}

    def begin(self) -> Iterator[str]:
        """The event of the empty message, and a ping, as clients know them."""
        empty: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        yield event({"type": "message_start", "message": empty}, "message_start")
        yield self.keep_alive()

    def keep_alive(self) -> str:
        """A ping: clients count events, and a comment is none."""
        return event({"type": "ping"}, "ping")

    def grown(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Events of thoughts, text and calls; none while everything is held back."""
        for parsed in self._turn.grow(text_delta):
            yield from self._blocks.take(parsed)

    def ended(self, text: ChoiceText, text_delta: TextDelta) -> Iterator[str]:
        """Events of the rest, and of the last block's end."""
        yield from self.grown(text, text_delta)
        for parsed in self._turn.finish():
            yield from self._blocks.take(parsed)
        yield from self._blocks.end()

    def _ending(self) -> dict[str, Any]:
        text = self.texts[0]
        assert text.result is not None
        if text.finish_reason == "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if (stop := text.result["stop_text"]) is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": "tool_use" if self._turn.called else "end_turn", "stop_sequence": None}

    def end(self) -> Iterator[str]:
        """The events of how it ended, with timings and draft statistics beside the usage."""
        ending = {"type": "message_delta", "delta": self._ending(), "usage": self._usage(), **self.texts.report()}
        yield event(ending, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def whole(self) -> dict[str, Any]:
        """AnsweredMessage."""
        content = {"content": self._blocks.form(), **self._ending(), "usage": self._usage()}
        return {**self._head, **content, **self.texts.report()}

    def failed(self, error: ApiError) -> Iterator[str]:
        """The last event of a stream that fails, in Anthropic's form."""
        yield event(error.anthropic_body(), "error")

    def refusal(self, error: ApiError) -> Response:
        """The response to a request that failed before anything was sent, in Anthropic's form."""
        return error.response(MESSAGES)
