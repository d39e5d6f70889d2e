"""Encrypted connections: a client that checks the certificate, handshakes that never come, files that are wrong."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import time
from pathlib import Path

import httpx
import pytest
from fake_backend import REPLY, FakeBackend, serving

from ipex_assist.env.errors import UsageError
from ipex_assist.serve import server
from ipex_assist.serve.options import ServeOptions

x509 = pytest.importorskip("cryptography.x509")

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A certificate of 127.0.0.1 with its key, and the same key behind a passphrase."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder, key = tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(1))
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    for file, lock in (
        ("key.pem", serialization.NoEncryption()),
        ("locked.pem", serialization.BestAvailableEncryption(b"secret")),
    ):
        form = serialization.PrivateFormat.PKCS8
        (folder / file).write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
    return folder / "cert.pem", folder / "key.pem", folder / "locked.pem"


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
