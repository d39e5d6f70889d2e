"""Bodies that are no good, for serve_faults.py: random bytes, changed JSON, wrong kinds and headers, broken HTTP."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
from serve_clients import CHAT, COMPLETIONS, END_SECONDS, http_client, refused

RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
OTHERS = ("/v1/models", "/v1/models/a", "/health", "/ready", "/version", "/metrics", "/", "/a", "/v1/responses/a")
TOKENS = 4  # of a text: what is meant here are bodies, and a few of them are right
LIMITS = {"max_tokens": TOKENS, "max_completion_tokens": TOKENS, "max_output_tokens": TOKENS, "n": 2}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 1]}}, "required": ["a"]}
TURNS = [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": SCHEMA}}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "logit_bias": {"5": 2}, "stop": "x"}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "ignore_eos": True}
THINKING = {"enable_thinking": True, "thinking_budget": 2, "chat_template_kwargs": {"enable_thinking": True}}
BUDGET = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
CALLED = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "Hm.",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
}
BLOCKS = [
    {"type": "thinking", "thinking": "Hm.", "signature": ""},
    {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}},
]
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "3"}]}
RIGHT: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": TURNS, "max_tokens": TOKENS, **SAMPLING}),
    (CHAT, {"messages": TURNS, "max_tokens": TOKENS, "n": 2, "logprobs": True, "top_logprobs": 2, "stream": False}),
    (CHAT, {"messages": TURNS, "max_tokens": TOKENS, "tools": [TOOL], "tool_choice": "required"}),
    (CHAT, {"messages": TURNS, "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}),
    (
        CHAT,
        {
            "messages": TURNS,
            "max_completion_tokens": TOKENS,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        },
    ),
    (COMPLETIONS, {"prompt": "One, two", "max_tokens": TOKENS, "logprobs": 2, "echo": True, **PENALTIES}),
    (COMPLETIONS, {"prompt": [[5, 6, 7], [8]], "max_tokens": TOKENS, "num_assistant_tokens": 3, **SAMPLING}),
    (COMPLETIONS, {"prompt": "A", "max_tokens": TOKENS, "guided_regex": "[ab]{1,3}", "stream": True}),
    (COMPLETIONS, {"prompt": "A", "max_tokens": TOKENS, "guided_choice": ["yes", "no"], "assisted": False}),
    (RESPONSES, {"input": TURNS, "max_output_tokens": TOKENS, "instructions": "Be short.", "store": False}),
    (RESPONSES, {"input": "Hello", "max_output_tokens": TOKENS, "previous_response_id": "resp_0", "stream": True}),
    (CHAT, {"messages": TURNS, "max_tokens": TOKENS, "priority": 3, "service_tier": "flex", **THINKING}),
    (
        CHAT,
        {
            "messages": [*TURNS, CALLED, {"role": "tool", "tool_call_id": "1", "content": "3"}, TURNS[-1]],
            "max_tokens": TOKENS,
            "tools": [TOOL],
            "reasoning_effort": "low",
        },
    ),
    (MESSAGES, {"messages": TURNS[1:], "max_tokens": TOKENS, "system": "Be short.", "thinking": BUDGET}),
    (
        MESSAGES,
        {
            "messages": [TURNS[1], {"role": "assistant", "content": BLOCKS}, {"role": "user", "content": [RESULT]}],
            "max_tokens": TOKENS,
            "tools": [{"name": "add", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
            "stream": True,
        },
    ),
    (COUNT, {"messages": TURNS[1:], "system": [{"type": "text", "text": "Be short."}]}),
    (TOKENIZE, {"prompt": "One, two", "add_special_tokens": True, "return_token_strs": True}),
    (TOKENIZE, {"messages": TURNS}),
    (DETOKENIZE, {"tokens": [1, 2, 3]}),
)
NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 0.5, -0.0, 64.0, 1e-320, 1e30, -1e308, float("nan"), float("inf"), float("-inf")),
    *(2**31, 2**32 - 1, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, 10**400, -(10**4000)),
)
TEXTS = ("", " ", "x", "nan", "64", "\0", "\ud800", "é\u2028\u202e", "a" * 20_000, "{{ 1/0 }}", "(" * 500, "(a+)+$")
TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/json;",
         "application/json; charset=utf-16", "application/octet-stream", "application/ld+json", "é", "*/*")  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO")

Sent = tuple[str, str, bytes, dict[str, str]]  # method, path, body, headers


def junk(chance: random.Random, depth: int = 0) -> Any:
    """A value of any kind."""
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind == 5:
        return [junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind > 5:
        return {chance.choice(TEXTS): junk(chance, depth + 1) for _ in range(chance.randrange(4))}
    return (None, chance.random() < 0.5, chance.choice(NUMBERS), chance.choice(TEXTS), chance.randbytes(4).hex())[kind]


def changed(chance: random.Random, tree: Any) -> Any:
    """A copy with one to three of its places replaced, removed, wrapped, doubled, renamed or added to."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.randint(1, 3)):
        holder, key = _place(chance, tree)
        if key is None:
            return junk(chance)
        match chance.randrange(7):
            case 0 | 1 | 2:
                holder[key] = junk(chance)
            case 3:
                del holder[key]
            case 4:
                holder[key] = chance.choice(([holder[key]], {"a": holder[key]}, [holder[key]] * 3))
            case 5 if isinstance(holder, dict):
                holder[chance.choice(TEXTS)] = holder.pop(key)
            case 6 if isinstance(holder, dict):
                holder[chance.choice([name for _, body in RIGHT for name in body])] = junk(chance)
    return limited(tree)


def _place(chance: random.Random, tree: Any) -> tuple[Any, Any]:
    """Somewhere in a tree: what holds it, and its key there, None where the tree holds nothing."""
    holder, key = tree, None
    for _ in range(chance.randint(1, 6)):
        inner = holder if key is None else holder[key]
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        if not keys:
            break
        holder, key = inner, chance.choice(keys)
    return holder, key


def limited(body: Any) -> Any:
    """The body, with no more to generate than a little, where it is a right one."""
    if not isinstance(body, dict):
        return body
    for name, most in LIMITS.items():
        value = body.get(name)
        if isinstance(value, (int, float)) and most < value <= 10_000_000:
            body[name] = most
    if not any(body.get(name) is not None for name in list(LIMITS)[:3]):
        body |= dict.fromkeys(list(LIMITS)[:3], TOKENS)
    return body


def of_bytes(chance: random.Random) -> Sent:
    """Random bytes, right JSON that is cut or damaged, or in another encoding."""
    path, body = chance.choice(RIGHT)
    data = bytearray(json.dumps(body).encode())
    match chance.randrange(5):
        case 0:
            data = bytearray(chance.randbytes(chance.randrange(300)))
        case 1:
            del data[chance.randrange(len(data)) :]
        case 2:
            data[chance.randrange(len(data))] = chance.randrange(256)
        case 3:
            at = data.find(b"Hello") + 1 or chance.randrange(len(data))
            data[at:at] = chance.choice((b"\xff", b"\\ud800", b"\\u12", b"\\x", b"\n", b"\0", b"\xc0\x80", b'"'))
        case 4:
            text = data.decode()
            data = bytearray(text.encode(chance.choice(("utf-16", "utf-32-be", "utf-8-sig", "cp037"))))
    return "POST", path, bytes(data), {}


def of_json(chance: random.Random) -> Sent:
    """Right JSON, changed."""
    path, body = chance.choice(RIGHT)
    return "POST", path, json.dumps(changed(chance, body)).encode(), {}


def of_depth(chance: random.Random) -> Sent:
    """Nested deeply, as a whole or in one place."""
    path, body = chance.choice(RIGHT)
    depth = int(10 ** chance.uniform(1, 4.5))
    opened, closed = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"type":"array","items":', b"}")))
    deep = opened * depth + b"1" + closed * (depth if chance.random() < 0.8 else 0)
    if chance.random() < 0.3:
        return "POST", path, deep, {}
    body = copy.deepcopy(body)
    holder, key = _place(chance, body)
    holder[key] = "DEEP"
    return "POST", path, json.dumps(limited(body)).encode().replace(b'"DEEP"', deep), {}


def of_headers(chance: random.Random) -> Sent:
    """A body that may be right, under the wrong type, length, method or path."""
    path, body = chance.choice(RIGHT)
    headers = {"Content-Type": chance.choice(TYPES)} if chance.random() < 0.7 else {}
    if chance.random() < 0.2:
        headers["Content-Encoding"] = chance.choice(("gzip", "br", "identity", "x"))
    method = chance.choice(METHODS) if chance.random() < 0.3 else "POST"
    if chance.random() < 0.3:
        path = chance.choice(
            (*OTHERS, path + "/", "//" + path, path + "?%ff=%00&a=" + "b" * 5000, "/v1/models/%ff%00%2e%2e")
        )
    return method, path, json.dumps(body).encode(), headers


def broken_http(chance: random.Random) -> bytes:
    """What is no HTTP, or hardly so."""
    path, body = chance.choice(RIGHT)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    head += b"Connection: close\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    size = f"{len(data):x}\r\n".encode()
    return chance.choice(
        (
            chunked + size + data + b"\r\n0\r\n\r\n",  # which is right
            chunked + chance.choice((b"zz\r\n", b"-5\r\n", b"ffffffffffffffffff\r\n", b"\r\n", b"5;a=b\r\n")) + data,
            chunked + size + data + chance.randbytes(20),
            chunked + b"5\r\n" + data + b"\r\n0\r\n\r\n",
            head + b"Content-Length: -1\r\n\r\n" + data,
            head + b"Content-Length: x\r\n\r\n" + data,
            head + b"Content-Length: 99999999999\r\n\r\n" + data,
            head + f"Content-Length: {len(data)}\r\nContent-Length: 3\r\n\r\n".encode() + data,
            head + b"A" * chance.choice((10, 100_000)) + b": b\r\n\r\n",
            head + b"A\0b: c\r\n\r\n",
            chance.randbytes(200) + b"\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            f"POST {path} HTTP/1.1\r\n\r\n".encode(),  # no Host, and no body
        )
    )


KINDS: tuple[Callable[[random.Random], Sent], ...] = (of_json, of_json, of_json, of_bytes, of_headers, of_depth)


class Malformed:
    """Sends so many bodies, so many at a time. complaints: answers that are not as promised."""

    def __init__(self, url: str, count: int, concurrency: int, seed: int) -> None:
        self._url, self._count, self._concurrency, self._seed = url, count, concurrency, seed
        self._statuses: Counter[str] = Counter()
        self._slowest = 0.0
        self.complaints: list[str] = []

    @property
    def figures(self) -> dict[str, Any]:
        """Bodies, and how many had which status; the slowest answer."""
        return {
            "bodies": sum(self._statuses.values()),
            **dict(sorted(self._statuses.items())),
            "slowest s": round(self._slowest, 2),
        }

    async def run(self) -> Malformed:
        """Send all."""
        numbers = iter(range(self._count))

        async def client(http: httpx.AsyncClient) -> None:
            for number in numbers:
                started = time.monotonic()
                await self._one(http, random.Random(self._seed << 32 | number))
                self._slowest = max(self._slowest, time.monotonic() - started)

        async with http_client(self._url) as http:
            await asyncio.gather(*(client(http) for _ in range(self._concurrency)))
        return self

    async def _one(self, http: httpx.AsyncClient, chance: random.Random) -> None:
        if chance.random() < 0.1:
            data = broken_http(chance)
            try:
                await self._raw(data)
            except (OSError, asyncio.TimeoutError, ValueError, IndexError) as error:
                self._complain(f"{type(error).__name__}: {error}", data)
            return
        method, path, body, headers = chance.choice(KINDS)(chance)
        headers = {"Content-Type": "application/json"} | headers
        encoded = {name: value.encode() for name, value in headers.items()}
        try:
            response = await http.request(method, path, content=body, headers=encoded)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            self._complain(f"{type(error).__name__}: {error}", body)
            return
        self._look(response.status_code, response.content, f"{method} {path} {headers} ".encode() + body)

    async def _raw(self, data: bytes) -> None:
        """Bytes over a connection of their own; that it is closed is an answer, too."""
        address = httpx.URL(self._url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            writer.write(data)
            await asyncio.sleep(0)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), END_SECONDS)
        except ConnectionError:
            answer = b""  # it was closed while we wrote
        finally:
            writer.close()
        if not answer:
            self._statuses["closed"] += 1
            return
        head, _, content = answer.partition(b"\r\n\r\n")
        self._look(int(head.split()[1]), content, data)

    def _look(self, status: int, content: bytes, sent: bytes) -> None:
        self._statuses[str(status)] += 1
        if status >= 500:
            self._complain(f"status {status}: {content[:300]!r}", sent)
        elif status >= 400 and refused(status, content).kind != "error":
            self._complain(refused(status, content).message, sent)
        elif b"Traceback" in content:
            self._complain("a traceback in an answer", sent)

    def _complain(self, what: str, sent: bytes) -> None:
        self.complaints.append(f"{what}; by {sent[:400]!r}{'…' if len(sent) > 400 else ''}")
