"""Tools of /v1/responses: calls in answers and their events, calls and what came of them in the input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend, serving, tokenizer
from tool_calls import CALL, FUNCTION, TOOL, calling_backend

pytestmark = pytest.mark.one_stack

PATH = "/v1/responses"
FLAT = {"type": "function", **TOOL["function"]}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    return calling_backend(monkeypatch)


@pytest.fixture
def client(backend: FakeBackend) -> Iterator[httpx.Client]:
    with serving(backend) as made:
        yield made


def post(client: httpx.Client, **body: Any) -> Any:
    answer = client.post(PATH, json={"input": "Hi", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: httpx.Client, **body: Any) -> list[Any]:
    answer = client.post(PATH, json={"input": "Hi", **body, "stream": True})
    assert answer.status_code == 200, answer.text
    found = [json.loads(text.split("data: ")[1]) for text in answer.text.strip().split("\n\n")]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_calls_of_an_answer(client: httpx.Client, backend: FakeBackend) -> None:
    """A message and two calls, each an item; what was asked is repeated."""
    answer = post(client, tools=[FLAT], tool_choice="auto")
    message, *calls = answer["output"]
    assert message["content"][0]["text"] == "Let me see."
    for call in calls:
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", *FUNCTION.values())
        assert call["call_id"].startswith("call_")
        assert call["status"] == "completed"
    assert len({item["id"] for item in answer["output"]}) == 3
    assert len({call["call_id"] for call in calls}) == 2
    assert answer["tools"] == [{**FLAT, "strict": None}]
    assert answer["tool_choice"] == "auto"
    assert '"description": "The weather"' in tokenizer().decode(backend.requests[0].tokens)
    assert backend.requests[0].grammar is None
    (message, _) = post(client, tools=[FLAT], parallel_tool_calls=False)["output"]


def test_events_of_calls(client: httpx.Client) -> None:
    """Each item begins, grows and ends before the next one; what grew is what stands in the whole."""
    found = events(client, tools=[FLAT])
    whole = found[-1]["response"]
    kinds = [event["type"].removeprefix("response.") for event in found]
    once = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert once == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", *call, *call, "completed",
    ]  # fmt: skip
    for index, item in enumerate(whole["output"]):
        own = [event for event in found if event.get("output_index") == index]
        assert own[0]["item"]["id"] == own[-1]["item"]["id"] == item["id"]
        assert own[0]["item"]["status"] == "in_progress"
        assert own[-1]["item"] == item
        grown = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        assert grown == (item["content"][0]["text"] if index == 0 else item["arguments"])
    done = [event for event in found if event["type"].endswith("arguments.done")]
    assert [(event["name"], event["arguments"]) for event in done] == [tuple(FUNCTION.values())] * 2


def test_a_call_alone(client: httpx.Client, backend: FakeBackend) -> None:
    """Has no empty message beside it; text behind a call is a message of its own."""
    backend.reply = CALL
    assert [item["type"] for item in post(client, tools=[FLAT])["output"]] == ["function_call"]
    backend.reply = CALL + "\nThere."
    _, message = post(client, tools=[FLAT])["output"]
    assert message["content"][0]["text"] == "There."
    backend.reply = ""
    (message,) = post(client, tools=[FLAT])["output"]
    assert message["content"][0]["text"] == ""


def test_a_call_that_is_cut_off(client: httpx.Client, backend: FakeBackend) -> None:
    """It is text, as nobody can run it; one that is held to its schema is told of while it is written."""
    backend.reply = f"Let me see.\n{CALL}"
    count = len(tokenizer()(backend.reply)["input_ids"])
    answer = post(client, tools=[FLAT], max_output_tokens=count - 25)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [(item["type"], item["status"]) for item in answer["output"]] == [("message", "incomplete")]
    strict = {**FLAT, "strict": True}
    answer = post(client, tools=[strict], max_output_tokens=count - 25)
    assert [item["status"] for item in answer["output"]] == ["completed", "incomplete"]


def test_log_probabilities_are_of_the_text(client: httpx.Client) -> None:
    """Of the message before the first call, streamed or not; calls have no place for theirs."""
    (message, *_) = post(client, tools=[FLAT], top_logprobs=1)["output"]
    listed = message["content"][0]["logprobs"]
    assert bytes(byte for entry in listed for byte in entry["bytes"]).decode() == "Let me see."
    deltas = [event for event in events(client, tools=[FLAT], top_logprobs=1) if event["type"].endswith("text.delta")]
    assert [entry for event in deltas for entry in event["logprobs"]] == listed


def test_what_came_of_calls(client: httpx.Client, backend: FakeBackend) -> None:
    """Goes to the template, behind the calls, whether these are kept here or sent again."""
    first = post(client, tools=[FLAT])
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"} for item in first["output"][1:]
    ]
    second = post(client, input=results, previous_response_id=first["id"], tools=[FLAT])
    prompt = tokenizer().decode(backend.requests[-1].tokens)
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    turns = f"user\nHi<|im_end|>\n<|im_start|>assistant\nLet me see.{2 * call}<|im_end|>\n"
    result = "<|im_start|>tool\nsunny<|im_end|>\n"
    assert turns + 2 * result in prompt
    post(client, input=[{"role": "user", "content": "Hi"}, *first["output"], *results], tools=[FLAT])
    assert tokenizer().decode(backend.requests[-1].tokens) == prompt
    post(client, input="So", previous_response_id=second["id"])
    assert turns + 2 * result + "<|im_start|>assistant" in tokenizer().decode(backend.requests[-1].tokens)


def test_forced_and_strict_calls(client: httpx.Client, backend: FakeBackend) -> None:
    """As in /v1/chat/completions."""
    pytest.importorskip("llguidance")
    answer = post(client, tools=[FLAT], tool_choice={"type": "function", "name": "get_weather"})
    assert answer["tool_choice"] == {"type": "function", "name": "get_weather"}
    forced = backend.requests[-1].grammar
    assert forced is not None
    assert forced.value.startswith("start: calls\n")
    post(client, tools=[{**FLAT, "strict": True}])
    strict = backend.requests[-1].grammar
    assert strict is not None
    assert "free" in strict.value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"tools": [FLAT, FLAT]}, "the same name"),
        ({"tools": [{"type": "function"}]}, "Field required"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "x"}}, "not among the tools"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "Field required"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "function_call"),
    ],
)
def test_refusals(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    answer = client.post(PATH, json={"input": "Hi", **body})
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("schema", [{"not": {}}, {"$schema": "x"}])
def test_a_schema_that_cannot_be_forced(client: httpx.Client, schema: Any) -> None:
    """The field has the name that it has here, and not in a chat."""
    tools = [FLAT, {**FLAT, "name": "other", "parameters": schema, "strict": True}]
    error = client.post(PATH, json={"input": "Hi", "tools": tools}).json()["error"]
    assert error["param"] == "tools[1].parameters"
