"""Servers with everything on, by serve_everything.py: a little of it, and what it finds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("httpx")
pytest.importorskip("llguidance")
pytest.importorskip("cryptography")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

import httpx
import serve_everything
from conftest import HAS_NATIVE
from everything_requests import (
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCALES,
    StreamReader,
    all_kinds,
    asking,
    compared,
)
from everything_servers import EverythingFlags
from serve_clients import CHAT, COMPLETIONS

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")]


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("one", 6),
        *(pytest.param(name, seconds, marks=pytest.mark.full) for name, seconds in (("many", 40), ("one", 60))),
    ],
)
def test_a_short_one(name: str, seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong answer, one that never comes, a server that is silent for seconds, or has more and more of something."""
    words = ["--servers", name, "--seconds", str(seconds), "--concurrency", "8", "--json", str(tmp_path / "found")]
    code = serve_everything.main(serve_everything.parse([*words, "--light", "20"]))
    assert code == 0, capsys.readouterr().out
    found = json.loads((tmp_path / "found").read_text())["servers"][name]
    assert found["requests"] > 2  # on a machine that has other work


ONE = EverythingFlags([], ("base",))


def load_of(expected: str, *answers: httpx.Response) -> serve_everything.Everything:
    """A load with one request whose answer is known, on a server that answers so."""
    load = serve_everything.Everything(None, ONE, serve_everything.parse([]))  # type: ignore[arg-type]
    load._asked = [asking("completions", COMPLETIONS, {"prompt": "a"})]
    load._expected = [[[[expected, [], "stop", ""]]]]
    told = iter(answers)
    load._client = httpx.AsyncClient(base_url="http://a", transport=httpx.MockTransport(lambda request: next(told)))
    return load


def whole(text: str) -> httpx.Response:
    return httpx.Response(200, json={"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]})


def streamed(text: str, end: str = "data: [DONE]\n\n") -> httpx.Response:
    parts = [{"index": 0, "text": each, "finish_reason": None} for each in text] + [
        {"index": 0, "text": "", "finish_reason": "stop"}
    ]
    return httpx.Response(200, text="".join(f"data: {json.dumps({'choices': [each]})}\n\n" for each in parts) + end)


@pytest.mark.parametrize(
    ("stream", "answer", "words"),
    [
        (False, whole("ab"), None),
        (True, streamed("ab"), None),
        (False, whole("ac"), "instead of"),
        (True, streamed("ac"), "instead of"),
        (True, streamed("ab", ""), "breaks off"),
        (False, httpx.Response(500, json={"error": {}}), "500"),
    ],
)
def test_a_wrong_answer_is_found(stream: bool, answer: httpx.Response, words: str | None) -> None:
    """And one that breaks off, or is an error."""
    load = load_of("ab", answer)
    load._chance = mock.Mock(randrange=lambda count: 0, random=lambda: 0.0 if stream else 1.0, choice=lambda of: of[0])
    asyncio.run(load._noted(load._compare))
    assert (words is None) == (not load.complaints), load.complaints
    assert words is None or words in load.complaints[0]


@pytest.mark.parametrize(
    ("status", "message", "found"),
    [(404, "there is no model 'nobody' here", False), (400, "there is no model 'nobody' here", True), (404, "?", True)],
)
def test_a_wrong_error_is_found(status: int, message: str, found: bool) -> None:
    """By its status, and by its words."""
    error = {"message": message, "type": "a", "param": None, "code": None}
    load = load_of("", httpx.Response(status, json={"error": error}))
    load._chance = mock.Mock(choice=lambda of: of[0])
    asyncio.run(load._noted(load._wrong))
    assert bool(load.complaints) == found


def test_streams_say_what_whole_answers_say() -> None:
    """Of each API; ids differ, and do not count."""
    call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": '{"a"'}}
    chunks = [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "t"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
                      "finish_reason": "tool_calls"}]},
    ]  # fmt: skip
    message = {
        "content": "x",
        "reasoning_content": "t",
        "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    assert read(CHAT, chunks, done=True) == compared(CHAT, answer)
    blocks = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"thinking": "t"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "1", "name": "f"}},
        {"type": "content_block_delta", "index": 1, "delta": {"partial_json": '{"a": 1}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": "t"}]
    content += [{"type": "tool_use", "id": "2", "name": "f", "input": {"a": 1}}]
    assert read(MESSAGES, blocks) == compared(MESSAGES, {"content": content, "stop_reason": "tool_use"})
    response = {"output": [{"type": "message", "content": [{"text": "x"}]}]}
    completed = [{"type": "response.completed", "response": response}]
    assert read(RESPONSES, completed) == compared(RESPONSES, response)


def read(path: str, events: list[dict[str, Any]], done: bool = False) -> Any:
    reader = StreamReader(path)
    for event in events:
        assert not reader.ended
        reader.line(f"data: {json.dumps(event)}")
    if done:
        reader.line("data: [DONE]")
    assert reader.ended
    return reader.value


def test_every_kind_is_asked_for() -> None:
    """Alike for a seed; the adapter whose scale changes has an answer for each."""
    many = EverythingFlags([], ("base",), ("a", "b"), vectors=True, scores=True)
    asked = all_kinds(many, 3)
    assert asked == all_kinds(many, 3)
    assert {each.path for each in asked} == {COMPLETIONS, CHAT, MESSAGES, RESPONSES, EMBEDDINGS, RERANK}
    assert {len(each.alone) for each in asked} == {1, len(SCALES)}
    assert all(body.get("assisted") is False for each in asked if each.streams for body in each.alone)
