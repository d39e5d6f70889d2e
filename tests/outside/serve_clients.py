"""A server of real engines for serve_faults.py, and clients that ask it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httpx
import psutil
from own_server import OwnServer
from prometheus_client.parser import text_string_to_metric_families

from ipex_assist.bench.prompts import shipped_prompts, shipped_text
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.workers.program import SUBCOMMAND

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LAST_SECONDS = 60.0  # to end in
END_SECONDS = 300.0  # a request that takes longer has no end
STOPS = ("\n\n", " the")


class Server(OwnServer):
    """One whose processes can be got at; leaving it raises IpexAssistError where it did not end well."""

    @property
    def url(self) -> str:
        """Where it answers."""
        scheme = "https" if "--ssl-certfile" in self._argv else "http"
        return f"{scheme}://{self.address[0]}:{self.address[1]}"

    @property
    def front(self) -> psutil.Process:
        """The process that speaks HTTP."""
        return psutil.Process(self.process.pid)

    def engines(self) -> list[psutil.Process]:
        """The processes of its engines, in the order of their starts."""
        found = []
        for child in self.front.children():
            try:
                if SUBCOMMAND in child.cmdline():
                    found.append(child)
            except psutil.Error:  # it has just ended
                continue
        return sorted(found, key=lambda child: child.pid)

    def __exit__(self, kind: type[BaseException] | None, *more: Any) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LAST_SECONDS)
        code, said = self.process.poll(), self._words()
        super().__exit__(kind, *more)
        if kind is None and (code != 0 or "Traceback" in said):
            ended = f"ended by exit code {code}" if code is not None else f"not ended {LAST_SECONDS:g} s after SIGTERM"
            raise IpexAssistError(f"the server has {ended}, and said: {said}")


@dataclass(frozen=True)
class Asked:
    """A request: its path, and the fields of its body."""

    path: str
    body: dict[str, Any]

    def streamed(self, stream: bool) -> Asked:
        """The same, streamed or not: the texts are the same."""
        return replace(self, body={**self.body, "stream": stream})

    def raw(self) -> bytes:
        """As it goes over the wire."""
        content = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@dataclass(frozen=True)
class Answer:
    """What came of a request. kind: text, error (a clean one, with its status), broken (neither), or endless.

    texts: of each choice, with the reason of its end. status: 200 of an error in a stream that had begun.
    """

    kind: str
    texts: tuple[tuple[str, str | None], ...] = ()
    status: int = 200
    message: str = ""
    retry_after: str | None = None


def mixed(count: int, args: Any, choices: int = 1) -> list[Asked]:
    """Requests, half greedy and half drawn by seeds, of short and long prompts, some with stop texts.

    args: seed, and words and tokens, each the least and the most. choices: the most texts of one request.
    """
    chance = random.Random(args.seed)
    prompts = [prompt.prompt for prompt in shipped_prompts() if isinstance(prompt.prompt, str)]
    text = shipped_text().split()
    made = []
    for index in range(count):
        length = round(args.words[0] * (args.words[1] / args.words[0]) ** chance.random())
        start = chance.randrange(max(1, len(text) - length))
        words = " ".join([*text[start : start + length], *chance.choice(prompts).split()][-length:])
        how: dict[str, Any] = {"temperature": 0, "max_tokens": chance.randint(*args.tokens)}
        if index % 2:
            how |= {"temperature": 0.8, "top_p": 0.95, "seed": chance.randrange(1 << 30)}
        if index % 5 == 1 and choices > 1:
            how["n"] = chance.randint(2, choices)
        if index % 4 < 2:  # whether it pays or not
            how |= {"num_assistant_tokens_schedule": "constant", "num_assistant_tokens": 3}
        if index % 7 == 3:
            how["stop"] = list(STOPS)
        if index % 3:
            made.append(Asked(COMPLETIONS, {"prompt": words, "ignore_eos": index % 4 == 1, **how}))
        else:
            made.append(Asked(CHAT, {"messages": [{"role": "user", "content": words}], **how}))
    return made


def http_client(url: str, **more: Any) -> httpx.AsyncClient:
    """One that goes by no proxy."""
    return httpx.AsyncClient(base_url=url, timeout=END_SECONDS, trust_env=False, verify=False, **more)


async def ask(client: httpx.AsyncClient, asked: Asked) -> Answer:
    """Send a request, and read its answer to the end."""
    try:
        return await asyncio.wait_for(_ask(client, asked), END_SECONDS)
    except (asyncio.TimeoutError, httpx.TimeoutException):
        return Answer("endless", message=f"no end within {END_SECONDS:g} s: {asked}")
    except (httpx.TransportError, ValueError, KeyError, TypeError) as error:
        return Answer("broken", message=f"{type(error).__name__}: {error}")


async def _ask(client: httpx.AsyncClient, asked: Asked) -> Answer:
    async with client.stream("POST", asked.path, json=asked.body) as response:
        if response.status_code == 200 and asked.body.get("stream"):
            return await _streamed(response)
        content = await response.aread()
        if response.status_code != 200:
            return refused(response.status_code, content, response.headers.get("retry-after"))
        found = sorted(json.loads(content)["choices"], key=lambda choice: choice["index"])
        return Answer("text", tuple((_text_of(choice), choice["finish_reason"]) for choice in found))


def refused(status: int, content: bytes, retry_after: str | None = None) -> Answer:
    """What an answer that is no text says; broken where it is in neither OpenAI's form nor Anthropic's, or shows what
    only logs should."""
    try:
        body = json.loads(content)
        error = body["error"]
        clean = isinstance(error["message"], str) and isinstance(error["type"], str)
        clean = clean and ({"param", "code"} <= set(error) or body["type"] == "error")
    except (ValueError, KeyError, TypeError):
        clean = False
    shown = content[:300].decode(errors="replace")
    if not clean or b"Traceback" in content or b'File "' in content:
        return Answer("broken", status=status, message=f"status {status}: {shown}")
    return Answer("error", status=status, message=shown, retry_after=retry_after)


async def _streamed(response: httpx.Response) -> Answer:
    texts: dict[int, str] = {}
    ends: dict[int, str | None] = {}
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return Answer("text", tuple((texts[index], ends[index]) for index in sorted(texts)))
        event = json.loads(line[6:])
        if "error" in event:
            return replace(
                refused(200, line[6:].encode()), texts=tuple((texts[index], None) for index in sorted(texts))
            )
        for choice in event["choices"]:
            index = choice["index"]
            texts[index] = texts.get(index, "") + _text_of(choice)
            ends[index] = choice["finish_reason"] or ends.get(index)
    return Answer("broken", message="the stream breaks off")


def _text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return choice["delta" if "delta" in choice else "message"].get("content") or ""


async def figures(client: httpx.AsyncClient) -> dict[str, float]:
    """What /metrics says, summed over labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


async def until(client: httpx.AsyncClient, true: Callable[[dict[str, float]], bool], seconds: float) -> float | None:
    """Wait until the figures are so; returns the seconds that it took, None where they did not become so."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        if true(await figures(client)):
            return time.monotonic() - started
        await asyncio.sleep(0.02)
    return None


def idle(now: dict[str, float]) -> bool:
    """Whether nothing runs or waits, and all blocks are free or the prefix cache's, where there are blocks."""
    blocks = now.get("ipex_assist:kv_blocks_used", 0.0) - now.get("ipex_assist:kv_blocks_cached", 0.0)
    return not (now["vllm:num_requests_running"] or now["vllm:num_requests_waiting"] or blocks)


def connect(url: str) -> socket.socket:
    """A connection for a request by hand."""
    parts = httpx.URL(url)
    return socket.create_connection((parts.host, parts.port or 80), timeout=END_SECONDS)
