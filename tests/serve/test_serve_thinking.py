"""Thoughts over HTTP: apart from answers in every API, streamed or not, and back into the prompt of the next turn."""

from __future__ import annotations

import json
from typing import Any

import fake_backend
import httpx
import pytest
from fake_backend import FakeBackend, tokenizer

pytestmark = pytest.mark.one_stack

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n"
    "</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{{ reasoning_effort or '' }}{{ other or '' }}"
)
REPLY = "<think>\nWhere is it?\n</think>\n\nRome."
ASKED = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def thinking(monkeypatch: pytest.MonkeyPatch, backend: FakeBackend) -> FakeBackend:
    monkeypatch.setattr(fake_backend.tokenizer(), "chat_template", TEMPLATE)
    backend.reset(REPLY, context_length=4096)
    return backend


def chat(client: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json={"messages": ASKED, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def prompt(backend: FakeBackend) -> str:
    return str(tokenizer().decode(backend.requests[-1].tokens))


def test_chat(client: httpx.Client, thinking: FakeBackend) -> None:
    answer = chat(client)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Rome.", "Where is it?")
    assert message["reasoning"] == message["reasoning_content"]
    usage = answer["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_chat_streamed(client: httpx.Client, thinking: FakeBackend) -> None:
    body = {"messages": ASKED, "stream": True, "stream_options": {"include_usage": True}}
    lines = client.post("/v1/chat/completions", json=body).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Rome."
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Where is it?"
    assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_responses(client: httpx.Client, thinking: FakeBackend, stream: bool) -> None:
    answer = client.post("/v1/responses", json={"input": "Hi", "stream": stream})
    if stream:
        events = [json.loads(each.split("\ndata: ")[1]) for each in answer.text.strip().split("\n\n")]
        said = [each["delta"] for each in events if each["type"] == "response.reasoning_text.delta"]
        assert "".join(said) == "Where is it?"
        response = events[-1]["response"]
    else:
        response = answer.json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"][0]["text"] == "Where is it?"
    assert response["output"][1]["content"][0]["text"] == "Rome."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_earlier_thoughts_reach_the_template(client: httpx.Client, thinking: FakeBackend) -> None:
    for name in ("reasoning_content", "reasoning"):
        turn = {"role": "assistant", "content": "So.", name: "Hm"}
        chat(client, messages=[*ASKED, turn, *ASKED])
        assert "<think>\nHm\n</think>\n\nSo." in prompt(thinking)


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({}, "assistant\n"),
        ({"enable_thinking": False}, "</think>\n\n"),
        ({"thinking": {"type": "disabled"}}, "</think>\n\n"),
        ({"thinking": False}, "</think>\n\n"),
        ({"reasoning_effort": "none"}, "</think>\n\n"),
        ({"reasoning_effort": "low"}, "assistant\nlow"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "</think>\n\n"),
        ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, "assistant\n"),
        ({"chat_template_kwargs": {"other": "x", "messages": [], "tools": 1}}, "assistant\nx"),
    ],
)
def test_switches(client: httpx.Client, thinking: FakeBackend, body: dict[str, Any], end: str) -> None:
    """All clients' ways to say whether a model thinks come to the variables of its template."""
    chat(client, **body)
    assert prompt(thinking).endswith(end)
