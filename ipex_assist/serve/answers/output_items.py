"""Output items of /v1/responses: reasoning, messages and tool calls in order, and their stream events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeAlias

from ipex_assist.serve.answers.choice_texts import TextDelta
from ipex_assist.serve.answers.message_builder import MessageBuilder
from ipex_assist.serve.logprobs import TokenChoice, chat_form
from ipex_assist.serve.protocol.common import new_id
from ipex_assist.serve.token_bytes import TokenBytes
from ipex_assist.serve.tools import CallDelta, ParsedEvent, Thought

ItemEvent: TypeAlias = "tuple[str, dict[str, Any]]"  # an event's name without "response.", and its fields


class OutputItem(ABC):
    """One output item. index: its position in the output."""

    def __init__(self, prefix: str, index: int) -> None:
        self.id, self.index = new_id(prefix), index

    def begin(self) -> Iterator[ItemEvent]:
        """Events of its start."""
        yield "output_item.added", {"output_index": self.index, "item": self.form("in_progress")}

    def end(self, status: str) -> Iterator[ItemEvent]:
        """Events of its end."""
        yield "output_item.done", {"output_index": self.index, "item": self.form(status)}

    @abstractmethod
    def form(self, status: str) -> dict[str, Any]:
        """The item as a JSON object."""


class MessageItem(OutputItem):
    """A message with text."""

    def __init__(self, index: int, texts: TokenBytes | None) -> None:
        super().__init__("msg_", index)
        self._texts, self._text = texts, ""
        self._tokens: list[TokenChoice] = []

    def form(self, status: str) -> dict[str, Any]:
        """OutputMessage."""
        content = [] if status == "in_progress" else [self._part()]
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text, "annotations": [], "logprobs": self._listed(self._tokens)}

    def _listed(self, tokens: list[TokenChoice]) -> list[dict[str, Any]]:
        return [] if self._texts is None else chat_form(tokens, self._texts)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def begin(self) -> Iterator[ItemEvent]:
        """Events of its start, and of its text's."""
        yield from super().begin()
        yield "content_part.added", {**self._place(), "part": self._part()}

    def grow(self, text: str, tokens: list[TokenChoice]) -> Iterator[ItemEvent]:
        """Append text, and tokens with log-probabilities."""
        self._text += text
        self._tokens += tokens
        if text or tokens:
            yield "output_text.delta", {**self._place(), "delta": text, "logprobs": self._listed(tokens)}

    def end(self, status: str) -> Iterator[ItemEvent]:
        """Events of its text's end, and of its own."""
        part = self._part()
        yield "output_text.done", {**self._place(), "text": part["text"], "logprobs": part["logprobs"]}
        yield "content_part.done", {**self._place(), "part": part}
        yield from super().end(status)


class ReasoningItem(OutputItem):
    """What the model thought, as it is and not as a summary."""

    def __init__(self, index: int) -> None:
        super().__init__("rs_", index)
        self._text = ""

    def form(self, status: str) -> dict[str, Any]:
        """OutputReasoning."""
        content = [] if status == "in_progress" else [self._part()]
        return {"type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content}

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self._text}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def grow(self, text: str) -> Iterator[ItemEvent]:
        """Append text."""
        self._text += text
        yield "reasoning_text.delta", {**self._place(), "delta": text}

    def end(self, status: str) -> Iterator[ItemEvent]:
        """Events of its text's end, and of its own."""
        yield "reasoning_text.done", {**self._place(), "text": self._text}
        yield from super().end(status)


class CallItem(OutputItem):
    """A function call."""

    def __init__(self, index: int, first: CallDelta) -> None:
        super().__init__("fc_", index)
        self._call = replace(first, arguments="")

    def form(self, status: str) -> dict[str, Any]:
        """OutputCall."""
        call = self._call
        named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        return {"type": "function_call", "id": self.id, **named, "status": status}

    def grow(self, arguments: str) -> Iterator[ItemEvent]:
        """Append to the arguments."""
        self._call = replace(self._call, arguments=self._call.arguments + arguments)
        if arguments:
            place = {"item_id": self.id, "output_index": self.index}
            yield "function_call_arguments.delta", {**place, "delta": arguments}

    def end(self, status: str) -> Iterator[ItemEvent]:
        """Events of the arguments' end, and of its own."""
        whole = {"name": self._call.name, "arguments": self._call.arguments}
        yield "function_call_arguments.done", {"item_id": self.id, "output_index": self.index, **whole}
        yield from super().end(status)


class ResponseOutput:
    """All output items of a response. texts: set if log-probabilities are requested.

    Log-probabilities cover the text before the first call only: the format has no place for tokens of thoughts and
    calls, and text after a call need not start at a token boundary.
    """

    def __init__(self, turn: MessageBuilder, texts: TokenBytes | None) -> None:
        self._turn, self._texts = turn, texts
        self._items: list[OutputItem] = []
        self._called = False  # whether there is a call
        self._waiting: list[TokenChoice] = []
        self._room = 0  # bytes of text released before their tokens

    def form(self, status: str) -> list[dict[str, Any]]:
        """All items as JSON objects. status: of the last item; the others are completed."""
        last = len(self._items) - 1
        return [item.form(status if item.index == last else "completed") for item in self._items]

    def grow(self, text_delta: TextDelta) -> Iterator[ItemEvent]:
        """Events of newly released text and calls."""
        self._waiting += text_delta.tokens
        for event in self._turn.grow(text_delta):
            yield from self._take(event)
        if self._is_plain and self._waiting:
            yield from self._say("", self._all_tokens())

    def end(self, status: str) -> Iterator[ItemEvent]:
        """Events of the end. A response has at least one item."""
        for event in self._turn.finish():
            yield from self._take(event)
        if not self._called and not (self._items and isinstance(self._items[-1], ReasoningItem)):
            yield from self._say("", self._all_tokens())
        yield from self._items[-1].end(status)

    @property
    def _is_plain(self) -> bool:
        """Whether every token is of the text."""
        return self._turn.reader is None

    def _take(self, event: ParsedEvent) -> Iterator[ItemEvent]:
        if isinstance(event, Thought):
            self._waiting, self._room = [], 0
            if not self._items or not isinstance(self._items[-1], ReasoningItem):
                yield from self._open(ReasoningItem(len(self._items)))
            item = self._items[-1]
            assert isinstance(item, ReasoningItem)
            yield from item.grow(event.text)
            return
        if isinstance(event, str):
            self._room += len(event.encode())
            yield from self._say(event, self._all_tokens() if self._is_plain else self._told_tokens())
            return
        if event.id is not None:
            if self._items and isinstance(self._items[-1], MessageItem) and not self._called:
                # A token may hold the end of the text and the start of the call: cut it to the text.
                rest = [*self._told_tokens(), *(token.cut(self._room) for token in self._waiting[:1] if self._room > 0)]
                yield from self._say("", rest)
            self._called = True
            yield from self._open(CallItem(len(self._items), event))
        call = self._items[-1]
        assert isinstance(call, CallItem)
        yield from call.grow(event.arguments)

    def _say(self, text: str, tokens: list[TokenChoice]) -> Iterator[ItemEvent]:
        message = self._items[-1] if self._items else None
        if not isinstance(message, MessageItem):
            message = MessageItem(len(self._items), self._texts)
            yield from self._open(message)
        yield from message.grow(text, tokens)

    def _all_tokens(self) -> list[TokenChoice]:
        tokens, self._waiting = self._waiting, []
        return tokens

    def _told_tokens(self) -> list[TokenChoice]:
        """Tokens whose text was released."""
        tokens: list[TokenChoice] = []
        while self._waiting and 0 < self._room >= self._waiting[0].shown and not self._called:
            tokens.append(self._waiting.pop(0))
            self._room -= tokens[-1].shown
        return tokens

    def _open(self, item: OutputItem) -> Iterator[ItemEvent]:
        if self._items:
            yield from self._items[-1].end("completed")
        self._items.append(item)
        yield from item.begin()
