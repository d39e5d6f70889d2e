"""Images that a server fetches: from hosts that were named alone, within limits, and never what is not public."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.image_hosts import ImageHosts
from ipex_assist.vision.images import ImageLimits

HERE = "127.0.0.1"


class Pictures(BaseHTTPRequestHandler):
    """Hostile and friendly."""

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        leads = {"/away": f"http://localhost:{port}/good", "/back": "/good", "/round": "/round"}
        if self.path in leads:
            self.send_response(302)
            self.send_header("Location", leads[self.path])
            self.end_headers()
            return
        self.send_response(404 if self.path == "/none" else 200)
        if self.path == "/large":
            self.send_header("Content-Length", str(1 << 40))
        self.end_headers()
        if self.path == "/slow":
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.05)
        elif self.path == "/endless":
            for _ in range(100):
                self.wfile.write(bytes(1000))
        elif self.path == "/good":
            self.wfile.write(b"picture")

    def log_message(self, *ignored: object) -> None:
        return


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer((HERE, 0), Pictures)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_named_hosts_alone(port: int) -> None:
    """Also behind a redirect; an address that is not public has to be named itself, whatever its name is."""
    url = f"http://{HERE}:{port}"
    assert ImageHosts([HERE]).content(f"{url}/good") == b"picture"
    assert ImageHosts([HERE]).content(f"{url}/back") == b"picture"
    assert ImageHosts([]).content("data:;base64,cGljdHVyZQ==") == b"picture"
    for names, path, message in (
        ([], f"{url}/good", "nothing is fetched"),
        (["example.org"], f"{url}/good", f"no image is fetched from {HERE}"),
        (["*"], f"{url}/good", "no public address"),
        (["localhost"], f"http://localhost:{port}/good", "no public address"),
        ([HERE], f"{url}/away", "redirects to another host"),
        ([HERE], f"{url}/round", "redirects more than"),
        ([HERE], f"{url}/none", "answers 404"),
        ([HERE], f"http://user:word@{HERE}:{port}/good", "without a user"),
        ([HERE], f"http://{HERE}:0/good", "without a user"),
        ([HERE], "file:///etc/passwd", "nothing is fetched"),
    ):
        with pytest.raises(UsageError, match=message):
            ImageHosts(names).content(path)


def test_limits(port: int) -> None:
    """Of bytes, said and sent, and of seconds; a host that answers nothing keeps nobody."""
    url, small = f"http://{HERE}:{port}", ImageLimits(bytes=5000)
    for path in ("/large", "/endless"):
        with pytest.raises(UsageError, match="more than the 5,000 bytes"):
            ImageHosts([HERE], small).content(url + path)
    started = time.monotonic()
    with pytest.raises(UsageError, match="cannot be fetched"):
        ImageHosts([HERE], seconds=0.3).content(f"{url}/slow")
    with socket.create_server((HERE, 0)) as silent, pytest.raises(UsageError, match="cannot be fetched"):
        ImageHosts([HERE], seconds=0.3).content(f"http://{HERE}:{silent.getsockname()[1]}/")
    assert time.monotonic() - started < 5
