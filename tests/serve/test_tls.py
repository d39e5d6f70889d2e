"""Encrypted connections: a client that checks the certificate, handshakes that never come, files that are wrong."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import httpx
import pytest
from fake_backend import REPLY, FakeBackend, serving
from tls_files import write_certificate

from ipex_assist.env.errors import UsageError
from ipex_assist.serve import server
from ipex_assist.serve.connections import ConnectionLimits
from ipex_assist.serve.options import ServeOptions

pytest.importorskip("cryptography.x509")

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A certificate of 127.0.0.1 with its key, and the same key behind a passphrase."""
    return write_certificate(tmp_path_factory.mktemp("tls"))


def test_an_encrypted_answer(files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole and streamed; one who says nothing is let go, and others are answered meanwhile."""
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 1.0)
    cert, key, _ = files
    with serving(FakeBackend(), ssl_certfile=str(cert), ssl_keyfile=str(key)) as plain:
        port = plain.base_url.port
        silent = socket.create_connection(("127.0.0.1", port))
        began = time.monotonic()
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=ssl.create_default_context(cafile=str(cert))
        ) as client:
            answer = client.post("/v1/chat/completions", json=HI)
            assert answer.json()["choices"][0]["message"]["content"] == REPLY
            streamed = client.post("/v1/chat/completions", json=HI | {"stream": True})
            assert streamed.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.HTTPError):
            plain.get("/health")
        silent.settimeout(20)
        assert silent.recv(1) == b""
        assert time.monotonic() - began < 15
        silent.close()


def test_half_of_a_request(files: tuple[Path, Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    """It is told so, and closed once: a second time, asyncio's encrypted connections lose their state."""
    cert, key, _ = files
    limits = ConnectionLimits(head=0.2)
    with serving(FakeBackend(), limits=limits, ssl_certfile=str(cert), ssl_keyfile=str(key)) as plain:
        context = ssl.create_default_context(cafile=str(cert))
        address = ("127.0.0.1", plain.base_url.port)
        with (
            socket.create_connection(address, timeout=20) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
            said = b""
            while data := connection.recv(1 << 16):
                said += data
    assert said.startswith(b"HTTP/1.1 408 ")
    assert "Exception in callback" not in caplog.text


def test_wrong_files(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    cert, key, locked = map(str, files)
    (tmp_path / "text").write_text("no certificate")
    for options, words in (
        ({"ssl_keyfile": key}, "goes with --ssl-certfile"),
        ({"ssl_certfile": cert}, "no certificate with its key"),
        ({"ssl_certfile": str(tmp_path / "text")}, "no certificate with its key"),
        ({"ssl_certfile": str(tmp_path / "gone"), "ssl_keyfile": key}, "cannot be read"),
        ({"ssl_certfile": cert, "ssl_keyfile": locked}, "asks for a passphrase"),
    ):
        with pytest.raises(UsageError, match=words):
            ServeOptions.of(**options).tls()
    assert ServeOptions.of(ssl_certfile=cert, ssl_keyfile=key).tls() is not None


@pytest.mark.parametrize("docs", [False, True])
def test_the_documentation_page(docs: bool) -> None:
    """Off unless asked for: a browser loads its scripts from another server."""
    with serving(FakeBackend(), docs=docs, api_key=("secret",)) as client:
        assert client.get("/docs").status_code == (200 if docs else 404)
