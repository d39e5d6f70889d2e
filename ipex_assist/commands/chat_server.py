"""The model of a server with OpenAI's API, as a conversation's partner. Never imports torch."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ipex_assist.commands.chat_partner import Message, Span
from ipex_assist.commands.shared.output import speed_line
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.vision.images import data_url, file_content

CONNECT_S = 10.0
# Our names of options, where OpenAI's API has another one.
API_NAMES = {"max_new_tokens": "max_tokens"}
NOT_SENT = {"do_sample", "temperature", "logprobs"}


class Server:
    """Asks over HTTP; closing the connection tells the server that nobody waits for the rest."""

    def __init__(
        self, url: str, key: str | None, model: str | None, options: GenerationOptions, given: set[str]
    ) -> None:
        """`given`: names of the options that a flag said; of the others the server's defaults hold.

        Raises UsageError for an address that is none, IpexAssistError where no such server answers.
        """
        self._url = _address(url)
        if key and not (key.isascii() and key.isprintable()):
            raise UsageError("--api-key: a key has printable ASCII characters only")
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.options, self._given = options, set(given)
        self._last: dict[str, Any] = {}
        self.thought = ""
        served = self._models()
        if model is not None and model not in served:
            raise UsageError(f"-m {model}: {url} has {', '.join(served) or 'no model'}")
        if not served:
            raise IpexAssistError(f"{url} says of no model that it serves it; is it the API's address?")
        self._model = model or next(iter(served))
        self._defaults = served[self._model]
        self.name = f"{self._model} at {self._url.netloc}"

    def change(self, name: str, options: GenerationOptions) -> None:
        """Answer by these options from now on."""
        self.options = options
        self._given.add(name)

    def answer(self, messages: list[Message]) -> Generator[list[Span], None, None]:
        """The answer, a list an event of the stream."""
        self._last, self.thought = {}, ""
        started = time.perf_counter()
        body = {
            "model": self._model,
            "messages": [{**each, "content": _content(each["content"])} for each in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "draft_details": True,
            **fields(self.options.resolved(self._defaults), self._given),
        }
        for event in self._events("chat/completions", body):
            if error := event.get("error"):
                raise IpexAssistError(f"the answer broke off: {_reason(error)}")
            self.thought += _thought(event)
            if spans := _spans(event):
                self._last["seconds"] = time.perf_counter() - started
                yield spans
            self._last.update({name: event[name] for name in ("usage", "timings", "metrics") if event.get(name)})

    def summary(self) -> str:
        """What the server said at the end of the last answer, and how long that took here."""
        timings = self._last.get("timings") or {}
        metrics = self._last.get("metrics") or {}
        usage = self._last.get("usage") or {}
        drafted = timings.get("draft_n")
        return speed_line(
            usage.get("completion_tokens", timings.get("predicted_n")),
            self._last.get("seconds"),
            timings.get("predicted_per_second"),
            metrics.get("speedup"),
            timings.get("draft_n_accepted", 0) / drafted if drafted else None,
        )

    def _models(self) -> dict[str, dict[str, Any]]:
        """The names of the models, and the defaults of sampling options that the server says they have."""
        with contextlib.closing(self._asked("GET", "models", None)) as connection:
            answer = self._response(connection)
            try:
                return {str(each["id"]): dict(each.get("sampling") or {}) for each in json.loads(answer.read())["data"]}
            except (ValueError, KeyError, TypeError):
                raise IpexAssistError(f"{self._url.geturl()} has no API of OpenAI's form; give its address") from None

    def _events(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The data of a stream's events; each is one line, as OpenAI's API has it."""
        with contextlib.closing(self._asked("POST", path, json.dumps(body))) as connection:
            try:
                for line in self._response(connection):
                    data = line[5:].strip() if line.startswith(b"data:") else b""
                    if data == b"[DONE]":
                        return
                    if data:
                        yield json.loads(data)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise IpexAssistError(f"the answer broke off: {type(error).__name__}: {error}") from None
        raise IpexAssistError("the answer broke off: the server closed the connection")

    def _asked(self, method: str, path: str, body: str | None) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # the first token may take as long as the prompt is
            connection.request(method, f"{self._url.path}/v1/{path}", body, self._headers)
        except OSError as error:
            connection.close()
            raise IpexAssistError(
                f"{self._url.geturl()} does not answer ({error.strerror or error}); is ipex-assist serve running there?"
            ) from None
        return connection

    def _response(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        try:
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise IpexAssistError(f"{self._url.geturl()} broke off: {type(error).__name__}: {error}") from None
        if response.status != 200:
            content = response.read(1 << 16)
            try:
                reason = _reason(json.loads(content)["error"])
            except (ValueError, KeyError, TypeError):
                reason = content[:200].decode(errors="replace")
            raise IpexAssistError(f"{self._url.geturl()} answers {response.status} {response.reason}: {reason}")
        return response


def fields(options: GenerationOptions, given: set[str]) -> dict[str, Any]:
    """What a request says of sampling, so that its text is that of the same flags without a server."""
    names = {*given, *(("top_k", "top_p") if options.draws else ())} - NOT_SENT
    said = {API_NAMES.get(name, name): getattr(options, name) for name in sorted(names)}
    return {**said, "temperature": options.temperature if options.draws else 0}


def _thought(event: dict[str, Any]) -> str:
    """What an event has of thoughts."""
    deltas = [choice.get("delta") or {} for choice in event.get("choices") or []]
    return "".join(str(delta.get("reasoning_content") or delta.get("reasoning") or "") for delta in deltas)


def _spans(event: dict[str, Any]) -> list[Span]:
    """The text of an event by its tokens, where the server says which of them were drafted."""
    for choice in event.get("choices") or []:
        pieces = (choice.get("draft") or {}).get("pieces")
        if pieces:
            return [(str(text), bool(drafted)) for text, drafted in pieces if text]
        if text := (choice.get("delta") or {}).get("content"):
            return [(str(text), False)]
    return []


def _content(content: Any) -> Any:
    """A message's content in OpenAI's form: images as data: URLs. Raises UsageError for a file that cannot be read."""
    if isinstance(content, str):
        return content
    return [
        {"type": "image_url", "image_url": {"url": data_url(file_content(Path(part["image"])))}}
        if part["type"] == "image"
        else part
        for part in content
    ]


def _reason(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _address(url: str) -> SplitResult:
    """The API's address without its /v1. UsageError where it is none."""
    try:
        split = urlsplit(url if "://" in url else f"http://{url}")
        _ = split.port
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from None
    if split.scheme not in ("http", "https") or not split.hostname:
        raise UsageError(f"--url {url}: must be an address such as http://127.0.0.1:8000")
    return split._replace(path=split.path.rstrip("/").removesuffix("/v1"), query="", fragment="")
