"""Many clients, clients that go away, and clients that read slowly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import msgspec
import pytest
from fake_backend import REPLY
from fastapi.openapi.utils import get_openapi

from ipex_assist.serve import app
from ipex_assist.tokenization import chat_template

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def client(serve):
    """Of a server that nobody has used."""
    return serve()


def soon(true, seconds: float = 5.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def connect(client: httpx.Client, body: dict, buffer: int | None = None) -> socket.socket:
    """A request by hand, so that the connection can be cut or left unread."""
    url = client.base_url
    connection = socket.socket()
    if buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((url.host, url.port))
    content = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_goes_cancels_its_texts(client, backend, stream, n):
    """Before the next pass: nobody computes for nobody."""
    backend.pace = 0.02
    connection = connect(client, HI | {"stream": stream, "ignore_eos": True, "n": n, "max_tokens": 200})
    soon(lambda: backend.running == n)
    time.sleep(0.05)
    connection.close()
    soon(lambda: backend.running == 0, 1.0)
    assert backend.cancelled == n
    assert client.post(CHAT, json=HI | {"max_tokens": 2}).status_code == 200


def test_a_hundred_clients_that_go(client, backend):
    backend.pace = 0.01
    for _ in range(100):
        connect(client, HI | {"stream": True, "ignore_eos": True}).close()
    soon(lambda: len(backend.requests) > 0)
    soon(lambda: backend.running == 0)
    assert client.post(CHAT, json=HI | {"max_tokens": 2}).status_code == 200


def test_a_hundred_clients_and_a_queue_of_sixteen(client, backend):
    """Each gets its whole text, or 429 with the time to come back; nobody waits for ever."""
    backend.room, backend.pace = 16, 0.002

    def ask(number: int) -> int:
        stream = number % 2 == 0
        with httpx.Client(base_url=client.base_url, timeout=20, verify=False) as own:
            answer = own.post(CHAT, json=HI | {"stream": stream})
        if answer.status_code == 200 and stream:
            assert answer.text.endswith("data: [DONE]\n\n")
            found = [json.loads(event[6:]) for event in answer.text.split("\n\n")[:-2]]
            assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found) == REPLY
        elif answer.status_code == 200:
            assert answer.json()["choices"][0]["message"]["content"] == REPLY
        else:
            assert answer.status_code == 429
            assert answer.headers["retry-after"]
        return answer.status_code

    with ThreadPoolExecutor(100) as threads:
        statuses = Counter(threads.map(ask, range(100)))
    assert sum(statuses.values()) == 100
    assert statuses[200] >= 16
    assert backend.most_running <= 16
    assert backend.running == 0


def test_more_prompts_than_the_queue_holds(client, backend):
    """One request of 40 texts ends though there is room for 3 at a time."""
    backend.room, backend.pace = 3, 0.001
    answer = client.post(COMPLETIONS, json={"prompt": ["a"] * 40, "max_tokens": 3})
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 40
    assert backend.most_running == 3


def test_the_document_of_the_api_is_made_once(client, monkeypatch):
    """It needs no key and takes a tenth of a second, in which streams stood still whenever anybody asked for it."""
    made = []
    monkeypatch.setattr(app, "get_openapi", lambda **more: made.append(1) or get_openapi(**more))
    documents = [client.get("/openapi.json").json() for _ in range(3)]
    assert documents[0] == documents[1] == documents[2]
    assert made == [1]


def test_a_slow_reader_stops_nobody(client, backend):
    backend.reply = "The lazy dog. " * 500
    backend._facts = msgspec.structs.replace(backend.facts, context_length=100_000)
    connection = connect(client, HI | {"stream": True, "logprobs": True, "top_logprobs": 5}, buffer=4096)
    soon(lambda: backend.running == 1)
    backend.reply = REPLY
    started = time.monotonic()
    assert client.post(CHAT, json=HI).json()["choices"][0]["message"]["content"] == REPLY
    assert time.monotonic() - started < 20  # the slow reader would hold it up for good
    connection.close()
    soon(lambda: backend.running == 0)


def test_work_of_tokenizers_stops_no_stream(client, backend, monkeypatch):
    """A template that computes for most of its second is not run in the loop that streams go through."""
    backend.pace = 0.01
    times: list[float] = []
    work: list[float] = []

    def read() -> None:
        with client.stream("POST", CHAT, json=HI | {"stream": True, "ignore_eos": True, "max_tokens": 200}) as answer:
            for _ in answer.iter_lines():
                times.append(time.monotonic())

    thread = threading.Thread(target=read)
    thread.start()
    soon(lambda: len(times) > 5)
    real = chat_template.apply_template

    def slow(*args, **more):
        work.append(time.monotonic())
        while time.monotonic() < work[0] + 0.8:
            pass
        work.append(time.monotonic())
        return real(*args, **more)

    monkeypatch.setattr("ipex_assist.tokenization.tokenizer.apply_template", slow)
    assert client.post("/tokenize", json=HI).status_code == 200
    thread.join()
    # What lay in the connection when it began is read in its first tenth.
    assert sum(work[0] + 0.1 < at < work[1] for at in times) >= 5
