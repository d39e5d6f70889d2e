"""HTTP connections: uvicorn's protocol with a deadline for each phase, and errors in OpenAI's format."""

from __future__ import annotations

import asyncio
import http
import importlib.util
import logging
from typing import Any, ClassVar

from starlette.types import ASGIApp, Receive, Scope, Send

from ipex_assist.serve.connections import SPARE, ConnectionTable, Phase
from ipex_assist.serve.errors import RETRY_SECONDS, ApiError

log = logging.getLogger("ipex_assist")

MOST_HEAD = 64 << 10  # bytes of a request's head
MONITORING = frozenset({"health", "ready", "metrics", "version"})  # last parts of paths that are always answered
FULL = ApiError(
    503,
    "the server has as many connections as it can hold; come back later",
    code="too_many_connections",
    headers={"Retry-After": str(RETRY_SECONDS), "Connection": "close"},
)


def http_protocol(table: ConnectionTable, parser: str | None = None) -> type[asyncio.Protocol]:
    """The class of connections that are counted in `table`. parser: httptools, or h11; by default the installed one."""
    if parser is None:
        parser = "httptools" if importlib.util.find_spec("httptools") is not None else "h11"
    base = _httptools_connection() if parser == "httptools" else _h11_connection()
    return type("HttpProtocol", (base,), {"table": table})


class WatchedConnection(asyncio.Protocol):
    """What the connections of both parsers have in common; uvicorn's protocol is the base class after it."""

    table: ClassVar[ConnectionTable]
    head_limit: ClassVar[int | None] = None  # None: the parser has one
    body_coming: bool  # whether the body of the last request is still being received
    # uvicorn's: the last request and its response, and the application.
    cycle: Any
    flow: Any
    app: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    _phase: Phase | None = None
    _timer: asyncio.TimerHandle | None = None
    _begun = False  # whether some bytes of the next request are here
    _head_bytes = 0
    _body_since = 0.0  # the loop's time
    _unsent = 0  # bytes that waited when the timer was set

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection; where there are too many, close one that waits, or answer monitoring alone."""
        super().connection_made(transport)
        self._enter(Phase.HEAD)
        if not self.table.full:
            return
        log.warning(
            "%d connections are open, which is the limit: those that wait longest for a request are closed",
            self.table.limits.most,
        )
        other = self.table.first_to_close(self)
        if other is not None:
            other.give_way()
        elif len(self.table) > self.table.limits.most + SPARE:
            self.transport.abort()
        else:
            self.app = _monitoring_while_full(self.app, self.table)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._enter(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and find out what the connection does now."""
        cycle, of_body = self.cycle, self.body_coming
        super().data_received(data)
        if self.cycle is not cycle:
            self._take_request()
        elif not of_body:
            self._begun = True
            self._head_bytes += len(data)
            if self.head_limit is not None and self._head_bytes > self.head_limit:
                self.refuse(ApiError(431, f"the request's head has more than {self.head_limit:,} bytes"))
        self._settle()

    def on_response_complete(self) -> None:
        """uvicorn's callback; it may take up a request that the client has sent already."""
        cycle = self.cycle
        super().on_response_complete()  # type: ignore[misc]
        if self.cycle is not cycle:
            self._take_request()
        self._settle()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._settle()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's callback: answer invalid HTTP."""
        self.refuse(ApiError(400, "the request is no HTTP/1.1", code="invalid_http"))

    def refuse(self, error: ApiError) -> None:
        """Close with an error, unless a response is being sent, of which it would become a part."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_raw_response(error))
        self.transport.close()

    def may_close(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self.transport.is_closing() and not self.transport.get_write_buffer_size()

    def give_way(self) -> None:
        """Close for the sake of a new connection."""
        if self._begun or self._phase is Phase.BODY:
            self.refuse(FULL)
        self._close()

    def _close(self) -> None:
        """Close once: an encrypted transport that is closed a second time forgets what it has not sent, and fails."""
        if not self.transport.is_closing():
            self.transport.close()
        self._settle()

    def _take_request(self) -> None:
        """The head of a request is complete."""
        self._begun, self._head_bytes, self._body_since = False, 0, self.loop.time()

    def _settle(self) -> None:
        """Find out the phase of an open connection, and set its deadline when it has changed."""
        if self._phase is not None and (phase := self._found_phase()) is not self._phase:
            self._enter(phase)

    def _found_phase(self) -> Phase:
        if self.transport.is_closing() or self.flow.write_paused:
            return Phase.UNREAD
        if self.cycle is not None and not self.cycle.response_complete:
            return Phase.BODY if self.body_coming else Phase.BUSY
        if self.body_coming:
            return Phase.REST
        return Phase.HEAD if self.cycle is None or self._begun else Phase.IDLE

    def _enter(self, phase: Phase | None) -> None:
        self.table.move(self, self._phase, phase)
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if phase is not None and phase is not Phase.BUSY:
            self._set_timer(phase)

    def _set_timer(self, phase: Phase) -> None:
        limits, now = self.table.limits, self.loop.time()
        if phase in (Phase.BODY, Phase.REST):
            deadline = self._body_since + limits.body
        else:
            deadline = now + {Phase.HEAD: limits.head, Phase.IDLE: limits.idle, Phase.UNREAD: limits.unread}[phase]
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_at(deadline, self._end_phase)

    def _end_phase(self) -> None:
        """The deadline has passed."""
        self._timer = None
        if self._phase is Phase.UNREAD:
            if self.transport.get_write_buffer_size() < self._unsent:
                self._set_timer(Phase.UNREAD)
            else:
                self.transport.abort()
        elif self._phase is Phase.BODY:
            self.cycle.keep_alive = False  # the application answers 408, and then the connection is closed
        else:
            if self._phase is Phase.HEAD and self._begun:
                seconds = self.table.limits.head
                self.refuse(ApiError(408, f"the request's head has not come within {seconds:g} s", code="timeout"))
            self._close()


def _httptools_connection() -> type[asyncio.Protocol]:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class HttpToolsConnection(WatchedConnection, HttpToolsProtocol):  # type: ignore[misc]
        """Parsed by httptools."""

        head_limit = MOST_HEAD
        body_coming = False

        def on_headers_complete(self) -> None:
            """The parser's callback."""
            self.body_coming = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            """The parser's callback."""
            self.body_coming = False
            super().on_message_complete()

    return HttpToolsConnection


def _h11_connection() -> type[asyncio.Protocol]:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class H11Connection(WatchedConnection, H11Protocol):  # type: ignore[misc]
        """Parsed by h11."""

        @property
        def body_coming(self) -> bool:  # type: ignore[override]
            """As h11 knows it."""
            return self.conn.their_state is h11.SEND_BODY

    return H11Connection


def _raw_response(error: ApiError) -> bytes:
    body = bytes(error.response().body)
    lines = [f"HTTP/1.1 {error.status_code} {http.HTTPStatus(error.status_code).phrase}"]
    headers = {**(error.headers or {}), "Content-Type": "application/json", "Connection": "close"}
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def _monitoring_while_full(app: ASGIApp, table: ConnectionTable) -> ASGIApp:
    """`app`, of which monitoring alone is answered while there are too many connections."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if table.full and scope["path"].rpartition("/")[2] not in MONITORING:
            await FULL.response()(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer
