"""The listening socket: a port or a UNIX socket, bound before anything is loaded."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

from ipex_assist.embedding.task import EMBED, GENERATE, RERANK
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.serve.options import ServeOptions

BACKLOG = 256  # connections queued by the kernel


def listen(options: ServeOptions) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: not an address of this machine, or an impossible path.
        IpexAssistError: the address is in use, or the system does not allow it.
    """
    return _listen_on_path(options.uds) if options.uds is not None else _listen_on_port(options.host, options.port)


def _listen_on_port(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--host {host}: no address of this machine ({reason}); 127.0.0.1 or 0.0.0.0 are") from None
    refused: IpexAssistError | None = None
    for family, _, _, _, address in found:  # a name may have several addresses, not all on this machine
        # With the protocol named, asyncio turns off the delay of small packets (TCP_NODELAY) on its connections.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            refused = refused or _refused(f"port {port} of {host}", error)
        else:
            return listener
    raise refused or UsageError(f"--host {host}: no address of this machine")


def _refused(where: str, error: OSError) -> IpexAssistError:
    if error.errno == errno.EADDRINUSE:
        return IpexAssistError(f"{where} is in use: end what listens there, or choose another --port (0: any free one)")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"--host: {where}: no address of this machine; 127.0.0.1 or 0.0.0.0 are")
    if error.errno in (errno.EACCES, errno.EPERM):
        return IpexAssistError(f"{where}: the system does not allow it; choose a --port above 1023")
    return IpexAssistError(f"{where}: {error.strerror}")


def _listen_on_path(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_dead_socket(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise IpexAssistError(
                f"--uds {path} is there already, and is in use or no socket: choose another"
            ) from None
        raise UsageError(f"--uds {path}: {error.strerror or error}") from None
    return listener


def _remove_dead_socket(path: str) -> None:
    """Remove the socket file of a server that was killed, on which nobody listens."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)


def close(listener: socket.socket, options: ServeOptions) -> None:
    """Close the socket and remove its file."""
    listener.close()
    if options.uds is not None:
        with suppress(OSError):
            os.unlink(options.uds)


def address(listener: socket.socket, options: ServeOptions) -> str:
    """The server's URL from this machine; unix:PATH for a UNIX socket."""
    if options.uds is not None:
        return f"unix:{options.uds}"
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    scheme = "http" if options.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def curl_line(listener: socket.socket, options: ServeOptions, model: str, *, chat: bool, task: str = GENERATE) -> str:
    """An example curl command. chat: whether the model has a chat template. task: what the model is for."""
    url, words = address(listener, options), ["curl"]
    if options.uds is not None:
        words += ["--unix-socket", options.uds]
        url = "http://localhost" if options.ssl_certfile is None else "https://localhost"
    paths = {EMBED: "/v1/embeddings", RERANK: "/v1/rerank"}
    path = paths.get(task, "/v1/chat/completions" if chat else "/v1/completions")
    words += [url + path, "-H 'Content-Type: application/json'"]
    if options.api_key or options.api_key_file is not None:
        words.append('-H "Authorization: Bearer $KEY"')
    question = '"messages": [{"role": "user", "content": "Hello"}]' if chat else '"prompt": "Once upon a time"'
    if task in paths:
        asked = '"input": ["Hello"]' if task == EMBED else '"query": "Who?", "documents": ["A fox.", "A fish."]'
        return " ".join([*words, f"""-d '{{"model": "{model}", {asked}}}'"""])
    return " ".join([*words, f"""-d '{{"model": "{model}", {question}, "max_tokens": 100, "temperature": 0}}'"""])
