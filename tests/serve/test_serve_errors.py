"""Errors over HTTP: the status, OpenAI's form, and a reason with numbers; never a traceback."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

import httpx
import pytest
from fake_backend import VOCAB_SIZE, tokenizer
from pydantic import ValidationError

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.serve.backend import Failed
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.protocol.chat import ChatRequest
from ipex_assist.serve.protocol.completions import CompletionRequest
from ipex_assist.serve.protocol.responses import ResponsesRequest
from ipex_assist.serve.protocol.tokenize import DetokenizeRequest

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error, which has OpenAI's form."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text
    return error


@pytest.mark.parametrize(
    ("path", "body", "param", "reason"),
    [
        (CHAT, {}, "messages", "Field required"),
        (CHAT, {"messages": []}, "messages", "at least 1 item"),
        (CHAT, {"messages": [{"role": "nobody", "content": "a"}]}, "messages.0.role", "'system'"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
            "messages.0.content.0",
            "leave out this",
        ),
        (CHAT, HI | {"temperature": -1}, "temperature", "must be 0 (greedy) or a number between 0.001 and 2"),
        (CHAT, HI | {"temperature": 2.1}, "temperature", "must be 0 (greedy) or a number between 0.001 and 2"),
        (CHAT, HI | {"temperature": "1"}, "temperature", "must be 0 (greedy)"),
        (CHAT, HI | {"top_p": 2}, "top_p", "must be a number between 1e-06 and 1"),
        (CHAT, HI | {"max_tokens": 0}, "max_tokens", "must be a whole number between 1"),
        (CHAT, HI | {"n": 0}, "n", "greater than or equal to 1"),
        (CHAT, HI | {"top_logprobs": 21}, "top_logprobs", "must be a whole number between 0 and 20"),
        (CHAT, HI | {"stop": [""]}, "stop", "none of them empty"),
        (CHAT, HI | {"logit_bias": {"x": 1}}, "logit_bias", "'x' is no token id"),
        (CHAT, HI | {"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias", f"ids go to {VOCAB_SIZE - 1}"),
        (CHAT, HI | {"logit_bias": {str(VOCAB_SIZE - 4): 1}}, "logit_bias", f"ids up to {VOCAB_SIZE - 5} have a logit"),
        (
            COMPLETIONS,
            {"prompt": ["a"] * 128, "n": 128, "logit_bias": {"1": 1, "2": 1, "3": 1, "4": 1, "5": 1}},
            "logit_bias",
            "5 biases for each of 16,384 texts are 81,920, and a request may have 65,536",
        ),
        (CHAT, HI | {"seed": 1.5}, "seed", "must be a whole number"),
        (CHAT, HI | {"stream": "yes"}, "stream", "valid boolean"),
        (CHAT, HI | {"functions": []}, "functions", "use tools"),
        (COMPLETIONS, {"prompt": ""}, "prompt", "at least 1 character"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt", "greater than or equal to 0"),
        (COMPLETIONS, {"prompt": [VOCAB_SIZE]}, None, f"ids from 0 to {VOCAB_SIZE - 1}"),
        (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix", "cannot be given"),
        (COMPLETIONS, {"prompt": "a", "echo": True, "stream": True, "logprobs": 1}, "echo", "not streamed"),
        (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of", "by n"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, None, f"ids from 0 to {VOCAB_SIZE - 1}"),
    ],
)
def test_wrong_values(client, backend, path, body, param, reason):
    error = refused(client.post(path, json=body), 400)
    assert error["type"] == "invalid_request_error"
    assert reason in error["message"]
    assert param is None or (error["param"] == param and (error["message"].startswith(param)))
    assert not backend.requests


def test_one_reason_is_said_once(client):
    """pydantic says of a prompt that is none what each kind of prompt would have needed."""
    message = refused(client.post(COMPLETIONS, json={"prompt": ""}), 400)["message"]
    reasons = message.split("; ")
    assert len(reasons) == len(set(reasons))


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file"])
def test_a_part_that_is_no_text(client, kind):
    """One sentence, not what each form of content would have needed."""
    parts = [{"type": "text", "text": "What is this?"}, {"type": kind, kind: {"url": "data:image/png;base64,AA=="}}]
    for path, field in ((CHAT, "messages"), ("/v1/responses", "input"), ("/tokenize", "messages")):
        error = refused(client.post(path, json={field: [{"role": "user", "content": parts}]}), 400)
        medium = next(word for word in ("image", "audio", "file") if word in kind)
        assert error["message"].endswith(f"content.1: the model reads text alone: leave out this {medium}"), error
        assert error["message"].startswith(f"{field}.0.")
        assert error["param"] == error["message"].partition(": ")[0]


def test_not_unicode(client):
    error = refused(client.post(CHAT, content=b'{"messages":[{"role":"user","content":"\\ud800"}]}',
                                headers={"content-type": "application/json"}), 400)  # fmt: skip
    assert error["message"].startswith("the body is no JSON: ")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"[" * 200_000, b'{"prompt":' + b"9" * 9999 + b"}", b"\xff"]
)
def test_bodies_that_are_no_requests(client, content):
    refused(client.post(COMPLETIONS, content=content, headers={"content-type": "application/json"}), 400)


def test_a_body_of_another_kind(client):
    """What a form of any web page could send to a server on this machine, without asking."""
    error = refused(client.post(COMPLETIONS, content=b'{"prompt":"a"}', headers={"content-type": "text/plain"}), 400)
    assert "application/json" in error["message"]


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (CompletionRequest, {"prompt": [None] * 500}),
        (CompletionRequest, {"prompt": [["a"] * 500]}),
        (CompletionRequest, {"prompt": "a", "guided_choice": [1] * 500}),
        (ChatRequest, {"messages": [1] * 500}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * 500}]}),
        (ChatRequest, HI | {"tools": [1] * 500}),
        (ResponsesRequest, {"input": [1] * 500}),
        (ResponsesRequest, {"input": "a", "metadata": {str(number): number for number in range(500)}}),
        (DetokenizeRequest, {"tokens": [-1] * 500}),
        (ChatRequest, HI | {"stop": ["a"] * 65}),
        (ChatRequest, HI | {"logit_bias": dict.fromkeys(map(str, range(70_000)), 1)}),
    ],
)
def test_a_body_with_much_that_is_wrong(form, body):
    """Each wrong item that is told costs a kilobyte, and there may be millions: the first of them are enough."""
    with pytest.raises(ValidationError) as caught:
        form.model_validate(body)
    assert caught.value.error_count() <= 8


def test_malformed_bodies(client, backend):
    """Bytes of a good request that are changed, cut or doubled: 200 or 400, and the server lives."""
    good = json.dumps(HI | {"max_tokens": 2, "stop": ["a"], "logit_bias": {"1": 2}, "n": 1}).encode()
    draw = random.Random(0)
    for _ in range(300):
        body = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(body))
            body[at : at + draw.choice((0, 1, 1, 9))] = draw.choice((b"", bytes([draw.randrange(256)]), body[at:][:20]))
        answer = client.post(CHAT, content=bytes(body), headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400), (bytes(body), answer.text)
        assert answer.status_code == 200 or set(answer.json()) == {"error"}
    assert client.get("/ready").status_code == 200
    assert backend.running == 0


def test_unknown_model(client):
    error = refused(client.post(CHAT, json=HI | {"model": "other"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "there is tiny" in error["message"]
    refused(client.get("/v1/models/other"), 404)
    refused(client.get("/v1/nothing"), 404)
    refused(client.get(CHAT), 405)


def test_served_names(serve):
    client = serve(served_model_name=("tiny", "org/other"))
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["tiny", "org/other"]
    assert client.get("/v1/models/org/other").json()["id"] == "org/other"
    assert client.post(CHAT, json=HI | {"model": "org/other"}).status_code == 200


def test_a_prompt_beyond_the_context(client, backend):
    """The last position must be left for a token of the answer."""
    for count, status in ((255, 200), (256, 400)):
        answer = client.post(COMPLETIONS, json={"prompt": [5] * count})
        assert answer.status_code == status
    error = refused(answer, 400)
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 255 tokens" in error["message"]
    assert "256 tokens" in error["message"]
    assert "shorten it by at least 1" in error["message"]
    assert backend.requests[0].options.max_new_tokens == 1


def test_a_prompt_beyond_the_servers_limit(serve):
    error = refused(serve(max_prompt=3).post(COMPLETIONS, json={"prompt": [5] * 10}), 400)
    assert "10 tokens" in error["message"]
    assert "maximum context length is 3 tokens" in error["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit(serve, chunked):
    client = serve(max_body=1000)
    body = json.dumps({"prompt": "a" * 2000}).encode()
    content: Any = iter([body[:600], body[600:]]) if chunked else body
    error = refused(client.post(COMPLETIONS, content=content, headers={"content-type": "application/json"}), 413)
    assert "1,000" in error["message"]
    assert client.get("/health").status_code == 200


def test_keys(serve, tmp_path):
    (tmp_path / "keys").write_text("second\n\n third \n")
    client = serve(api_key=("first",), api_key_file=str(tmp_path / "keys"))
    for header, right in (
        ("Bearer first", True), ("Bearer second", True), ("bearer third", True), ("Bearer fourth", False),
        ("first", False), ("", False), ("Basic first", False), ("Bearer", False), ("Bearer fürst".encode(), False),
    ):  # fmt: skip
        answer = client.post(CHAT, json=HI, headers={"Authorization": header})
        assert answer.status_code == (200 if right else 401), header
    error = refused(answer, 401)
    assert error["code"] == "invalid_api_key"
    assert "first" not in error["message"]
    bare = {"Authorization": ""}
    for path in ("/health", "/ready", "/version", "/metrics", "/openapi.json"):
        assert client.get(path, headers=bare).status_code == 200
    for path in ("/v1/models", "/v1/models/tiny", "/nothing"):
        assert client.get(path, headers=bare).status_code == 401
    assert client.post("/tokenize", json={"prompt": "a"}, headers=bare).status_code == 401


def test_keys_behind_a_prefix(serve):
    """A proxy that leaves its prefix in the path opens nothing by it."""
    client = serve(api_key=("first",), root_path="/llm")
    bare = {"Authorization": ""}
    assert client.get("/llm/v1/models", headers=bare).status_code == 401
    assert client.get("/llm/v1/models").status_code == 200
    assert client.get("/v1/models").status_code == 200
    assert client.get("/llm/health", headers=bare).status_code == 200


def test_other_origins_only_where_told(serve):
    origin = {"Origin": "http://page.example"}
    asked = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    plain = serve()
    assert "access-control-allow-origin" not in plain.post(CHAT, json=HI, headers=origin).headers
    assert plain.options(CHAT, headers=asked).status_code == 405
    opened = serve(cors_origin=("http://page.example",), api_key=("key",))
    assert opened.options(CHAT, headers={**asked, "Authorization": ""}).status_code == 200
    for key, status in (("Bearer key", 200), ("", 401)):
        answer = opened.post(CHAT, json=HI, headers={**origin, "Authorization": key})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "http://page.example"
    assert "access-control-allow-origin" not in opened.post(CHAT, json=HI, headers={"Origin": "http://x"}).headers


def test_loading_and_draining(serve, backend):
    backend.ready = False
    client = serve()
    assert client.get("/health").json() == {"status": "ok"}
    assert "loading" in refused(client.get("/ready"), 503)["message"]
    for path, body in ((CHAT, HI), (COMPLETIONS, {"prompt": "a"}), ("/tokenize", {"prompt": "a"})):
        error = refused(client.post(path, json=body), 503)
        assert error["code"] == "not_ready"
    refused(client.get("/v1/models"), 503)
    assert client.get("/metrics").status_code == 200
    assert client.get("/openapi.json").status_code == 200
    backend.ready = True
    assert client.get("/ready").json() == {"status": "ready"}
    backend.draining = True
    assert "about to end" in refused(client.get("/ready"), 503)["message"]
    for stream in (False, True):
        answer = client.post(CHAT, json=HI | {"stream": stream})
        refused(answer, 503)
        assert int(answer.headers["retry-after"]) > 0
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue(client, backend, stream):
    backend.room = 0
    answer = client.post(CHAT, json=HI | {"stream": stream, "n": 2})
    assert refused(answer, 429)["code"] == "queue_full"
    assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (lambda: Failed("the engine died", again=True), 503, "the engine died"),
        (lambda: Failed("NaN", again=False), 500, "NaN"),
        (lambda: IpexAssistError("no memory"), 500, "no memory"),
        (lambda: TimeoutError("later than 5 s"), 503, "later than 5 s"),
        (lambda: RuntimeError("secret"), 500, "RuntimeError"),
    ],
)
def test_failures_before_the_first_token(client, backend, stream, error, status, words):
    backend.error = error
    said = refused(client.post(CHAT, json=HI | {"stream": stream}), status)
    assert words in said["message"]
    assert "secret" not in said["message"]
    assert said["type"] == "server_error"
    backend.error = None
    assert client.post(CHAT, json=HI).status_code == 200


def test_failures_in_a_stream(client, backend):
    """The last event is the error, and the stream does not end as a good one does."""
    backend.error, backend.error_at = lambda: Failed("the engine died", again=True), 2
    answer = client.post(CHAT, json=HI | {"stream": True})
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    last = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["message"] == "the engine died"


def test_a_template_that_refuses_or_does_not_end(client, monkeypatch):
    monkeypatch.setattr(tokenizer(), "chat_template", "{{ raise_exception('no users here') }}")
    assert "no users here" in refused(client.post(CHAT, json=HI), 400)["message"]
    monkeypatch.setattr("ipex_assist.tokenization.tokenizer.TEMPLATE_SECONDS", 0.1)
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr(tokenizer(), "chat_template", endless)
    assert "longer than 0.1 s" in refused(client.post(CHAT, json=HI), 400)["message"]


def test_request_ids(client):
    assert client.get("/health", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = client.get("/health", headers={"X-Request-Id": "a b"}).headers["x-request-id"]
    assert len(made) == 32


def test_time_limit_reaches_the_backend(serve, backend):
    client = serve(timeout=0.2)
    backend.pace = 0.05
    assert refused(client.post(CHAT, json=HI), 503)["code"] == "timeout"
    assert backend.timeouts[0] == pytest.approx(0.2, abs=0.1)
    assert ServeOptions().timeout > 60


def test_a_text_that_is_too_long_whatever_its_tokens_are(client, monkeypatch):
    """Megabytes of it are not turned into tokens only to be refused."""
    monkeypatch.setattr("ipex_assist.serve.service.encode", lambda *_, **__: pytest.fail("it was encoded"))
    monkeypatch.setattr("ipex_assist.serve.service.encode_messages", lambda *_, **__: pytest.fail("it was encoded"))
    text = "a" * 100_000
    for path, body in ((COMPLETIONS, {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]})):
        error = refused(client.post(path, json=body), 400)
        assert "at least" in error["message"]
        assert error["code"] == "context_length_exceeded"


def said(client: httpx.Client, *pieces: bytes, wait_for: bytes = b"") -> bytes:
    """What comes back until the connection is closed. wait_for: what comes before the last piece is sent."""
    url = client.base_url
    with socket.create_connection((url.host, url.port), timeout=20) as connection:
        got = b""
        for piece in pieces:
            while piece is pieces[-1] and wait_for not in got:
                got += connection.recv(4096)
            connection.sendall(piece)
        while data := connection.recv(1 << 16):
            got += data
        return got


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "sent",
    [b"no HTTP\r\n\r\n", HEAD + b"Content-Length: -1\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}"],
)
def test_what_is_no_http(client, sent):
    """Parsers' own answers are plain texts."""
    head, _, body = said(client, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"application/json" in head
    assert refused(httpx.Response(400, content=body), 400)["code"] == "invalid_http"


def test_what_is_no_http_behind_a_request(client, backend):
    """In the midst of a stream another answer would be taken for its text: it breaks off, or goes to its end before."""
    backend.pace = 0.01
    body = json.dumps(HI | {"stream": True, "ignore_eos": True, "max_tokens": 100}).encode()
    request = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    got = said(client, request, b"\0\0\0\r\n\r\n", wait_for=b"data: ")
    stream, refusal, _ = got.partition(b"HTTP/1.1 400 ")
    assert stream.startswith(b"HTTP/1.1 200 ")
    assert not refusal or stream.endswith(b"0\r\n\r\n")


def test_a_body_that_does_not_come(serve):
    """Who sends half of it and waits is told so at the time limit, and holds nothing any more."""
    client = serve(timeout=0.2)
    head, _, body = said(client, HEAD + b'Content-Length: 100\r\n\r\n{"messages": [').partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert refused(httpx.Response(408, content=body), 408)["code"] == "timeout"
