"""Models that an HTTP request has opened stay loaded until it has been answered, however it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

_releases: ContextVar[list[Callable[[], None]] | None] = ContextVar("releases", default=None)


def release_at_end(release: Callable[[], None]) -> None:
    """Call `release` when the HTTP request that this task answers has been answered, or has failed."""
    releases = _releases.get()
    if releases is None:
        raise RuntimeError("not within an HTTP request: HeldModels is missing")
    releases.append(release)


class HeldModels:
    """ASGI middleware: calls what `release_at_end` was given in the course of a request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        releases: list[Callable[[], None]] = []
        token = _releases.set(releases)
        try:
            await self._app(scope, receive, send)
        finally:
            _releases.reset(token)
            for release in releases:
                release()
