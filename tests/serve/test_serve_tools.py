"""Tools over HTTP: into the chat template, out of the text, whole and streamed. The forms themselves: test_tools.py."""

from __future__ import annotations

import json

import pytest
from fake_backend import FakeBackend, tokenizer

pytestmark = pytest.mark.one_stack

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER], "max_tokens": 400}
CALLS = "".join(
    f'\n<tool_call>\n{{"name": "weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    for city in ("Bonn", "Köln")
)
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} calls: <tool_call>{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}{{ m.content }}{% endfor %}"
)


@pytest.fixture(autouse=True)
def calling(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose template knows tools, in the form of Hermes and Qwen, and which calls two."""
    monkeypatch.setattr(tokenizer(), "chat_template", TEMPLATE)
    backend.reset("Let me see." + CALLS, context_length=4096)


def called(calls: list[dict]) -> list[dict]:
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    assert {call["function"]["name"] for call in calls} <= {"weather"}
    return [json.loads(call["function"]["arguments"]) for call in calls]


def test_calls_whole_and_streamed(client, backend):
    (choice,) = client.post(CHAT, json=ASKED).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert called(choice["message"]["tool_calls"]) == [{"city": "Bonn"}, {"city": "Köln"}]
    assert "Of a city" in tokenizer().decode(backend.requests[0].tokens)
    assert backend.requests[0].grammar is None
    *chunks, done, _ = client.post(CHAT, json=ASKED | {"stream": True}).text.split("\n\n")
    assert done == "data: [DONE]"
    streamed = [json.loads(chunk.removeprefix("data: "))["choices"][0] for chunk in chunks]
    calls: list[dict] = []
    for delta in (call for each in streamed for call in each["delta"].get("tool_calls", [])):
        if "id" in delta:
            calls.append({**delta, "function": dict(delta["function"])})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    assert [call["index"] for call in calls] == [0, 1]
    assert called(calls) == [{"city": "Bonn"}, {"city": "Köln"}]
    assert "".join(each["delta"].get("content", "") for each in streamed) == "Let me see."
    assert streamed[-1]["finish_reason"] == "tool_calls"
    assert len(streamed) < 90  # a chunk a pass, not one a character


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_forced_calls_are_a_grammar(client, backend, choice):
    answer = client.post(CHAT, json=ASKED | {"tool_choice": choice})
    assert answer.status_code == 200
    assert backend.requests[0].grammar.kind == "lark"
    assert "weather" in backend.requests[0].grammar.value


def test_no_call(client, backend):
    backend.reply = "It is < 3 degrees."
    (choice,) = client.post(CHAT, json=ASKED).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", backend.reply)
    assert "tool_calls" not in choice["message"]
    backend.reply = "x" + CALLS
    (choice,) = client.post(CHAT, json=ASKED | {"tool_choice": "none"}).json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", backend.reply)
    (choice,) = client.post(CHAT, json=ASKED | {"parallel_tool_calls": False}).json()["choices"]
    assert called(choice["message"]["tool_calls"]) == [{"city": "Bonn"}]


def test_calls_and_their_answers_go_back(client, backend):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    turns = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = client.post(CHAT, json=ASKED | {"messages": [*ASKED["messages"], *turns]})
    assert answer.status_code == 200, answer.text
    assert tokenizer().decode(backend.requests[0].tokens).endswith("[user]Hi[assistant]Bonn[tool]sunny")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "other"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{"type": "web"}]}, "tools.0.type"),
        ({"tools": [WEATHER, WEATHER]}, "same name"),
        ({"tools": [], "tool_choice": "required"}, "no tools"),
    ],
)
def test_refusals(client, body, words):
    answer = client.post(CHAT, json=ASKED | body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_a_model_without_tools(client, monkeypatch):
    monkeypatch.setattr(tokenizer(), "chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    answer = client.post(CHAT, json=ASKED)
    assert answer.status_code == 400
    assert "no place for tools" in answer.json()["error"]["message"]
