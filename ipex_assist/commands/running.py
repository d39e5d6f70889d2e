"""The command `ipex-assist ps`: the models of this user's running servers. Never imports torch."""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ipex_assist.commands.shared.arguments import Formatter
from ipex_assist.commands.shared.server_files import RunningServer, running_servers
from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import gib
from ipex_assist.env.parser import ArgumentParser

ASK_SECONDS = 3.0
EPILOG = """\
Each server that you run on this machine (ipex-assist serve) is asked for its models. A server of many models (serve
--model twice, or --models-dir) lists those that are in memory, with --all the others as well.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist ps`."""
    parser = ArgumentParser(
        prog="ipex-assist ps",
        description="List the models that your servers on this machine have loaded.",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("-a", "--all", action="store_true", help="also models that are not in memory now")
    parser.add_argument("--api-key-file", metavar="FILE", help="file whose first line is the servers' key")
    parser.add_argument("--json", action="store_true", help="one list on one line instead of text")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist ps`; returns the exit code. Raises UsageError for a key file that cannot be read."""
    args = build_parser().parse_args(argv)
    key = _key(args.api_key_file)
    report = [each for server in running_servers() for each in _models(server, key)]
    shown = [each for each in report if args.all or each["loaded"] or each["model"] is None]
    if args.json:
        print(json.dumps(shown), flush=True)
        return 0
    if not shown:
        none = "none of your servers has a model in memory (--all lists them)" if report else "no server of yours runs"
        print(f"{none} on this machine", flush=True)
        return 0
    from tabulate import tabulate

    headers = ("model", "precision", "assistant", "size", "loaded", "server", "pid", "up")
    print(tabulate([_row(each) for each in shown], headers=headers, tablefmt="plain"), flush=True)
    return 0


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    size = gib(each["size"]) if each["size"] else "-"
    loaded = "?" if each["model"] is None else "yes" if each["loaded"] else "no"
    up = f"{(time.time() - each['started']) / 60:.0f} min"
    name = each["model"] or f"({each['error']})"
    return name, each["precision"] or "-", each["assistant"] or "-", size, loaded, each["address"], each["pid"], up


def _models(server: RunningServer, key: str | None) -> list[dict[str, Any]]:
    """What a server says of its models; one line with `error` where it says nothing."""
    about = {"address": server.address, "pid": server.process, "started": server.started}
    empty = dict.fromkeys(("model", "precision", "assistant", "size", "loaded"))
    if server.keys and key is None:
        return [{**empty, **about, "error": "asks for a key: --api-key-file FILE"}]
    try:
        cards = _ask(server.address, key)
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return [{**empty, **about, "error": str(error) or type(error).__name__}]
    return [
        {
            **about,
            "model": card["id"],
            "precision": card.get("precision"),
            "assistant": card.get("assistant"),
            "size": card.get("size"),
            "loaded": card.get("loaded", True),
            "error": None,
        }
        for card in cards
    ]


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ASK_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _ask(address: str, key: str | None) -> list[dict[str, Any]]:
    if address.startswith("unix:"):
        connection: http.client.HTTPConnection = _UnixConnection(address.removeprefix("unix:"))
    else:
        url = urlsplit(address)
        assert url.hostname is not None
        if url.scheme == "https":
            # Its certificate is for another name than localhost; a key is therefore sent to none that is not checked.
            context = ssl.create_default_context() if key is not None else ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=ASK_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(url.hostname, url.port, timeout=ASK_SECONDS)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        body = json.loads(answer.read())
    finally:
        connection.close()
    if answer.status == 503:
        raise ValueError("is loading")
    if answer.status != 200:
        raise ValueError(f"answers {answer.status}")
    return list(body["data"])


def _key(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        key = Path(file).read_text(encoding="utf-8").strip().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--api-key-file {file} cannot be read: {error}") from None
    if not key.isascii() or not key.isprintable() or not key:
        raise UsageError(f"--api-key-file {file}: its first line must be a key of printable ASCII characters")
    return key
