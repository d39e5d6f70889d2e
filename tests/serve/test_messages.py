"""/v1/messages over HTTP: what the engine is asked for, blocks and events of answers, errors in Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import fake_backend
import httpx
import pytest
from fake_backend import REPLY, FakeBackend, serving, tokenizer
from tool_calls import CALL, calling_backend

from ipex_assist.serve import streaming

pytest.importorskip("llguidance")

pytestmark = pytest.mark.one_stack

PATH = "/v1/messages"
HI: dict[str, Any] = {"max_tokens": 200, "messages": [{"role": "user", "content": "Hi"}]}
WEATHER = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think></think>{% elif begun %}<think>\n{% endif %}"
)


@pytest.fixture
def calling(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[httpx.Client, FakeBackend]]:
    backend = calling_backend(monkeypatch)
    with serving(backend) as client:
        yield client, backend


def events_of(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    answer = client.post(PATH, json={**HI, **body, "stream": True})
    assert answer.status_code == 200, answer.text
    found = []
    for each in answer.text.strip().split("\n\n"):
        name, data = each.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def blocks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that a client makes of a stream; each begins and ends once, in order."""
    blocks: list[dict[str, Any]] = []
    open_block = None
    for each in events:
        if each["type"] == "content_block_start":
            assert open_block is None
            assert each["index"] == len(blocks)
            open_block = {**each["content_block"], "json": ""}
        elif each["type"] == "content_block_delta":
            assert open_block is not None
            assert each["index"] == len(blocks)
            delta = each["delta"]
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                delta["type"]
            )
            if name is None:
                open_block["json"] += delta["partial_json"]
            else:
                open_block[name] += delta[name]
        elif each["type"] == "content_block_stop":
            assert open_block is not None
            if (arguments := open_block.pop("json")) or open_block["type"] == "tool_use":
                open_block["input"] = json.loads(arguments)
            blocks.append(open_block)
            open_block = None
    assert open_block is None
    return blocks


def test_an_answer(client: httpx.Client, backend: FakeBackend) -> None:
    answer = client.post(PATH, json={**HI, "temperature": 0}).json()
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert answer["content"] == [{"type": "text", "text": REPLY}]
    assert answer["id"].startswith("msg_")
    prompt = backend.requests[0].tokens
    assert answer["usage"] == {
        "input_tokens": len(prompt),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": len(tokenizer()(REPLY)["input_ids"]) + 1,
    }
    assert not backend.requests[0].options.do_sample


def test_a_stream_says_the_same(client: httpx.Client) -> None:
    """All types of events, in the order that Anthropic's clients rely on."""
    events = events_of(client)
    assert [each["type"] for each in events[:3]] == ["message_start", "ping", "content_block_start"]
    assert [each["type"] for each in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert blocks_of(events) == [{"type": "text", "text": REPLY}]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] > 0
    assert events[-2]["timings"]["draft_n"] > 0


def test_pings_while_there_is_nothing_to_say(client: httpx.Client, backend: FakeBackend) -> None:
    """While a prompt is read: clients end a stream on which no event comes."""
    backend.pace = 0.12
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.05)
        events = events_of(client, max_tokens=3)
    kinds = [each["type"] for each in events]
    assert kinds[0] == "message_start"
    assert kinds.count("ping") >= 4
    assert [each["type"] for each in blocks_of(events)] == ["text"]


def test_pings_while_a_call_is_held_back(
    calling: tuple[httpx.Client, FakeBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass gives tokens of a call that is told of when it is whole: what was generated is no sign of life."""
    client, backend = calling
    monkeypatch.setattr(streaming, "KEEP_ALIVE_SECONDS", 0.05)
    backend.pace = 0.02
    call = {"name": "get_weather", "arguments": {"city": "Rome " * 20}}
    backend.reply = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    events = events_of(client, tools=[WEATHER])
    kinds = [each["type"] for each in events]
    assert kinds[: kinds.index("content_block_start")].count("ping") >= 4
    assert blocks_of(events)[0]["input"] == call["arguments"]


@pytest.mark.parametrize("stream", [False, True])
def test_how_a_text_ends(client: httpx.Client, stream: bool) -> None:
    for body, ending in (
        ({"max_tokens": 3}, ("max_tokens", None)),
        ({"stop_sequences": ["nowhere", " dog"]}, ("stop_sequence", " dog")),
    ):
        if stream:
            found = next(each["delta"] for each in events_of(client, **body) if each["type"] == "message_delta")
        else:
            found = client.post(PATH, json={**HI, **body}).json()
        assert (found["stop_reason"], found["stop_sequence"]) == ending


def test_calls(calling: tuple[httpx.Client, FakeBackend]) -> None:
    """Text, then a block for each call, with its arguments as an object; a stream says the same."""
    client, backend = calling
    answer = client.post(PATH, json={**HI, "tools": [WEATHER]}).json()
    kinds = [block["type"] for block in answer["content"]]
    assert kinds == ["text", "tool_use", "tool_use"]
    assert answer["content"][0]["text"].strip() == "Let me see."
    assert [block["input"] for block in answer["content"][1:]] == [{"city": "Rome"}] * 2
    assert len({block["id"] for block in answer["content"][1:]}) == 2
    assert all(block["id"].startswith("toolu_") for block in answer["content"][1:])
    assert answer["stop_reason"] == "tool_use"
    assert '"description": "The weather"' in tokenizer().decode(backend.requests[0].tokens)
    streamed = blocks_of(events_of(client, tools=[WEATHER]))
    without_ids = [{name: value for name, value in block.items() if name != "id"} for block in streamed]
    assert without_ids == [{k: v for k, v in block.items() if k != "id"} for block in answer["content"]]


def test_results_of_tools_go_back(calling: tuple[httpx.Client, FakeBackend]) -> None:
    """A call and its result reach the template as it knows them; what the user says beside them follows."""
    client, backend = calling
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "12 degrees"}]}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "Well."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Now?"}]},
    ]
    system = [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "OK"},
    ]
    body = {**HI, "messages": turns, "tools": [WEATHER], "system": system}
    assert client.post(PATH, json=body).status_code == 200
    prompt = tokenizer().decode(backend.requests[0].tokens)
    said = prompt.replace("<|im_start|>", "\n").replace("<|im_end|>", "")
    places = [said.index(each) for each in ("Be brief.\nOK", "Well.", "Rome", "12 degrees", "Now?")]
    assert places == sorted(places)


def test_forced_calls(calling: tuple[httpx.Client, FakeBackend]) -> None:
    client, backend = calling
    for choice, several in (({"type": "any"}, True), ({"type": "tool", "name": "get_weather"}, False)):
        body = {**HI, "tools": [WEATHER], "tool_choice": {**choice, "disable_parallel_tool_use": not several}}
        assert client.post(PATH, json=body).status_code == 200
        assert backend.requests[-1].grammar is not None
    assert (
        client.post(PATH, json={**HI, "tools": [WEATHER], "tool_choice": {"type": "none"}})
        .json()["content"][0]["text"]
        .count(CALL)
        == 2
    )


@pytest.mark.parametrize(
    ("reply", "thinking", "expected"),
    [
        ("<think>Hm.\n</think>\n\nRome.", {"type": "enabled", "budget_tokens": 1024}, ("Hm.", "Rome.")),
        ("<think>Hm.", {"type": "enabled", "budget_tokens": 1024}, ("Hm.", None)),
        ("No <think>.", {"type": "adaptive"}, (None, "No <think>.")),
        ("Rome.", None, (None, "Rome.")),
    ],
)
def test_thinking(
    monkeypatch: pytest.MonkeyPatch, reply: str, thinking: Any, expected: tuple[str | None, str | None]
) -> None:
    """Thoughts are blocks of their own; whether a model thinks is the template's variable."""
    monkeypatch.setattr(fake_backend.tokenizer(), "chat_template", THINKING_TEMPLATE)
    backend = FakeBackend(reply)
    with serving(backend) as client:
        body = {"thinking": thinking} if thinking else {}
        answer = client.post(PATH, json={**HI, **body}).json()
        streamed = blocks_of(events_of(client, **body))
    found = {block["type"]: block.get("thinking", block.get("text")) for block in answer["content"]}
    assert (found.get("thinking"), found.get("text")) == expected
    assert streamed == answer["content"]
    assert tokenizer().decode(backend.requests[0].tokens).endswith("<think></think>") is (thinking is None)


def test_earlier_thoughts_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_backend.tokenizer(), "chat_template", THINKING_TEMPLATE)
    backend = FakeBackend()
    blocks = [{"type": "thinking", "thinking": "Hm", "signature": "x"}, {"type": "text", "text": "So."}]
    turns = [*HI["messages"], {"role": "assistant", "content": blocks}, {"role": "user", "content": "And?"}]
    with serving(backend) as client:
        assert client.post(PATH, json={**HI, "messages": turns}).status_code == 200
    assert "<think>Hm</think>So." in tokenizer().decode(backend.requests[0].tokens)


def test_the_assistant_goes_on(client: httpx.Client, backend: FakeBackend) -> None:
    """An assistant's text at the end is the beginning of the answer."""
    turns = [*HI["messages"], {"role": "assistant", "content": "Once upon"}]
    assert client.post(PATH, json={**HI, "messages": turns}).status_code == 200
    assert tokenizer().decode(backend.requests[0].tokens).endswith("Once upon")


def test_counting(client: httpx.Client, backend: FakeBackend) -> None:
    """The number that the answer's usage has; nothing is generated."""
    counted = client.post(f"{PATH}/count_tokens", json={"messages": HI["messages"], "system": "Be brief."}).json()
    assert not backend.requests
    answer = client.post(PATH, json={**HI, "system": "Be brief."}).json()
    assert counted == {"input_tokens": answer["usage"]["input_tokens"]}


def test_names_that_agents_send(client: httpx.Client) -> None:
    """They ask for models of Anthropic's by themselves; another name is another model."""
    assert client.post(PATH, json={**HI, "model": "claude-sonnet-4-5"}).json()["model"] == "tiny"
    assert client.post(PATH, json={**HI, "model": "other"}).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, None, "reads text alone"),
        ({"messages": [{"role": "user", "content": [{"type": "surprise"}]}]}, 400, None, "text"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, None, "Anthropic's own servers"),
        ({"tool_choice": {"type": "tool"}}, 400, None, "needs the tool's name"),
        ({"tool_choice": {"type": "any"}}, 400, None, "there are no tools"),
        ({"temperature": 1.5}, 400, None, "temperature"),
        ({"stop_sequences": [" "]}, 400, None, "white space"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, 400, None, "the last one must be the user's"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"messages": [{"role": "user", "content": "long " * 400}]}, 400, None, "tokens > 255 maximum"),
    ],
)
def test_errors_in_anthropics_form(
    client: httpx.Client, body: dict[str, Any], status: int, kind: str | None, words: str
) -> None:
    answer = client.post(PATH, json={**HI, **body})
    assert answer.status_code == status
    found = answer.json()
    assert found["type"] == "error"
    assert found["error"]["type"] == (kind or "invalid_request_error")
    assert words in found["error"]["message"]


def test_failures_in_a_stream(client: httpx.Client, backend: FakeBackend) -> None:
    """Before anything was sent it has its status; after that the last event is the error."""
    backend.error = lambda: RuntimeError("oh")
    answer = client.post(PATH, json={**HI, "stream": True})
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "api_error")
    backend.error_at = 2
    last = events_of(client)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_keys_as_anthropics_clients_send_them(serve: Any) -> None:
    client = serve(api_key=("secret",))
    client.headers.pop("Authorization")
    refused = client.post(PATH, json=HI)
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert client.post(PATH, json=HI, headers={"x-api-key": "wrong"}).status_code == 401
    assert client.post(PATH, json=HI, headers={"x-api-key": "secret"}).status_code == 200
