"""Requests of every kind for serve_everything.py, and what is compared of their answers, whole or streamed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from everything_servers import SCORES, VECTORS, EverythingFlags
from serve_clients import CHAT, COMPLETIONS, refused

MESSAGES, RESPONSES, EMBEDDINGS, RERANK = "/v1/messages", "/v1/responses", "/v1/embeddings", "/v1/rerank"
TEXT = "The quick brown fox jumps over the lazy dog while naïve café guests count 12345 and 3.14159"
WORDS = TEXT.split()
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
SHAPE = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["a"],
         "additionalProperties": False}  # fmt: skip
TOOL = {"name": "get_weather", "description": "The weather"}
PRIORITIES = ({"priority": -3}, {"priority": 5}, {"service_tier": "flex"}, {"service_tier": "priority"})
SCALES = (1.0, 0.5)  # of the adapter whose scale changes


@dataclass(frozen=True)
class Asking:
    """A request whose answer is known. alone: bodies that give the answers it may have, undrafted."""

    kind: str
    path: str
    body: dict[str, Any]
    alone: tuple[dict[str, Any], ...]

    @property
    def streams(self) -> bool:
        """Whether it may be streamed."""
        return self.path not in (EMBEDDINGS, RERANK)


@dataclass(frozen=True)
class Wrong:
    """A request that is no good: its status, and words of the reason."""

    path: str
    body: Any
    status: int
    words: str


def asking(kind: str, path: str, body: dict[str, Any]) -> Asking:
    """A request whose answer is that of its own body."""
    return Asking(kind, path, body, ({**body, "assisted": False},))


def _text(chance: random.Random, most: int) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))


def _sampling(chance: random.Random, model: str) -> dict[str, Any]:
    how: dict[str, Any] = {"temperature": 0, "model": model}
    if chance.random() < 0.5:
        how |= {"temperature": 0.8, "top_p": 0.95, "seed": chance.randrange(1 << 30)}
    if chance.random() < 0.5:
        how |= {"num_assistant_tokens_schedule": "constant", "num_assistant_tokens": 4}
    if chance.random() < 0.5:
        how |= chance.choice(PRIORITIES)
    return how


def texts(chance: random.Random, model: str, common: str) -> list[Asking]:
    """Requests of a model that writes, one of each kind. common: a beginning that prompts share."""
    user = {"role": "user", "content": _text(chance, 12)}
    tool = {"type": "function", "function": {**TOOL, "parameters": SCHEMA}}
    flat = {"type": "function", **TOOL, "parameters": SCHEMA}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SHAPE, "strict": True}}
    short, long = {"max_tokens": chance.randint(2, 24)}, {"max_tokens": chance.randint(60, 160), "ignore_eos": True}
    greedy = {"temperature": 0, "model": model}

    def how() -> dict[str, Any]:
        return _sampling(chance, model)

    def budget() -> dict[str, Any]:
        return {"enable_thinking": True, "thinking_budget": chance.randint(0, 20)}

    return [
        asking("completions", COMPLETIONS, {"prompt": _text(chance, 9), **short, **how()}),
        asking("long prompts", COMPLETIONS, {"prompt": f"{common} {_text(chance, 60)}", **short, **how()}),
        asking("long texts", COMPLETIONS, {"prompt": _text(chance, 5), **long, **how()}),
        asking("choices", COMPLETIONS, {"prompt": [_text(chance, 5), _text(chance, 5)], "n": 2, **short, **how()}),
        asking("chats", CHAT, {"messages": [user], "stop": [" the", "\n\n"], **short, **how()}),
        asking("JSON", CHAT, {"messages": [user], "max_tokens": 60, "response_format": form, **how()}),
        asking("choice", COMPLETIONS, {"prompt": "A", "guided_choice": ["yes", "no"], "max_tokens": 9, **how()}),
        asking("calls", CHAT, {"messages": [user], "max_tokens": 90, "tools": [tool], "tool_choice": "required",
                               "parallel_tool_calls": False, **how()}),
        asking("messages", MESSAGES, {"messages": [user], "system": "Be short.", **short, **greedy}),
        asking("messages with calls", MESSAGES, {
            "messages": [user], "max_tokens": 90, "tools": [{**TOOL, "input_schema": SCHEMA}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, **greedy}),
        asking("responses", RESPONSES, {"input": user["content"], "store": chance.random() < 0.5,
                                        "max_output_tokens": 16, **how()}),
        asking("responses with calls", RESPONSES, {
            "input": [user], "max_output_tokens": 90, "tools": [flat], "tool_choice": "required",
            "parallel_tool_calls": False, **how()}),
        asking("thoughts", CHAT, {"messages": [user], **short, "enable_thinking": True, **how()}),
        asking("thoughts of a budget", CHAT, {"messages": [user], "max_tokens": 60, **budget(), **how()}),
        asking("thoughts before JSON", RESPONSES, {
            "input": [user], "max_output_tokens": 90, "text": {"format": {"type": "json_schema", "name": "a",
            "schema": SHAPE, "strict": True}}, **budget(), **how()}),
        asking("thoughts before calls", CHAT, {
            "messages": [user], "max_tokens": 120, "tools": [tool], "tool_choice": "required",
            "parallel_tool_calls": False, **budget(), **how()}),
        asking("messages with thoughts", MESSAGES, {
            "messages": [user], "max_tokens": 60, **greedy,
            "thinking": {"type": "adaptive", "display": chance.choice(["omitted", "summarized"])}}),
    ]  # fmt: skip


def adapted(chance: random.Random, names: Sequence[str], common: str) -> list[Asking]:
    """Requests of adapters: by name, by `lora`, and of the last one, whose scale is one of SCALES at any moment."""
    found = [each for name in names[:-1] for each in texts(chance, name, common)]
    for number in range(len(names)):
        body = {"prompt": _text(chance, 9), "max_tokens": 20, **_sampling(chance, "base")}
        found.append(asking("lora", COMPLETIONS, {**body, "lora": [{"id": number, "scale": 0.7}]}))
    last = len(names) - 1
    for each in texts(chance, names[-1], common):
        alone = tuple({**each.alone[0], "lora": [{"id": last, "scale": scale}]} for scale in SCALES)
        found.append(Asking("changing scale", each.path, each.body, alone))
    return found


def vectors(chance: random.Random) -> list[Asking]:
    """Requests of an embedding model."""
    few = {"model": VECTORS, "input": [_text(chance, 12) for _ in range(3)]}
    many = {"model": VECTORS, "input": [_text(chance, 30) for _ in range(60)], "encoding_format": "base64"}
    return [Asking("vectors", EMBEDDINGS, body, (body,)) for body in (few, many)]


def scores(chance: random.Random) -> list[Asking]:
    """Requests of a reranker."""
    body = {"model": SCORES, "query": _text(chance, 5), "documents": [_text(chance, 20) for _ in range(9)]}
    return [Asking("scores", RERANK, each, (each,)) for each in (body, {**body, "top_n": 3})]


def all_kinds(flags: EverythingFlags, seed: int) -> list[Asking]:
    """Every kind that a server of these flags answers."""
    chance = random.Random(seed)
    common = " ".join(chance.choices(WORDS, k=90))
    found = [each for model in flags.generators for each in texts(chance, model, common)]
    if flags.adapters:
        found += adapted(chance, flags.adapters, common)
    found += vectors(chance) if flags.vectors else []
    return found + (scores(chance) if flags.scores else [])


def wrong_ones(flags: EverythingFlags) -> list[Wrong]:
    """Requests that are no good, with what is said to them."""
    model = flags.generators[0]
    body = {"prompt": "a", "max_tokens": 2, "model": model}
    user = [{"role": "user", "content": "a"}]
    found = [
        Wrong(COMPLETIONS, {**body, "model": "nobody"}, 404, "there is no model 'nobody' here"),
        Wrong(COMPLETIONS, {**body, "temperature": "x"}, 400, "temperature"),
        Wrong(COMPLETIONS, {**body, "prompt": "word " * 5000}, 400, "shorten it by"),
        Wrong(COMPLETIONS, {**body, "prompt": [99999]}, 400, "has the id 99999"),
        Wrong(COMPLETIONS, {**body, "guided_regex": "(a"}, 400, "cannot be compiled"),
        Wrong(CHAT, {"model": model, "messages": []}, 400, "messages"),
        Wrong(CHAT, {"model": model, "messages": user, "response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "nothing"}}}}, 400, "Invalid type: nothing"),
        Wrong(CHAT, {"model": model, "messages": user, "tool_choice": "required"}, 400, "tool"),
        Wrong(MESSAGES, {"model": model, "messages": user}, 400, "max_tokens"),
        Wrong(RESPONSES, {"model": model, "input": "a", "previous_response_id": "resp_0"}, 404, "resp_0"),
        Wrong(EMBEDDINGS, {"model": model, "input": "a"}, 400, "writes text here"),
        Wrong("/nowhere", body, 404, ""),
    ]  # fmt: skip
    if flags.adapters:
        found.append(Wrong(COMPLETIONS, {**body, "lora": [{"id": 9, "scale": 1}]}, 400, "there is no adapter 9"))
        found.append(Wrong("/lora-adapters", [{"id": 9, "scale": 1}], 400, "there is no adapter 9"))
    if flags.vectors:
        found.append(Wrong(COMPLETIONS, {**body, "model": VECTORS}, 400, "writes no text here"))
        found.append(Wrong(RERANK, {"model": VECTORS, "query": "a", "documents": ["b"]}, 400, "gives vectors"))
        found.append(Wrong(EMBEDDINGS, {"model": VECTORS, "input": ["a", ""]}, 400, "at least 1 character"))
    return found


def told(path: str, response: httpx.Response) -> str:
    """The sentence of an error; raises ValueError where it is not in the form of its API."""
    if path != MESSAGES:
        answer = refused(response.status_code, response.content)
        if answer.kind != "error":
            raise ValueError(answer.message)
        return str(response.json()["error"]["message"])
    body = response.json()
    if body["type"] != "error" or not body["error"]["type"] or "Traceback" in response.text:
        raise ValueError(response.text[:300])
    return str(body["error"]["message"])


def compared(path: str, body: dict[str, Any]) -> Any:
    """What of a whole answer is the same whenever it is asked for: all but ids, times and counts."""
    if path in (EMBEDDINGS, RERANK):
        return body["data" if path == EMBEDDINGS else "results"]
    if path == MESSAGES:
        blocks = [{name: value for name, value in block.items() if name != "id"} for block in body["content"]]
        return [blocks, body["stop_reason"]]
    if path == RESPONSES:
        return [_item(each) for each in body["output"]]
    return [
        _choice(each, each.get("message") or {}) for each in sorted(body["choices"], key=lambda each: each["index"])
    ]


def _choice(choice: dict[str, Any], message: dict[str, Any]) -> list[Any]:
    text = choice["text"] if "text" in choice else message.get("content") or ""
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
    return [text, calls, choice["finish_reason"], message.get("reasoning_content") or ""]


def _item(item: dict[str, Any]) -> list[Any]:
    if item["type"] == "function_call":
        return [item["name"], item["arguments"]]
    return [part["text"] for part in item["content"]]


class StreamReader:
    """Puts the events of a stream together to what `compared` makes of a whole answer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._choices: dict[int, list[Any]] = {}
        self._blocks: list[dict[str, Any]] = []
        self._value: Any = None
        self.ended = False

    def line(self, line: str) -> None:
        """A line of the stream. Raises ValueError for an error among its events."""
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            self.ended = True
            return
        event = json.loads(line[6:])
        if "error" in event or event.get("type") in ("error", "response.failed"):
            raise ValueError(f"in a stream: {line[:300]}")
        if self._path == MESSAGES:
            self._message(event)
        elif self._path == RESPONSES:
            self._response(event)
        else:
            self._chunk(event)

    @property
    def value(self) -> Any:
        """What is compared."""
        if self._path in (MESSAGES, RESPONSES):
            return self._value
        return [self._choices[index] for index in sorted(self._choices)]

    def _chunk(self, event: dict[str, Any]) -> None:
        for choice in event["choices"]:
            found = self._choices.setdefault(choice["index"], ["", [], None, ""])
            delta = choice.get("delta") or {}
            found[0] += choice["text"] if "text" in choice else delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(found[1]):
                    found[1].append([call["function"]["name"], ""])
                found[1][call["index"]][1] += call["function"].get("arguments") or ""
            found[2] = choice["finish_reason"] or found[2]
            found[3] += delta.get("reasoning_content") or ""

    def _message(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "content_block_start":
                block = {name: value for name, value in event["content_block"].items() if name != "id"}
                self._blocks.append({**block, "json": ""})
            case "content_block_delta":
                delta, block = event["delta"], self._blocks[event["index"]]
                block["json"] += delta.get("partial_json", "")
                for name in {"text", "thinking"} & block.keys():
                    block[name] += delta.get(name, "")
            case "message_delta":
                self._value = [[_ended(block) for block in self._blocks], event["delta"]["stop_reason"]]
            case "message_stop":
                self.ended = True

    def _response(self, event: dict[str, Any]) -> None:
        if event["type"] in ("response.completed", "response.incomplete"):
            self._value, self.ended = compared(RESPONSES, event["response"]), True


def _ended(block: dict[str, Any]) -> dict[str, Any]:
    arguments = block.pop("json")
    return {**block, "input": json.loads(arguments or "{}")} if block["type"] == "tool_use" else block
