"""What every request goes through: the limits of its body, and a number by which logs and clients may call it."""

from __future__ import annotations

import asyncio
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ipex_assist.serve.errors import ApiError

_GOOD_ID = re.compile(rb"[!-~]{1,128}")


def too_long(limit: int, size: int | None = None) -> ApiError:
    """413 with the numbers. size: None where the client did not say it."""
    said = f"the body has {size:,} bytes" if size is not None else f"the body has more than {limit:,} bytes"
    return ApiError(413, f"{said}, and this server takes {limit:,} (--max-body)", code="body_too_large")


class BodyLimit:
    """ASGI middleware: a body of more than `limit` bytes is answered 413, and not read to its end; one that does not
    come within `seconds` is answered 408."""

    def __init__(self, app: ASGIApp, limit: int, seconds: float) -> None:
        self._app, self._limit, self._seconds = app, limit, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a body that is counted as it comes."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if size.isdigit() and int(size) > self._limit:
            await too_long(self._limit, int(size)).response()(scope, receive, send)
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
                f"the body has not come within {self._seconds:g} s (--timeout)",
                code="timeout",
                headers={"Connection": "close"},
            ) from None


class RootPath:
    """ASGI middleware: paths begin with a prefix that a proxy in front has, whether it takes it away or not."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say so to what is inside."""
        await self._app({**scope, "root_path": self._prefix}, receive, send)


class RequestIds:
    """ASGI middleware: every answer has an X-Request-Id, the client's own where it sent one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the header to the answer."""
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
