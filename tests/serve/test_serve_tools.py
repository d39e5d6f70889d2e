"""Tools and structured output over HTTP: what the engine is asked for, and calls in the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend, serving, tokenizer
from tool_calls import FUNCTION, TOOL, calling_backend

from ipex_assist.speculative.choosing.grammar import GrammarError, GrammarSpec

pytest.importorskip("llguidance")

pytestmark = pytest.mark.one_stack

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    return calling_backend(monkeypatch)


@pytest.fixture
def client(backend: FakeBackend) -> Iterator[httpx.Client]:
    with serving(backend) as made:
        yield made


def post(client: httpx.Client, **body: Any) -> Any:
    answer = client.post(CHAT, json={**HI, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: httpx.Client, **body: Any) -> list[Any]:
    answer = client.post(CHAT, json={**HI, **body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line)["choices"][0] for line in lines]


def test_calls_of_an_answer(client: httpx.Client, backend: FakeBackend) -> None:
    """Content, calls with ids and arguments, and the reason."""
    (choice,) = post(client, tools=[TOOL])["choices"]
    message = choice["message"]
    assert message["content"] == "Let me see."
    assert [call["function"] for call in message["tool_calls"]] == [FUNCTION, FUNCTION]
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in message["tool_calls"])
    assert choice["finish_reason"] == "tool_calls"
    prompt = tokenizer().decode(backend.requests[0].tokens)
    assert '"description": "The weather"' in prompt
    assert backend.requests[0].grammar is None


def test_a_stream_says_the_same(client: httpx.Client) -> None:
    """Deltas joined are the whole answer's calls; each call's first one has its id and name."""
    content, calls, reasons = "", {}, []
    for choice in streamed(client, tools=[TOOL], logprobs=True, top_logprobs=1):
        content += choice["delta"].get("content") or ""
        reasons.append(choice["finish_reason"])
        for delta in choice["delta"].get("tool_calls", []):
            if delta["index"] not in calls:
                calls[delta["index"]] = {"id": delta["id"], "name": delta["function"]["name"], "arguments": ""}
            else:
                assert "id" not in delta
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    assert content == "Let me see."
    assert [(call["name"], call["arguments"]) for call in calls.values()] == [tuple(FUNCTION.values())] * 2
    assert len({call["id"] for call in calls.values()}) == 2
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]
    listed = [
        token for choice in streamed(client, tools=[TOOL], logprobs=True) for token in _listed(choice["logprobs"])
    ]
    assert listed == _listed(post(client, tools=[TOOL], logprobs=True)["choices"][0]["logprobs"])


def _listed(logprobs: Any) -> list[Any]:
    return (logprobs or {}).get("content", [])


def test_one_call_where_they_are_not_parallel(client: httpx.Client) -> None:
    """The others are left out."""
    (choice,) = post(client, tools=[TOOL], parallel_tool_calls=False)["choices"]
    assert len(choice["message"]["tool_calls"]) == 1


def test_without_tools_all_is_content(client: httpx.Client, backend: FakeBackend) -> None:
    """Also where tools are given and not to be called: then the model does not hear of them."""
    for body in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        (choice,) = post(client, **body)["choices"]
        assert choice["message"]["content"] == backend.reply
        assert choice["finish_reason"] == "stop"
        assert "get_weather" not in tokenizer().decode(backend.requests[-1].tokens)


def test_forced_calls_and_formats_reach_the_engine(client: httpx.Client, backend: FakeBackend) -> None:
    """As grammars."""
    post(client, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "get_weather"}})
    grammar = backend.requests[-1].grammar
    assert grammar is not None
    assert grammar.kind == "lark"
    assert "get_weather" in grammar.value
    post(client, tools=[TOOL], tool_choice="required")
    post(client, response_format={"type": "json_object"})
    assert backend.requests[-1].grammar == GrammarSpec("json_object")
    post(client, guided_choice=["a", "b"])
    assert backend.requests[-1].grammar == GrammarSpec("choice", '["a", "b"]')


def test_a_conversation_with_calls(client: httpx.Client, backend: FakeBackend) -> None:
    """What was called and what came of it goes to the template, arguments as an object."""
    call = {"id": "call_1", "type": "function", "function": FUNCTION}
    messages = [
        *HI["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    post(client, messages=messages, tools=[TOOL])
    prompt = tokenizer().decode(backend.requests[-1].tokens)
    assert 'assistant\n<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}' in prompt
    assert "tool\nsunny" in prompt
    counted = client.post("/tokenize", json={"messages": messages, "tools": [TOOL]}).json()["tokens"]
    assert counted == backend.requests[-1].tokens


def response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


def tool_with(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


@pytest.mark.parametrize(
    ("body", "reason", "param"),
    [
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "not among the tools",
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "there are no tools", "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "the same name", "tools"),
        (
            {"tools": [TOOL], "response_format": {"type": "json_object"}, "guided_regex": "a"},
            "both given",
            "guided_regex",
        ),
        ({"tools": [TOOL], "guided_regex": "a"}, "cannot be had with tools", "guided_regex"),
        (response_format({"not": {}}), "cannot be used", "response_format"),
        (response_format({"$schema": "x"}), "$schema is", "response_format"),
        (response_format({"not": {}}) | {"tools": [TOOL]}, "cannot be used", "response_format"),
        (response_format({}) | {"tools": [tool_with({"not": {}})]}, "cannot be used", "tools[0].function.parameters"),
        ({"guided_regex": "(a"}, "unclosed group", "guided_regex"),
        ({"structured_outputs": {"grammar": "start: x"}}, "cannot be used", "structured_outputs.grammar"),
        (
            {"tools": [TOOL, tool_with({"$schema": "x"})], "tool_choice": "required"},
            "of the tool f cannot be forced",
            "tools[1].function.parameters",
        ),
        (
            {"tools": [TOOL, tool_with({"properties": {"a": {"not": {}}}}, strict=True)]},
            "cannot be used",
            "tools[1].function.parameters",
        ),
        (
            {"tools": [TOOL, tool_with({"properties": {"a": {"not": {}}}})], "tool_choice": "required"},
            "cannot be used",
            "tools",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(client: httpx.Client, body: dict[str, Any], reason: str, param: str) -> None:
    """With status 400, in OpenAI's form, with the field at fault."""
    answer = client.post(CHAT, json={**HI, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert reason in error["message"]
    assert error["param"] == param


def test_a_model_without_tools(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Says so."""
    monkeypatch.setattr(tokenizer(), "chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}")
    answer = client.post(CHAT, json={**HI, "tools": [TOOL]})
    assert answer.status_code == 400
    assert "no place for tools" in answer.json()["error"]["message"]


def test_strict_tools_reach_the_engine(client: httpx.Client, backend: FakeBackend) -> None:
    """As a grammar of any text with calls by their schemas."""
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    (choice,) = post(client, tools=[strict])["choices"]
    assert choice["finish_reason"] == "tool_calls"
    grammar = backend.requests[-1].grammar
    assert grammar is not None
    assert "start: (opened calls)* free" in grammar.value
    assert "strict" not in tokenizer().decode(backend.requests[-1].tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_the_engine_refuses(client: httpx.Client, backend: FakeBackend, stream: bool) -> None:
    """Its special token is missing, say: the request is wrong, not the server."""
    backend.error = lambda: GrammarError("the lark grammar cannot be compiled: there is no such token")
    body = {**HI, "guided_grammar": "start: <[99999]>", "stream": stream}
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], "no such token" in error["message"]) == ("invalid_request_error", True)


@pytest.mark.parametrize("stream", [False, True])
def test_broken_arguments_are_not_given_out(client: httpx.Client, backend: FakeBackend, stream: bool) -> None:
    """What can only be meant one way is mended; what cannot is text, so that no client's JSON parser raises."""
    before, after = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "', "}}\n</tool_call>"
    for written, city in (('Rome\n\\d", "day": None,', "Rome\n\\d"), ('the "city" of Rome"', None)):
        backend.reply = f"{before}{written}{after}"
        if stream:
            deltas = [each["delta"] for each in streamed(client, tools=[TOOL])]
            calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
            arguments = ["".join(call["function"]["arguments"] for call in calls)] if calls else []
            content = "".join(delta.get("content") or "" for delta in deltas)
        else:
            message = post(client, tools=[TOOL])["choices"][0]["message"]
            arguments = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
            content = message["content"] or ""
        assert [json.loads(each)["city"] for each in arguments] == ([] if city is None else [city])
        assert content == ("" if city else backend.reply)
