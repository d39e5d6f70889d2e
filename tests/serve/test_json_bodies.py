"""Bodies of requests: bounded before they are parsed, and parsed where they stop nobody."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import Any

import httpx
import pytest
from fake_backend import VOCAB_SIZE
from msgspec import structs
from pydantic import TypeAdapter

from ipex_assist.env.options import TokenNumbers
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.protocol.chat import ChatRequest
from ipex_assist.serve.protocol.completions import CompletionRequest
from ipex_assist.serve.routes import json_bodies
from ipex_assist.serve.routes.json_bodies import MOST_OBJECTS, MOST_VALUES, SMALL, count_values, parse

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "a"}}
CALL = {"type": "function", "function": {"name": "a", "arguments": ""}}
FLAT = {"type": "function", "name": "a"}


def reason(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (CHAT, HI | {"tools": [TOOL] * 330_000}, "has 660,004 JSON objects and lists, and a request may have 65,536"),
        (CHAT, {"messages": HI["messages"] * 400_000}, "has 400,002 JSON objects and lists"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL] * 150_000}]}, "has 300,004 JSON objects"),
        (CHAT, HI | {"tools": [TOOL] * 1025}, "tools: has 1,025 items, and may have 1,024"),
        (CHAT, {"messages": HI["messages"] * 8193}, "messages: has 8,193 items, and may have 8,192"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL] * 1025}]}, "tool_calls: has 1,025 items"),
        ("/v1/responses", {"input": HI["messages"] * 8193}, "input: has 8,193 items, and may have 8,192"),
        ("/v1/responses", {"input": "a", "tools": [FLAT] * 1025}, "tools: has 1,025 items, and may have 1,024"),
        ("/tokenize", {"messages": HI["messages"] * 8193}, "messages: has 8,193 items, and may have 8,192"),
        (COMPLETIONS, {"prompt": [5] * 2_000_000}, "has 2,000,001 JSON values, and a request may have 1,048,576"),
        (COMPLETIONS, {"prompt": ["a"] * 129}, "prompt: has 129 items, and may have 128"),
    ],
)
def test_lists_are_bounded(client, backend, path, body, words):
    """With the numbers and the limit."""
    assert words in reason(client.post(path, content=json.dumps(body), headers={"content-type": "application/json"}))
    assert not backend.requests


def test_what_is_within_the_bounds_is_taken(client, backend):
    backend._facts = structs.replace(backend.facts, context_length=1_000_000)
    text = "[{,]}" * 40_000  # in a text they are no lists
    assert client.post("/tokenize", json={"messages": HI["messages"] * 8192}).status_code == 200
    assert client.post("/tokenize", json={"prompt": text}).json()["count"] > 40_000


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (ChatRequest, HI | {"tools": [TOOL] * 330_000}),
        (ChatRequest, {"messages": HI["messages"] * 400_000}),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [CALL] * 150_000}]}),
    ],
)
def test_refusing_costs_less_than_parsing(form, body):
    """Nothing is made of a list that is too long: all others would wait for it."""
    content, adapter = json.dumps(body).encode(), TypeAdapter(form)

    def seconds_of(work: Any) -> float:
        started = time.thread_time()  # other processes do not count
        work()
        return time.thread_time() - started

    def refuse() -> None:
        with pytest.raises(ApiError):
            parse(adapter, content)

    refusing, parsing = (min(map(seconds_of, [work] * 3)) for work in (refuse, lambda: json.loads(content)))
    assert refusing < 1.5 * parsing


def test_large_bodies_are_parsed_outside_the_event_loop(client, backend, monkeypatch):
    threads: dict[int, threading.Thread] = {}
    real = TokenNumbers.take

    def take(self: TokenNumbers, value: Any) -> dict[int, float]:
        threads.setdefault(len(value), threading.current_thread())
        return real(self, value)

    monkeypatch.setattr(TokenNumbers, "take", take)
    for count, size in ((1, 10), (2, SMALL)):
        biases = {str(token): 1 for token in range(count)}
        body = {"messages": [{"role": "user", "content": "Hi"}], "logit_bias": biases, "user": "a" * size}
        assert client.post(CHAT, json=body).status_code == 200
    assert threads[1] is not threads[2]


def test_values_are_counted_by_the_piece(monkeypatch):
    """As json finds them, wherever a piece ends: in a text, or behind a backslash."""
    draw = random.Random(0)

    def value(depth: int) -> Any:
        kind = draw.randrange(5 if depth else 2)
        if kind < 2:
            return "".join(draw.choices('a"\\{[,é', k=draw.randrange(6)))
        if kind == 2:
            return draw.randrange(100)
        if kind == 3:
            return [value(depth - 1) for _ in range(draw.randrange(5))]
        return {str(number): value(depth - 1) for number in range(draw.randrange(5))}

    def counted(made: Any) -> tuple[int, int]:
        """(objects and lists, commas and those)."""
        if not isinstance(made, (list, dict)):
            return 0, 0
        inner = [counted(each) for each in (made.values() if isinstance(made, dict) else made)]
        objects = 1 + sum(each for each, _ in inner)
        return objects, 1 + max(0, len(made) - 1) + sum(each for _, each in inner)

    monkeypatch.setattr(json_bodies, "MOST_OBJECTS", -1)
    for piece in (1, 2, 7, 1000):
        monkeypatch.setattr(json_bodies, "PIECE", piece)
        for _ in range(100):
            made = value(4)
            assert count_values(json.dumps(made, ensure_ascii=draw.random() < 0.5).encode()) == counted(made)


def test_bounds_leave_room():
    """For what requests have: long prompts of token ids, hundreds of tools, biases of a whole small vocabulary."""
    ids = json.dumps({"prompt": [5] * 1_000_000}).encode()
    parse(TypeAdapter(CompletionRequest), ids)
    schema = {"type": "object", "properties": {str(number): {"type": "integer"} for number in range(20)}}
    tools = [{"type": "function", "function": {"name": f"a{i}", "parameters": schema}} for i in range(1024)]
    parse(TypeAdapter(ChatRequest), json.dumps(HI | {"tools": tools}).encode())
    assert MOST_OBJECTS < MOST_VALUES
    assert VOCAB_SIZE < MOST_OBJECTS
