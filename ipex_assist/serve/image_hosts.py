"""Images that requests name by their addresses: fetched from hosts that the server was told, within limits."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Sequence
from urllib.parse import SplitResult, urljoin, urlsplit

from ipex_assist.env.errors import UsageError
from ipex_assist.vision.images import LIMITS, ImageLimits, data_url_content

SECONDS = 20.0  # for all of an image
MOST_REDIRECTS = 3  # each to the same host
_PIECE = 1 << 16
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)


def is_elsewhere(url: str) -> bool:
    """Whether an image has to be fetched."""
    return url.startswith(("http://", "https://"))


class ImageHosts:
    """Fetches images from these hosts, and from no other, to which a redirect might lead or a name might point."""

    def __init__(self, names: Sequence[str], limits: ImageLimits = LIMITS, seconds: float = SECONDS) -> None:
        """names: of hosts, *.example.org for any under it, or * for any; addresses that are not public are named."""
        self._names, self._limits, self._seconds = tuple(names), limits, seconds

    def content(self, url: str) -> bytes:
        """What an address gives, or a data: URL holds. Raises UsageError for any other, and where it gives no image."""
        if not is_elsewhere(url):
            return data_url_content(url)
        if not self._names:
            raise UsageError(
                "nothing is fetched: send the image itself, as data:image/png;base64,…, or start the server with "
                "--allow-image-hosts NAME"
            )
        end, first = time.monotonic() + self._seconds, _split(url)
        parts = first
        for _ in range(1 + MOST_REDIRECTS):
            if parts.hostname != first.hostname:
                raise UsageError(f"{first.hostname} redirects to another host, where no image is fetched from")
            found = self._get(parts, end)
            if isinstance(found, bytes):
                return found
            parts = _split(urljoin(parts.geturl(), found))
        raise UsageError(f"{first.hostname} redirects more than {MOST_REDIRECTS} times")

    def _get(self, parts: SplitResult, end: float) -> bytes | str:
        """The content, or where a redirect leads."""
        host = parts.hostname or ""
        connection = http.client.HTTPConnection(host)
        try:
            connection.sock = sock = self._connected(host, parts, end)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Host": parts.netloc, "Accept": "image/*"})
            answer = connection.getresponse()  # which may take the socket from the connection
            if answer.status in _REDIRECTS and (location := answer.getheader("Location")):
                return location
            if answer.status != 200:
                raise UsageError(f"{host} answers {answer.status} for an image")
            return self._read(host, sock, answer, end)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UsageError(f"an image cannot be fetched from {host}: {error or type(error).__name__}") from None
        finally:
            connection.close()

    def _connected(self, host: str, parts: SplitResult, end: float) -> socket.socket:
        """A connection to an address that was looked at: a name may point to another one the next time."""
        self._check_name(host)
        port = parts.port or _PORTS[parts.scheme]
        found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        for address in found:
            if address not in self._names and not ipaddress.ip_address(address.partition("%")[0]).is_global:
                raise UsageError(
                    f"{host} is at {address}, which is no public address: --allow-image-hosts would have to name it"
                )
        made = socket.create_connection((found[0], port), timeout=_left(end))
        if parts.scheme == "https":
            made = ssl.create_default_context().wrap_socket(made, server_hostname=host)
        return made

    def _check_name(self, host: str) -> None:
        for name in self._names:
            if name in ("*", host) or (name.startswith("*.") and host.endswith(name[1:])):
                return
        raise UsageError(f"no image is fetched from {host}: --allow-image-hosts names the hosts that may be asked")

    def _read(self, host: str, sock: socket.socket, answer: http.client.HTTPResponse, end: float) -> bytes:
        length, most, made = answer.length, self._limits.bytes, bytearray()
        while length is None or length <= most:
            sock.settimeout(_left(end))
            piece = answer.read1(_PIECE)
            if not piece:
                return bytes(made)
            made += piece
            if len(made) > most:
                break
        raise UsageError(f"an image at {host} has more than the {most:,} bytes that one may have")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in _PORTS or not parts.hostname or parts.username is not None or parts.port == 0
    except ValueError:
        wrong = True
    if wrong:
        raise UsageError("the address of an image is none: https://HOST/PATH, without a user")
    return parts


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("it takes too long")
    return left
