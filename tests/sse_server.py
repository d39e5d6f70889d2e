"""A small server with OpenAI's API, on a thread of the test: what it streams is scripted by the last message."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sesame"
PIECES = [["The", False], [" quick", True], [" brown", True], [" fox", False], ["\x1b]0;owned\x07.", False]]
END = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    "timings": {"predicted_n": 5, "predicted_per_second": 40.0, "draft_n": 4, "draft_n_accepted": 2},
    "metrics": {"speedup": 1.6},
}


def delta(pieces: list[list[Any]]) -> dict[str, Any]:
    """An event of the stream."""
    text = "".join(piece[0] for piece in pieces)
    return {"choices": [{"index": 0, "delta": {"content": text}, "draft": {"pieces": pieces}}]}


@dataclass
class Heard:
    """The address, every body that was posted, and whether a client went before its answer ended."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def serving() -> Iterator[Heard]:
    """Answer until the end of the block."""
    heard = Heard()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self._refused():
                return
            content = json.dumps({"object": "list", "data": [{"id": "tiny"}]}).encode()
            self._begin(200, "application/json", len(content))
            self.wfile.write(content)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._refused():
                return
            heard.bodies.append(body)
            word = body["messages"][-1]["content"]
            if word == "full":
                self._error(429, "the queue is full, with 16 requests")
                return
            self._begin(200, "text/event-stream")
            try:
                self._stream(word)
            except OSError:
                heard.gone.set()

        def _stream(self, word: str) -> None:
            self._chunk(b": keep-alive\n\n")
            if word == "ponder":
                for part in ({"reasoning_content": " So", "reasoning": " So"}, {"reasoning": " it is."}):
                    self._event({"choices": [{"index": 0, "delta": part}]})
            for piece in PIECES:
                self._event(delta([piece]))
            if word == "endless":
                while True:
                    self._event(delta([[" more", True]]))
                    time.sleep(0.01)
            if word == "broken":
                self._event({"error": {"message": "the engine died", "code": 500}})
            elif word != "cut":
                self._event(END)
                self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")

        def _refused(self) -> bool:
            if self.headers.get("Authorization") == f"Bearer {KEY}":
                return False
            self._error(401, "this server wants a key")
            return True

        def _error(self, status: int, message: str) -> None:
            content = json.dumps({"error": {"message": message}}).encode()
            self._begin(status, "application/json", len(content))
            self.wfile.write(content)

        def _begin(self, status: int, kind: str, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            how = ("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))
            self.send_header(*how)
            self.end_headers()

        def _event(self, event: dict[str, Any]) -> None:
            self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that went away is nothing to tell."""

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    heard.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield heard
    finally:
        server.shutdown()
        server.server_close()
