"""ASGI middleware: body limits, ambiguous lengths, root path and request ids."""

from __future__ import annotations

import asyncio
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ipex_assist.serve.errors import ApiError

_GOOD_ID = re.compile(rb"[!-~]{1,128}")


def too_long(limit: int, size: int | None = None) -> ApiError:
    """413 with the numbers. size: None without a Content-Length."""
    said = f"the body has {size:,} bytes" if size is not None else f"the body has more than {limit:,} bytes"
    return ApiError(413, f"{said}, and this server takes {limit:,}", code="body_too_large")


class BodyLimit:
    """ASGI middleware: answers 413 to a body of more than `limit` bytes, without reading all of it, and 408 to one that
    does not arrive within `seconds`."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self._app, self._limit, self._seconds = app, limit, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body as it arrives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if size.isdigit() and int(size) > self._limit:
            await too_long(self._limit, int(size)).response(scope["path"])(scope, receive, send)
            return
        read, whole = 0, False
        deadline = asyncio.get_running_loop().time() + self._seconds

        async def counted() -> Message:
            nonlocal read, whole
            message = await (receive() if whole else self._in_time(receive, deadline))
            whole = whole or not message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > self._limit:
                raise too_long(self._limit)
            return message

        await self._app(scope, counted, send)

    async def _in_time(self, receive: Receive, deadline: float) -> Message:
        try:
            return await asyncio.wait_for(receive(), max(0.0, deadline - asyncio.get_running_loop().time()))
        except asyncio.TimeoutError:
            raise ApiError(
                408,
                f"the body has not come within {self._seconds:g} s",
                code="timeout",
                headers={"Connection": "close"},
            ) from None


class OneLength:
    """ASGI middleware: answers 400, and closes, where a request has both Transfer-Encoding and Content-Length.

    A proxy in front may believe the other one, and take the rest of a body for the next request (RFC 9112, 6.1).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400."""
        names = {name for name, _ in scope["headers"]} if scope["type"] == "http" else set()
        if {b"transfer-encoding", b"content-length"} <= names:
            error = ApiError(
                400,
                "the request has both Transfer-Encoding and Content-Length: send one of them",
                code="invalid_http",
                headers={"Connection": "close"},
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)


class RootPath:
    """ASGI middleware: sets root_path to a proxy's prefix, whether or not the proxy strips it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with the root_path."""
        await self._app({**scope, "root_path": self._prefix}, receive, send)


class RequestIds:
    """ASGI middleware: adds an X-Request-Id to every response, the client's own if it sent one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the header to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex.encode()

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), (b"x-request-id", request_id)]}
            await send(message)

        await self._app(scope, receive, named)
