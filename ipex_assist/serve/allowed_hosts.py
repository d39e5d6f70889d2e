"""The Host header: a server without a key that listens on this machine alone answers requests to local names alone.

Otherwise any web page could use it, by a name of its own that leads to 127.0.0.1 (DNS rebinding): the browser takes
that for the page's own server.
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.types import ASGIApp, Receive, Scope, Send

from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.options import ServeOptions

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?:\[([0-9a-f:.%]+)\]|([^\[\]:@/\s]+))(?::\d{0,5})?")


def allowed_hosts(options: ServeOptions, *, keys: bool) -> tuple[str, ...] | None:
    """The names that requests may call this server by; None for any. keys: whether it requires an API key."""
    local = not keys and options.uds is None and is_loopback(options.host)
    if "*" in options.allowed_hosts or not (local or options.allowed_hosts):
        return None
    return tuple(dict.fromkeys((*LOCAL_NAMES, options.host.lower(), *options.allowed_hosts)))


def is_loopback(host: str) -> bool:
    """Whether a host, or one of its addresses, is of this machine's loopback; also one without any address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        return True
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    return any((getattr(each, "ipv4_mapped", None) or each).is_loopback for each in addresses)


def host_name(header: str) -> str | None:
    """The name or address in a Host header, in small letters and without brackets; None if it is no host."""
    found = _HOST.fullmatch(header.strip().lower())
    return (found[1] or found[2].removesuffix(".")) if found is not None else None


class AllowedHosts:
    """ASGI middleware: answers 403 to requests for other hosts than `names`, of which *.example.org is any under it.

    A request without a Host header, which no browser sends, is passed on.
    """

    def __init__(self, app: ASGIApp, names: tuple[str, ...]) -> None:
        self._app, self._names = app, names
        self._exact = frozenset(name for name in names if not name.startswith("*."))
        self._ends = tuple(name[1:] for name in names if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        wrong = next((host for host in hosts if not self._allows(host)), None)
        if scope["type"] == "http" and wrong is not None:
            error = ApiError(
                403,
                f"the Host header {wrong[:100]!r} is no name of this server, which has {', '.join(self._names)}: "
                "start it with --allowed-hosts NAME to add one",
                code="host_not_allowed",
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allows(self, header: str) -> bool:
        name = host_name(header)
        return name is not None and (name in self._exact or name.endswith(self._ends))
