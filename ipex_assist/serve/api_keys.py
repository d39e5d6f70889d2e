"""API keys: requests without a valid one get 401. Comparison takes constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from ipex_assist.serve.backend import CALLER
from ipex_assist.serve.errors import ApiError

# Paths that need no key: the page itself (which asks for the key), and monitoring.
OPEN = frozenset({"/", "/health", "/ready", "/version", "/metrics", "/openapi.json", "/docs", "/favicon.ico"})


def is_open(path: str) -> bool:
    """Whether a path is answered without a key."""
    return path in OPEN


class ApiKeys:
    """The valid keys, stored as digests, so that timing reveals neither a matching prefix nor a key's length."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def know(self, key: bytes) -> bool:
        """Whether the key is valid; always compares with all of them."""
        return self.name(key) is not None

    def name(self, key: bytes) -> str | None:
        """A name of a valid key, which is its place in the list; None for another."""
        digest = hashlib.sha256(key).digest()
        right = [hmac.compare_digest(digest, known) for known in self._digests]
        return f"key {right.index(True)}" if any(right) else None


class Authentication:
    """ASGI middleware that requires `Authorization: Bearer KEY`, or Anthropic's `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and self._keys and not self._may(scope):
            error = ApiError(
                401,
                "this server wants one of its API keys: send the header Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may(self, scope: Scope) -> bool:
        """Whether a request has a key, or needs none; CALLER says whose it is from here on."""
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if is_open(path) or scope["method"] == "OPTIONS":  # a browser's CORS preflight carries no key
            return True
        headers = dict(reversed(scope["headers"]))  # the first of a name
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        name = self._keys.name(key.strip()) if kind.lower() == b"bearer" else None
        if name is None and b"x-api-key" in headers:
            name = self._keys.name(headers[b"x-api-key"].strip())
        CALLER.set(name)
        return name is not None
