"""The options of a server: defaults, ranges and help. Never imports torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.embedding.task import AUTO, TASKS
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import Choice, Number, Options, Size, Switch, Text, Texts, documented, option

if TYPE_CHECKING:
    import ssl

DAY = 86400.0
# A name or an address, maybe in brackets; before a name, *. is any part.
_HOST_NAME = re.compile(r"\*|(?:\*\.)?[^\s/:@*\[\],]+|\[[0-9a-f:.]+\]|[0-9a-f]*:[0-9a-f:.]*:[0-9a-f:.]*")


def _path(text: str) -> None:
    if not text.startswith("/") or text.endswith("/"):
        raise ValueError("must begin with /, and not end so")


def _collector(text: str) -> None:
    if not text.startswith(("http://", "https://")):
        raise ValueError("must be an address such as http://127.0.0.1:4318")


class HostNames(Texts):
    """Names or addresses of hosts, separated by commas, in small letters; *.example.org is any under it, * is any."""

    def take(self, value: Any) -> tuple[str, ...]:
        """The names one by one."""
        names = [name.strip().lower() for text in super().take(value) for name in text.split(",")]
        for name in names:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(
                    "must be names such as gpu1.example.org, without http:// and port, with commas between"
                )
        return tuple(name.strip("[]").removesuffix(".") for name in names)

    def read(self, text: str) -> str:
        """Names of one flag."""
        self.take(text)
        return text


@documented
@dataclass(frozen=True)
class ServeOptions(Options):
    """Address, authentication and limits of the server."""

    host: str = option("127.0.0.1", "address to listen on; 0.0.0.0 is all of this machine's", Text(), "ADDRESS")
    port: int = option(8000, "port to listen on; 0: any free one", Number(0, 65535, whole=True), "N")
    uds: str | None = option(None, "listen on this UNIX socket instead of a port", Text(), "FILE")
    ssl_certfile: str | None = option(
        None, "answer https only, with this certificate (PEM; its chain may follow it)", Text(), "FILE"
    )
    ssl_keyfile: str | None = option(
        None, "its private key, without a passphrase (default: in --ssl-certfile)", Text(), "FILE"
    )
    docs: bool = option(
        False, "serve /docs, a page to try the API on, whose scripts the browser loads from another server", Switch()
    )
    otel: str | None = option(
        None, "send a trace of each text to this OpenTelemetry collector (OTLP over HTTP)", Text(_collector), "URL"
    )
    root_path: str | None = option(None, "path prefix that a proxy in front removes, such as /llm", Text(_path), "PATH")
    api_key: tuple[str, ...] = option((), "require this key; repeatable", Texts(), "KEY")
    api_key_file: str | None = option(
        None, "file with one key a line, so that no process list shows them", Text(), "FILE"
    )
    cors_origin: tuple[str, ...] = option(
        (), "let pages of this origin use the API; * is any; repeatable", Texts(), "URL"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "names by which requests may call the server besides localhost and --host; * is any (default: any, but local "
        "names alone where it listens on this machine alone and asks for no key)",
        HostNames(),
        "NAME,...",
    )
    allow_image_hosts: tuple[str, ...] = option(
        (),
        "hosts that images in requests are fetched from; addresses that are not public by number",
        HostNames(),
        "NAME,...",
    )
    served_model_name: tuple[str, ...] = option(
        (), "the model's name in requests, the first also in answers; repeatable (default: from -m)", Texts(), "NAME"
    )
    task: str = option(
        AUTO, "embed, rerank or generate (default: what the model's files say it is for)", Choice(TASKS), "TASK"
    )
    matryoshka: bool = option(
        False, "let requests shorten vectors by dimensions, whatever the model's files say", Switch()
    )
    max_queue: int = option(
        256, "requests that may wait for an engine; others are answered 429", Number(0, 1_000_000, whole=True), "N"
    )
    max_concurrency: int | None = option(
        None,
        "texts at a time in each engine, which share passes (default: what its memory holds, up to 16, or more while a "
        "pass takes at most twice as long as one of a single row)",
        Number(1, 4096, whole=True),
        "N",
        flags=("--concurrency",),
        aliases=("--max-concurrency",),
    )
    text_tokens: int = option(
        1024,
        "tokens of a typical text, prompt included, for which memory is planned",
        Number(1, 10_000_000, whole=True),
        "N",
    )
    timeout: float = option(600.0, "seconds for a request, waiting included", Number(0.001, DAY), "S")
    max_body: int = option(16 << 20, "bytes of a request (default: 16M)", Size(), "SIZE")
    max_prompt: int | None = option(
        None, "tokens of a prompt (default: what the context holds)", Number(1, 10_000_000, whole=True), "N"
    )
    max_new_tokens: int = option(
        4096, "limit of a chat without max_tokens, if the context has room", Number(1, 10_000_000, whole=True), "N"
    )
    allow_special_tokens: bool = option(
        False, "as the models are loaded: whether special tokens named in messages are tokens", Switch(), flags=()
    )
    grace: float = option(30.0, "seconds that running requests have after SIGTERM", Number(0, DAY), "S")

    def tls(self) -> ssl.SSLContext | None:
        """What connections are encrypted with, or None.

        Raises UsageError where a file cannot be read, or the two do not belong together.
        """
        if self.ssl_certfile is None:
            if self.ssl_keyfile is not None:
                raise UsageError("--ssl-keyfile goes with --ssl-certfile, the key's certificate")
            return None
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password=_no_passphrase)
        except _Passphrase:
            raise UsageError(
                f"--ssl-keyfile {self.ssl_keyfile or self.ssl_certfile} asks for a passphrase: give the key "
                "without one, readable by the server alone"
            ) from None
        except ssl.SSLError as error:
            raise UsageError(
                f"--ssl-certfile {self.ssl_certfile}: no certificate with its key in PEM form ({error.reason})"
            ) from None
        except OSError as error:
            files = " or ".join(name for name in (self.ssl_certfile, self.ssl_keyfile) if name is not None)
            raise UsageError(f"{files} cannot be read: {error.strerror}") from None
        return context

    def keys(self) -> tuple[str, ...]:
        """All valid API keys; without any, no key is required.

        Raises UsageError if the file cannot be read or holds no key.
        """
        return (*self.api_key, *(_keys_in(self.api_key_file) if self.api_key_file is not None else ()))


class _Passphrase(Exception):
    """A key that asks for one."""


def _no_passphrase() -> str:
    raise _Passphrase


def _keys_in(file: str) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"--api-key-file {file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"--api-key-file {file} is no UTF-8 text: write a key a line") from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise UsageError(f"--api-key-file {file} holds no key: write one a line, for example by openssl rand -hex 32")
    return keys
