"""A number of requests kept in flight over HTTP: what serve_overhead.py sends, and the times at which answers come."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ipex_assist.env.errors import IpexAssistError

Clock = Callable[[], float]
PATH = "/v1/completions"
END = b"[DONE]"
TIMEOUT = 3600.0  # seconds without a byte
READ = 1 << 16  # bytes at most; one call brings what has come


@dataclass
class Arrived:
    """One text: when it was asked for, and when which tokens came, in seconds from the beginning.

    deliveries: (seconds, tokens) of each event that brought some. drafted, accepted: as the server says at the end.
    """

    submitted_s: float
    deliveries: list[tuple[float, int]] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def new_tokens(self) -> int:
        """Tokens of the text."""
        return sum(tokens for _, tokens in self.deliveries)

    def take(self, event: dict[str, Any], now: float) -> None:
        """Take in an event of the stream. Raises IpexAssistError where it is an error."""
        if "error" in event:
            raise IpexAssistError(f"the server says: {event['error']['message']}")
        usage = event["usage"]
        self.prompt_tokens = usage["prompt_tokens"]
        if (came := usage["completion_tokens"] - self.new_tokens) > 0:
            self.deliveries.append((now, came))
        for choice in event["choices"]:
            self.text += choice["text"]
        done = (event.get("metrics") or {}).get("speculative_decoding") or {}
        self.drafted = done.get("num_draft_tokens", self.drafted)
        self.accepted = done.get("num_accepted_draft_tokens", self.accepted)


def body(prompt: Sequence[int], options: dict[str, Any]) -> bytes:
    """A request for a streamed text, every event of which says how many tokens there are. options: of the API."""
    usage = {"include_usage": False, "continuous_usage_stats": True}
    return json.dumps({"prompt": list(prompt), **options, "stream": True, "stream_options": usage}).encode()


def load(
    address: tuple[str, int],
    bodies: Sequence[bytes],
    concurrency: int,
    cpus: Collection[int] = (),
    clock: Clock = time.perf_counter,
) -> list[Arrived]:
    """Keep `concurrency` of the requests in flight, one a thread and connection, and return what came, in their order.

    A request follows as soon as another one has ended. cpus: for the threads, which else have those of this one.
    Raises IpexAssistError for a text that failed.
    """
    waiting = iter(enumerate(bodies))
    found: dict[int, Arrived] = {}
    started = clock()

    def client() -> None:
        if cpus:
            os.sched_setaffinity(0, cpus)
        connection = http.client.HTTPConnection(*address, timeout=TIMEOUT)
        try:
            for number, asked in waiting:  # one after another: only one thread has the GIL
                arrived = found[number] = Arrived(clock() - started)
                for event in _events(connection, asked):
                    arrived.take(event, clock() - started)
        except (OSError, http.client.HTTPException) as error:
            raise IpexAssistError(f"the server does not answer: {error or type(error).__name__}") from error
        finally:
            connection.close()

    with ThreadPoolExecutor(concurrency) as pool:
        for ended in [pool.submit(client) for _ in range(concurrency)]:
            ended.result()
    return [found[number] for number in range(len(bodies))]


def _events(connection: http.client.HTTPConnection, asked: bytes) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer, until its end."""
    connection.request("POST", PATH, asked, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        said = response.read(READ).decode(errors="replace")
        raise IpexAssistError(f"the server answers with status {response.status}: {said}")
    rest, ended = b"", False
    while came := response.read1(READ):
        *events, rest = (rest + came).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data == END:
                ended = True
            elif not event.startswith(b":"):  # such as keeps the connection alive
                yield json.loads(data)
    if not ended:
        raise IpexAssistError("the server's stream broke off")
