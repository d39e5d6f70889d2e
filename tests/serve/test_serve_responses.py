"""/v1/responses: text in and out, its events, and answers that follow answers."""

from __future__ import annotations

import json

import pytest
from fake_backend import REPLY, tokenizer

from ipex_assist.serve.answers import response_store
from ipex_assist.serve.answers.response_store import ResponseStore, StoredResponse
from ipex_assist.serve.backend import Failed
from ipex_assist.serve.errors import ApiError

pytestmark = pytest.mark.one_stack

PATH = "/v1/responses"


def prompt(*turns: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def test_text_in_text_out(client, backend):
    answer = client.post(PATH, json={"input": "Hi", "instructions": "be kind", "metadata": {"a": "b"}}).json()
    assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
    (item,) = answer["output"]
    assert item["content"] == [{"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}]
    assert (answer["instructions"], answer["metadata"]) == ("be kind", {"a": "b"})
    request = backend.requests[0]
    assert tokenizer().decode(request.tokens) == prompt(("system", "be kind"), ("user", "Hi"))
    assert answer["usage"]["input_tokens"] == len(request.tokens)
    assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


def test_answers_follow_answers(client, backend):
    """The conversation is read again; instructions are not kept, as with OpenAI."""
    first = client.post(PATH, json={"input": "Hi", "instructions": "be kind", "max_output_tokens": 3}).json()
    said = first["output"][0]["content"][0]["text"]
    assert (first["status"], first["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    turns = [{"role": "user", "content": [{"type": "input_text", "text": "And"}]}]
    second = client.post(PATH, json={"input": turns, "previous_response_id": first["id"], "stream": True})
    assert second.status_code == 200
    expected = prompt(("user", "Hi"), ("assistant", said), ("user", "And"))
    assert tokenizer().decode(backend.requests[1].tokens) == expected
    assert client.get(f"{PATH}/{first['id']}").json() == first
    whole = json.loads(second.text.strip().split("\n\n")[-1].split("data: ")[1])["response"]
    third = client.post(PATH, json={"input": "So", "previous_response_id": whole["id"], "store": False}).json()
    texts = prompt(("user", "Hi"), ("assistant", said), ("user", "And"), ("assistant", REPLY), ("user", "So"))
    assert tokenizer().decode(backend.requests[2].tokens) == texts
    for gone in (third["id"], "resp-nothing"):
        refused = client.post(PATH, json={"input": "a", "previous_response_id": gone})
        assert (refused.status_code, refused.json()["error"]["param"]) == (404, "previous_response_id")
    assert client.delete(f"{PATH}/{first['id']}").json()["deleted"] is True
    assert client.get(f"{PATH}/{first['id']}").status_code == 404


def test_events(client):
    """In OpenAI's order, numbered, and the text of the pieces is the whole text's."""
    body = {"input": "Hi", "stream": True, "stop": "foxes", "top_logprobs": 1}
    found = []
    for text in client.post(PATH, json=body).text.strip().split("\n\n"):
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert [event["type"] for event in found if event not in deltas] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    before = REPLY[: REPLY.index("foxes")]
    assert "".join(event["delta"] for event in deltas) == before
    assert found[-4]["text"] == before
    listed = [entry for event in deltas for entry in event["logprobs"]]
    assert listed == found[-4]["logprobs"]
    assert bytes(byte for entry in listed for byte in entry["bytes"]).decode() == before
    assert found[-1]["response"]["output"][0] == found[-2]["item"]


def test_a_stream_that_fails(client, backend):
    backend.error, backend.error_at = lambda: Failed("the engine died", again=True), 2
    last = client.post(PATH, json={"input": "Hi", "stream": True}).text.strip().split("\n\n")[-1]
    event = json.loads(last.split("data: ")[1])
    assert event["type"] == "response.failed"
    assert event["response"]["error"]["message"] == "the engine died"


def test_structured_output(client, backend):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "a", "schema": schema}
    answer = client.post(PATH, json={"input": "Hi", "text": {"format": form}}).json()
    assert backend.requests[0].grammar.kind == "json_schema"
    assert answer["text"]["format"]["schema"] == schema


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Field required"),
        ({"input": []}, "at least 1"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "leave out this image"),
        ({"input": "a", "tools": [{"name": "web_search"}]}, "type"),
        ({"input": "a", "background": True}, "stream"),
    ],
)
def test_refusals(client, body, words):
    answer = client.post(PATH, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"$schema": "x"}}}}, "text.format.schema"),
    ],
)
def test_schemas_that_cannot_be_forced(client, body, param):
    """Fields have the names that they have here, and not in a chat."""
    answer = client.post(PATH, json={"input": "Hi"} | body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert "response_format" not in error["message"]


def test_memory_of_answers_is_bounded(monkeypatch):
    """By their number and by their size; what was asked for lately stays."""
    monkeypatch.setattr(response_store, "MOST_KEPT", 3)
    monkeypatch.setattr(response_store, "MOST_CHARACTERS", 200)
    kept = ResponseStore()
    for name in "abc":
        kept.keep(StoredResponse({"id": name}, [{"content": "x" * 10}]))
    kept.find("a")
    kept.keep(StoredResponse({"id": "d"}, [{"content": "x" * 10}]))
    with pytest.raises(ApiError, match="'b'"):
        kept.find("b")
    kept.keep(StoredResponse({"id": "e"}, [{"content": "x" * 85}]))
    assert list(kept._kept) == ["a", "d", "e"]
    kept.keep(StoredResponse({"id": "g"}, [{"content": "x" * 200}]))
    assert not kept._kept
    assert kept._size == 0
