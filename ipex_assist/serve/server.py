"""The server's main process: serves HTTP at once, loads engines, and shuts down without losing responses."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ipex_assist.serve.connections import ACCEPT_AT_ONCE, KEEP_ALIVE_SECONDS, ConnectionLimits, ConnectionTable
from ipex_assist.serve.engines import Engines
from ipex_assist.serve.listen import BACKLOG
from ipex_assist.serve.stop_signals import StopSignals

if TYPE_CHECKING:
    import ssl

    import uvicorn
    from fastapi import FastAPI
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.workers.local_pool import LocalPool

HANDSHAKE_SECONDS = 10.0  # of TLS
LEAST_FLUSH_SECONDS = 1.0  # for generated output that is still being sent

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
log = logging.getLogger("ipex_assist")

Made = TypeVar("Made")


class Drained(Protocol):
    """The engines of one model, or of many."""

    async def drain(self, seconds: float) -> int:
        """Refuse new requests and wait up to `seconds` for running ones; returns how many were aborted."""
        ...

    def close(self, now: bool = False) -> None:
        """End all processes. now: kill them instead of letting them exit."""
        ...


async def run(
    stop: StopSignals,
    engines: Drained,
    app: FastAPI,
    listener: socket.socket,
    live: Callable[[], Coroutine[Any, Any, None]],
    grace: float,
    limits: ConnectionLimits,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Serve until a signal comes; returns the exit code.

    stop: catches signals meanwhile. live: runs the engines, such as `live`; it is cancelled at the end. grace: seconds
    for what runs when the signal comes. limits: of connections. tls: None where they are not encrypted.
    Raises what `live` does.
    """
    server = make_server(app, limits, tls=tls)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    living = asyncio.create_task(live())
    reasons: set[asyncio.Future[Any]] = {serving, living, stop.first}
    await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
    ending = asyncio.create_task(_end(engines, server, serving, living, grace if stop.first.done() else 0.0))
    either: set[asyncio.Future[Any]] = {ending, stop.second}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if stop.second.done() and not ending.done():
        logging.getLogger("uvicorn.error").disabled = True  # which would log the cancellation
        engines.close(now=True)
        return 128 + stop.second.result()
    ending.result()
    for task in (living, serving):  # raise the reason of an unrequested end
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
    return 0


async def live(
    engines: Engines,
    make_pool: Callable[[], LocalPool],
    load_tokenizer: Callable[[], PreTrainedTokenizerBase],
    when_ready: Callable[[], None],
) -> None:
    """Load, call `when_ready`, and run until every engine is given up, which raises IpexAssistError."""
    await load_engines(engines, make_pool, load_tokenizer)
    when_ready()
    await asyncio.wait({engines.failure})  # without cancelling it when this task is cancelled
    engines.failure.result()


async def load_engines(
    engines: Engines, make_pool: Callable[[], LocalPool], load_tokenizer: Callable[[], PreTrainedTokenizerBase]
) -> None:
    """Load until requests are accepted. make_pool, load_tokenizer: run in threads, since they may download.

    Raises IpexAssistError where the models cannot be loaded.
    """
    engines.start(await in_thread(make_pool))
    tokenizer = asyncio.create_task(in_thread(load_tokenizer))
    try:
        either: set[asyncio.Future[Any]] = {tokenizer, engines.failure}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if tokenizer.done():
            engines.tokenizer = tokenizer.result()
    finally:
        tokenizer.cancel()
    await engines.wait_ready()


async def _end(
    engines: Drained, server: uvicorn.Server, serving: asyncio.Task[None], living: asyncio.Task[None], grace: float
) -> None:
    """Shut down in order: drain the engines, flush responses, end the processes."""
    deadline = time.monotonic() + grace
    await engines.drain(grace)
    living.cancel()
    flush = max(LEAST_FLUSH_SECONDS, deadline - time.monotonic())
    server.config.timeout_graceful_shutdown = int(flush)
    server.should_exit = True
    await asyncio.wait({serving, living})
    engines.close()


def make_server(
    app: FastAPI, limits: ConnectionLimits, parser: str | None = None, tls: ssl.SSLContext | None = None
) -> uvicorn.Server:
    """The HTTP server, to be given sockets. parser: httptools or h11; None: the better of those installed."""
    import uvicorn

    from ipex_assist.serve.http_protocol import http_protocol

    class Server(uvicorn.Server):
        """A server that does not handle signals itself, and accepts few connections at once."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Listen; asyncio has one number for the kernel's queue and for the connections that it accepts at once."""
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(_log_loop_error)
            if tls is not None:  # a connection is counted from its handshake on, which has a limit of its own
                self.config.ssl = tls
                listening = partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_SECONDS)
                loop.create_server = listening  # type: ignore[method-assign]
            await super().startup(sockets=sockets)
            for each in sockets or ():
                each.listen(BACKLOG)

    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=http_protocol(ConnectionTable(limits), parser),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        backlog=ACCEPT_AT_ONCE,
        timeout_keep_alive=int(KEEP_ALIVE_SECONDS),
    )
    return Server(config)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what no caller can be told; asyncio tells of each connection that it cannot accept, with a traceback."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
        log.error("a connection cannot be accepted (%s); it waits, and is tried again every second", error.strerror)
    else:
        loop.default_exception_handler(context)


async def in_thread(work: Callable[[], Made]) -> Made:
    """Run `work` in a daemon thread; a cancelled caller does not wait for it, nor does the end of the process."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[Made] = loop.create_future()

    def tell(error: BaseException | None, result: Made | None) -> None:
        if made.done():
            return
        if error is not None:
            made.set_exception(error)
        else:
            made.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(tell, failed, result)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await made
