"""Connections that send half of a request, nothing more, or never read: nobody else waits for them."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from fake_backend import FakeBackend, serving
from server_process import running

from ipex_assist.serve import connections
from ipex_assist.serve.connections import ConnectionLimits
from ipex_assist.serve.listen import listen
from ipex_assist.serve.log_limit import RepeatLimit
from ipex_assist.serve.options import ServeOptions

pytestmark = pytest.mark.one_stack

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HALF = HEALTH + b"X-Slow: "
CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
WAIT_SECONDS = 15.0  # for what takes a fraction of a second

Start = Callable[..., httpx.Client]


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest) -> str:
    """Each of the parsers that uvicorn may have."""
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def start(backend: FakeBackend, parser: str) -> Iterator[Start]:
    """Start a server with limits of connections; the client of it."""
    with ExitStack() as stack:

        def begin(limits: ConnectionLimits | None = None, **options: Any) -> httpx.Client:
            return stack.enter_context(serving(backend, limits=limits, parser=parser, **options))

        yield begin


@contextmanager
def opened(client: httpx.Client, *data: bytes) -> Iterator[socket.socket]:
    """A connection by hand, on which data has been sent."""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=WAIT_SECONDS) as connection:
        for each in data:
            connection.sendall(each)
        yield connection


def until(connection: socket.socket, words: bytes) -> bytes:
    """What comes until these words."""
    got = b""
    while words not in got:
        data = connection.recv(1 << 16)
        assert data, got
        got += data
    return got


def fresh(client: httpx.Client, path: str) -> httpx.Response:
    """The answer on a connection of its own."""
    return httpx.get(client.base_url.join(path), timeout=WAIT_SECONDS)


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    got = b""
    try:
        while data := connection.recv(1 << 16):
            got += data
    except ConnectionResetError:
        pass
    return got


def drip(connection: socket.socket, byte: bytes = b"a") -> bytes:
    """Send a byte at a time until the server closes the connection; what came from it."""
    got, deadline = b"", time.monotonic() + WAIT_SECONDS
    try:
        while time.monotonic() < deadline:
            connection.sendall(byte)
            if select.select([connection], [], [], 0.02)[0]:
                if not (data := connection.recv(1 << 16)):
                    return got
                got += data
    except (BrokenPipeError, ConnectionResetError):
        return got
    raise AssertionError(f"it is still open; so far {got!r}")


def request(body: dict[str, Any], path: str = CHAT) -> bytes:
    """A whole request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def error_of(answer: bytes) -> tuple[int, str]:
    """Status and code of an error in OpenAI's form."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def soon(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_half_a_head_is_not_waited_for(start: Start) -> None:
    """Nor is one that goes on coming, byte by byte; who has sent nothing gets no answer to that."""
    client = start(ConnectionLimits(head=0.3))
    with opened(client) as silent, opened(client, HALF) as half, opened(client, HALF) as slow:
        assert error_of(drip(slow)) == (408, "timeout")
        assert error_of(rest(half)) == (408, "timeout")
        assert rest(silent) == b""


def test_half_of_a_second_head_is_not_waited_for(start: Start) -> None:
    client = start(ConnectionLimits(head=0.3))
    for more in (b"GET /heal", b"\r"):  # parsers skip empty lines between requests, and see no request in them
        with opened(client, HEALTH + b"\r\n") as connection:
            until(connection, b'{"status":"ok"}')
            connection.sendall(more)
            drip(connection, b"\n" if more == b"\r" else b"a")


def test_a_head_without_an_end(start: Start) -> None:
    """It takes no memory without bound while its seconds last."""
    client = start()
    with opened(client, HALF) as connection:
        assert drip(connection, b"a" * 4096)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
    assert client.get("/health").status_code == 200


def test_connections_that_are_kept_and_long_answers_have_no_such_deadline(start: Start, backend: FakeBackend) -> None:
    client = start(ConnectionLimits(head=0.2))
    kept = http.client.HTTPConnection(client.base_url.host, client.base_url.port, timeout=WAIT_SECONDS)
    for _ in range(3):
        kept.request("GET", "/health")  # fails where the connection is closed
        assert kept.getresponse().read()
        time.sleep(0.4)
    backend.pace = 0.02
    answer = client.post(CHAT, json=HI | {"stream": True, "ignore_eos": True, "max_tokens": 100})
    assert answer.text.endswith("data: [DONE]\n\n")
    kept.close()


def test_a_connection_that_is_idle_for_long(start: Start) -> None:
    with opened(start(ConnectionLimits(idle=0.2)), HEALTH + b"\r\n") as connection:
        assert rest(connection).startswith(b"HTTP/1.1 200 ")


def test_a_slow_body_without_a_key(start: Start) -> None:
    """It is refused at once; what comes of it later is read for as long as a request may take, and no longer."""
    client = start(timeout=1.0, api_key=("key",))
    whole = request(HI | {"user": "a" * 1000})
    with opened(client, whole[:-900]) as slow, opened(client, whole[:-900]) as quick:
        for connection in (slow, quick):
            until(connection, b'"invalid_api_key"}}')
        quick.sendall(whole[-900:] + HEALTH + b"\r\n")
        until(quick, b'{"status":"ok"}')
        assert drip(slow) == b""


def test_a_slow_body_with_a_key(start: Start) -> None:
    client = start(timeout=0.4, api_key=("key",))
    whole = request(HI | {"user": "a" * 1000}).replace(b"Host:", b"Authorization: Bearer key\r\nHost:")
    with opened(client, whole[:-900]) as slow:
        assert error_of(drip(slow)) == (408, "timeout")


def test_too_many_connections_end_the_oldest_that_wait(start: Start, backend: FakeBackend) -> None:
    """Half heads, then idle ones, then bodies that are still coming; what came of a request gets an answer."""
    client = start(ConnectionLimits(most=4))
    backend.pace = 0.05
    with ExitStack() as stack:
        body = stack.enter_context(opened(client, request(HI)[:-5]))
        idle = stack.enter_context(opened(client, HEALTH + b"\r\n"))
        until(idle, b'{"status":"ok"}')
        halves = [stack.enter_context(opened(client, HALF)) for _ in range(2)]
        time.sleep(0.2)  # until their bytes have been read
        ended = [b"x"] * 4
        for number, waiting in enumerate((*halves, idle, body)):
            newer = stack.enter_context(opened(client, HEALTH + b"\r\n"))
            until(newer, b'{"status":"ok"}')
            newer.sendall(request(HI | {"stream": True, "ignore_eos": True, "max_tokens": 200}))
            until(newer, b"data: ")
            ended[number] = rest(waiting)
        assert ended[2] == b""
        assert [error_of(ended[number]) for number in (0, 1, 3)] == [(503, "too_many_connections")] * 3


def test_when_all_connections_are_busy(start: Start, backend: FakeBackend) -> None:
    """Requests are told so, and monitoring is answered."""
    client = start(ConnectionLimits(most=2))
    backend.pace = 0.02
    asked = request(HI | {"stream": True, "ignore_eos": True, "max_tokens": 200})
    with opened(client, asked) as one, opened(client, asked) as other:
        soon(lambda: backend.running == 2)
        refused = fresh(client, "/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_connections")
        assert refused.headers["retry-after"]
        assert fresh(client, "/health").status_code == 200
        one.close()
        other.close()
        soon(lambda: backend.running == 0)
        assert fresh(client, "/v1/models").status_code == 200


def test_a_client_that_never_reads(backend: FakeBackend, parser: str) -> None:
    """Its answer is sent for as long as it takes some of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # which connections inherit
    backend.reply = "The lazy dog. " * 50
    backend._facts = msgspec.structs.replace(backend.facts, context_length=100_000)
    asked = request(HI | {"stream": True, "logprobs": True, "top_logprobs": 20})
    with serving(backend, limits=ConnectionLimits(unread=0.3), parser=parser, listener=listener) as client:
        whole = client.post(CHAT, json=json.loads(asked.partition(b"\r\n\r\n")[2]))
        assert whole.text.endswith("data: [DONE]\n\n")
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((client.base_url.host, client.base_url.port))
            connection.sendall(asked)
            process, port = psutil.Process(), connection.getsockname()[1]
            listed = getattr(process, "net_connections", None) or process.connections  # psutil 6, 5
            soon(lambda: backend.running == 0 and len(backend.requests) == 2)
            soon(lambda: not any(each.raddr and each.raddr.port == port for each in listed("tcp4")))
            assert b"[DONE]" not in rest(connection)


@pytest.mark.parametrize(
    "framing", ["Content-Length: 4\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 4"]
)
def test_a_request_with_two_lengths(start: Start, backend: FakeBackend, framing: str) -> None:
    """Where a proxy in front believes the other one, what comes after it would be somebody else's request."""
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    with opened(start(), head.encode() + b"0\r\n\r\n" + HEALTH + b"\r\n") as connection:
        got = rest(connection)
    assert got.count(b"HTTP/1.1 ") == 1
    assert error_of(got) == (400, "invalid_http")
    assert not backend.requests


def test_four_hundred_halves_with_two_hundred_descriptors() -> None:
    """/health is answered throughout, and the log stays short."""
    with running(files=200) as server, ExitStack() as stack:
        url = httpx.URL(server.url())
        server.until_said(" ready at ")
        with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as kept:
            assert kept.get("/ready").status_code == 200
            for number in range(400):
                connection = stack.enter_context(socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS))
                connection.sendall(HALF)
                if number % 50 == 49:
                    assert httpx.get(f"{url}/health", timeout=WAIT_SECONDS).status_code == 200
            assert kept.get("/ready").status_code == 200
        server.process.terminate()
        err = server.end()[1]
        assert "connections are open, which is the limit" in err
        assert err.count("\n") < 30


def test_accepting_without_descriptors() -> None:
    """Where other things have taken them all, the server tries again, and says so a few times."""
    with running() as server:
        url = httpx.URL(server.url())
        server.until_said(" ready at ")
        assert httpx.get(f"{url}/health").status_code == 200
        pid = server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
        with ExitStack() as stack:
            for _ in range(20):
                stack.enter_context(socket.create_connection((url.host, url.port), timeout=WAIT_SECONDS))
            time.sleep(0.5)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            assert httpx.get(f"{url}/health", timeout=WAIT_SECONDS).status_code == 200
        server.process.terminate()
        assert 1 <= server.end()[1].count("cannot be accepted") <= 5


def test_messages_are_limited_in_rate() -> None:
    now = 0.0
    limit = RepeatLimit(most=2, seconds=60, clock=lambda: now)

    def logged(message: str, *values: object) -> str | None:
        record = logging.LogRecord("uvicorn.error", logging.WARNING, "", 0, message, values, None)
        return record.getMessage() if limit.filter(record) else None

    assert [logged("bad %s\nmore", number) for number in range(4)] == [
        "bad 0\nmore",
        "bad 1\nmore (more of this kind are left out for 60 s)",
        None,
        None,
    ]
    assert logged("other %s", 1) == "other 1"
    now = 61.0
    assert logged("bad %s", 9) == "bad 9 (and 2 more before)"
    assert logged("other %s", 2) == "other 2"


def test_descriptors_in_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 200]
    monkeypatch.setattr(connections.resource, "getrlimit", lambda which: (limits[0], limits[1]))
    monkeypatch.setattr(connections.resource, "setrlimit", lambda which, both: limits.__setitem__(0, both[0]))
    monkeypatch.setattr(connections, "_open_descriptors", lambda: 12)

    def most(soft: int, hard: int, **options: Any) -> tuple[int, int]:
        limits[:] = [soft, hard]
        return connections.connection_limits(ServeOptions(**options)).most, limits[0]

    assert most(200, 200) == (60, 200)
    assert most(200, 400) == (260, 400)
    assert most(1024, 1 << 20) == (4096, 4096 + 140)
    assert most(1024, resource.RLIM_INFINITY, max_queue=10_000) == (20_000, 20_140)
    assert most(resource.RLIM_INFINITY, resource.RLIM_INFINITY) == (4096, resource.RLIM_INFINITY)
    assert most(40, 40) == (16, 40)
    assert connections.connection_limits(ServeOptions(timeout=7)).body == 7


def test_small_packets_are_not_delayed() -> None:
    """With Nagle's algorithm the body of an answer waits 40 ms for the client to acknowledge its head."""
    found: list[int] = []

    async def look() -> None:
        seen = asyncio.Event()

        def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()
            seen.set()

        listener = listen(ServeOptions(port=0))
        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            await seen.wait()
            writer.close()

    asyncio.run(look())
    assert found == [1]
