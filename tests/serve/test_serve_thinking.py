"""Thoughts over HTTP: apart from answers in every API, streamed or not, and back into the prompt of the next turn."""

from __future__ import annotations

import json
from typing import Any

import fake_backend
import httpx
import msgspec
import pytest
from fake_backend import FakeBackend, tokenizer

from ipex_assist.serve import streaming
from ipex_assist.speculative.choosing.grammar import GrammarSpec, ThoughtSpec

pytestmark = pytest.mark.one_stack

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALLS = (
    "{% if tools %}{{ tools }}{% endif %}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}<think>\n"
)
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


@pytest.mark.parametrize("stream", [False, True])
def test_messages_count_thoughts(client: httpx.Client, thinking: FakeBackend, stream: bool) -> None:
    """Under Anthropic's name for it; of a stream, at its end."""
    answer = client.post("/v1/messages", json={"messages": ASKED, "max_tokens": 50, "stream": stream})
    if stream:
        events = [json.loads(each.split("\ndata: ")[1]) for each in answer.text.strip().split("\n\n")]
        usage = next(each for each in events if each["type"] == "message_delta")["usage"]
    else:
        usage = answer.json()["usage"]
    assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_that_nobody_wants_to_see(
    client: httpx.Client, thinking: FakeBackend, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Their block has no text, they are counted, and a stream has pings meanwhile."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.03)
    thinking.pace = 0.02
    thinking.reply = REPLY.replace("Where", "Where " * 30)
    display = {"type": "adaptive", "display": "omitted"}
    body = {"messages": ASKED, "max_tokens": 400, "stream": stream, "thinking": display}
    answer = client.post("/v1/messages", json=body)
    assert "Where" not in answer.text
    if not stream:
        block, text = answer.json()["content"]
        assert block == {"type": "thinking", "thinking": "", "signature": ""}
        assert text["text"] == "Rome."
        assert answer.json()["usage"]["output_tokens_details"]["thinking_tokens"] > 30
        return
    events = [json.loads(each.split("\ndata: ")[1]) for each in answer.text.strip().split("\n\n")]
    blocks = [each["content_block"]["type"] for each in events if each["type"] == "content_block_start"]
    assert blocks == ["thinking", "text"]
    assert [each["type"] for each in events].count("ping") >= 3


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


@pytest.mark.parametrize(
    ("body", "budget"),
    [
        ({"thinking_budget": 20}, 20),
        ({"thinking_token_budget": 0}, 0),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1024),
        ({"response_format": {"type": "json_object"}}, None),
    ],
)
def test_grammars_and_budgets_leave_room_for_the_thought(
    client: httpx.Client, thinking: FakeBackend, body: dict[str, Any], budget: int | None
) -> None:
    """The engine is told what words are around it, and whether the prompt has begun it."""
    chat(client, **body)
    grammar = thinking.requests[-1].grammar
    assert grammar is not None
    assert grammar.kind == ("json_object" if budget is None else "text")
    assert grammar.thought == ThoughtSpec("<think>", "</think>", False, budget)
    assert msgspec.json.decode(msgspec.json.encode(grammar), type=GrammarSpec) == grammar


def test_messages_have_a_budget(client: httpx.Client, thinking: FakeBackend) -> None:
    body = {"messages": ASKED, "max_tokens": 50, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    assert client.post("/v1/messages", json=body).status_code == 200
    grammar = thinking.requests[-1].grammar
    assert grammar is not None
    assert grammar.thought is not None
    assert grammar.thought.budget == 2048


def test_a_forced_call_comes_after_the_thought(
    client: httpx.Client, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the prompt has begun it; a call that is drafted within a thought is none."""
    monkeypatch.setattr(fake_backend.tokenizer(), "chat_template", CALLS)
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    backend.reset(f"I could {call}.\n</think>\n\n{call}", context_length=4096)
    message = chat(client, tools=[TOOL], tool_choice="required")["choices"][0]["message"]
    assert message["reasoning_content"] == f"I could {call}."
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["f"]
    grammar = backend.requests[-1].grammar
    assert grammar is not None
    assert grammar.thought == ThoughtSpec("<think>", "</think>", True, None)
    chat(client, chat_template_kwargs={"x": 1})
    assert backend.requests[-1].grammar is None


def test_nothing_stands_between_a_thought_and_its_call(
    client: httpx.Client, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response had an empty message there."""
    monkeypatch.setattr(fake_backend.tokenizer(), "chat_template", CALLS)
    backend.reset('Hm.</think><tool_call>{"name": "f", "arguments": {}}</tool_call>', context_length=4096)
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    response = client.post("/v1/responses", json={"input": "Hi", "tools": [tool]}).json()
    assert [item["type"] for item in response["output"]] == ["reasoning", "function_call"]


def test_a_compiler_knows_the_words_around_thoughts() -> None:
    """Whatever tokens they are; the answer's grammar begins behind them."""
    pytest.importorskip("llguidance")
    from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler

    made = fake_backend.tokenizer()
    compiler = GrammarCompiler.of(made, len(made), [fake_backend.EOS])
    state = compiler.grammar(GrammarSpec("json_object", thought=ThoughtSpec("<think>", "</think>", True, 40)))
    for token in made("Hm {no}.</think>")["input_ids"]:
        assert not state.mask()[fake_backend.EOS]
        state.advance(token)
    assert made.decode(state.mask().nonzero()[0].tolist()).strip().startswith("{")
    short = compiler.grammar(GrammarSpec("text", thought=ThoughtSpec("<think>", "</think>", True, 2)))
    for token in made("Hm")["input_ids"][:2]:
        short.advance(token)
    while len(short.tokens) < 2:
        short.advance(5)
    assert made.decode(short.forced()) == "</think>"
