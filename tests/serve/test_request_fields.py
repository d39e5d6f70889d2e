"""Fields of other servers' requests: each is done, refused or without effect, and the page of the API says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend, tokenizer

from ipex_assist.serve.protocol.fields import BODIES, FIELDS, NO_EFFECT, table, treatment

pytest.importorskip("llguidance")

pytestmark = pytest.mark.one_stack

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HI: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/embeddings": {"input": "Hi"},
}
PAGE = Path(__file__).parents[2] / "docs" / "api.md"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_each_field_is_decided() -> None:
    """None is dropped without anybody having thought of it; and none is named that no server has."""
    listed = {(path, name) for path, vendors in FIELDS.items() for names in vendors.values() for name in names.split()}
    assert [each for each in sorted(listed) if treatment(*each) is None] == []
    assert NO_EFFECT.keys() <= {name for _, name in listed}


def test_the_page_has_the_table() -> None:
    """`python -m ipex_assist.serve.protocol.fields` prints it."""
    assert table() in PAGE.read_text(encoding="utf-8")


def test_refused_fields_are_refused(client: httpx.Client) -> None:
    """With status 400 and the field's name, over HTTP; also one that only asks for nothing in its own server's words
    is taken."""
    for path, vendors in FIELDS.items():
        for name in {name for names in vendors.values() for name in names.split()}:
            if not str(treatment(path, name)).startswith("400") or "." in name or path == "/v1/embeddings":
                continue
            answer = client.post(path, json={**HI[path], name: {"unlikely": 1}})
            assert (answer.status_code, name in answer.text) == (400, True), (path, name, answer.text)
            assert name in BODIES[path].model_fields
            assert client.post(path, json={**HI[path], name: None}).status_code == 200
    harmless = {"mirostat": 0, "typical_p": 1.0, "min_tokens": 0, "stop_token_ids": [], "skip_special_tokens": True}
    assert client.post(CHAT, json={**HI[CHAT], **harmless, "user": "me", "unheard_of": 1}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"response_format": {"type": "json_object", "schema": SCHEMA}}),
        (CHAT, {"json_schema": SCHEMA}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": SCHEMA}}),
    ],
)
def test_schemas_in_every_form(client: httpx.Client, backend: FakeBackend, path: str, body: dict[str, Any]) -> None:
    """They hold the text; once they were dropped."""
    assert client.post(path, json={**HI[path], **body}).status_code == 200
    grammar = backend.requests[0].grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_format": {"type": "structural_tag", "structures": []}},
        {"structured_outputs": {"structural_tag": "x"}},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
    ],
)
def test_what_cannot_be_done_is_said(client: httpx.Client, body: dict[str, Any]) -> None:
    assert client.post(CHAT, json={**HI[CHAT], **body}).status_code == 400


def test_the_last_message_is_continued(client: httpx.Client, backend: FakeBackend) -> None:
    """As vLLM has it: the assistant's turn is not closed."""
    messages = [*HI[CHAT]["messages"], {"role": "assistant", "content": "Once upon"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    assert client.post(CHAT, json={"messages": messages, **more}).status_code == 200
    assert tokenizer().decode(backend.requests[0].tokens).endswith("assistant\nOnce upon")


ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('one system') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def test_systems_are_one(client: httpx.Client, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates that allow one at the beginning (Qwen3.5, Mistral 3.2) refused what agents send; in Anthropic's API a
    system may speak at any place."""
    monkeypatch.setattr(tokenizer(), "chat_template", ONE_SYSTEM)
    user = {"role": "user", "content": "Hi"}
    turns = [{"role": "system", "content": "A."}, {"role": "developer", "content": "B."}]
    for path, body in (
        (CHAT, {"messages": [*turns, user]}),
        (RESPONSES, {"instructions": "A.", "input": [turns[1], user]}),
        (MESSAGES, {"max_tokens": 8, "system": "A.", "messages": [user, {"role": "system", "content": "B."}]}),
        ("/tokenize", {"messages": [*turns, user]}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        tokens = answer.json()["tokens"] if path == "/tokenize" else backend.requests[-1].tokens
        prompt = tokenizer().decode(tokens)
        assert prompt == "<|im_start|>system\nA.\n\nB.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant"
    refused = client.post(CHAT, json={"messages": [user, turns[0], user]})
    assert refused.status_code == 400
    assert "--" not in refused.json()["error"]["message"]


def test_what_codex_sends(client: httpx.Client, backend: FakeBackend) -> None:
    """Values that are open at OpenAI are open here: Codex asks for encrypted thoughts, offers tools of other kinds, and
    gives thoughts and calls of such tools back."""
    body = {
        "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "web_search"}, {"type": "namespace", "name": "x", "tools": []}],
        "input": [
            {"role": "user", "content": "Hi"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "encrypted_content": "x"},
            {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "1", "output": "Patched"},
        ],
    }
    answer = client.post(RESPONSES, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"][0]["content"][0]["logprobs"] == []
    assert answer.json()["tools"] == []
    assert "Patched" in tokenizer().decode(backend.requests[0].tokens)


def test_results_with_images(client: httpx.Client, backend: FakeBackend) -> None:
    """Their text is read, and the image is a sentence: an agent's session goes on. Elsewhere the block is named."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    blocks = [{"type": "text", "text": "A screenshot:"}, image, {"type": "tool_reference", "tool_name": "grep"}]
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": blocks}
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    assert client.post(MESSAGES, json={"max_tokens": 8, "messages": turns}).status_code == 200
    prompt = tokenizer().decode(backend.requests[0].tokens)
    assert "A screenshot:\n[image: left out" in prompt
    assert "[tool reference grep: left out" in prompt
    for kind in ("document", "tool_reference", "image"):
        said = client.post(
            MESSAGES, json={"max_tokens": 8, "messages": [{"role": "user", "content": [{"type": kind}]}]}
        )
        assert said.status_code == 400
        assert kind in said.json()["error"]["message"]
    call = {"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [
        *turns[:1],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": parts},
    ]
    assert client.post(CHAT, json={"messages": messages}).status_code == 200
    assert "See\n[image: left out" in tokenizer().decode(backend.requests[-1].tokens)


def test_what_an_assistant_refused_is_text(client: httpx.Client, backend: FakeBackend) -> None:
    """As OpenAI's clients give it back."""
    turn = {"role": "assistant", "content": [{"type": "text", "text": "So."}, {"type": "refusal", "refusal": "No."}]}
    user = {"role": "user", "content": "Hi"}
    assert client.post("/v1/chat/completions", json={"messages": [user, turn, user]}).status_code == 200
    assert "So.\nNo." in tokenizer().decode(backend.requests[-1].tokens)


def test_cached_tokens(client: httpx.Client, backend: FakeBackend) -> None:
    assert client.post(CHAT, json=HI[CHAT]).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_prompts_that_are_too_long(client: httpx.Client) -> None:
    """In the words by which clients know that they must compact, with status 400."""
    long = "long " * 400
    said = client.post(MESSAGES, json={"max_tokens": 8, "messages": [{"role": "user", "content": long}]})
    assert said.status_code == 400
    assert said.json()["error"]["type"] == "invalid_request_error"
    assert said.json()["error"]["message"].startswith("prompt is too long: ")
    said = client.post(CHAT, json={"messages": [{"role": "user", "content": long}]})
    assert said.status_code == 400
    assert said.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 255 tokens" in said.json()["error"]["message"]


def test_the_page_answers_head(client: httpx.Client) -> None:
    """By which Claude Code looks whether the server is there."""
    assert client.head("/").status_code == 200


def test_priorities_and_keys_reach_the_engine(serve: Any, backend: FakeBackend) -> None:
    """Whose key it is goes with each text, but not the key."""
    client = serve(api_key=("one", "two"))
    tiers: list[tuple[dict[str, Any], int]] = [({"priority": 7}, 7), ({"service_tier": "flex"}, 1), ({}, 0)]
    for key in ("one", "two"):
        client.headers["Authorization"] = f"Bearer {key}"
        for more, priority in tiers:
            assert client.post(CHAT, json={**HI[CHAT], **more}).status_code == 200
            assert backend.requests[-1].options.priority == priority
    shares = [request.options.share for request in backend.requests]
    assert len(set(shares)) == 2
    assert shares == [shares[0]] * 3 + [shares[3]] * 3
    assert not {"one", "two"} & set(shares)
