"""Servers with everything on, under every kind of request at once: right answers, bounded waiting, nothing left over.

    python tests/outside/serve_everything.py                                # both servers, a minute each
    python tests/outside/serve_everything.py --servers many --seconds 180 --concurrency 24 --seed 5

one   a model with an assistant, n-grams of the prompt, three adapters of which one changes its scale meanwhile
many  three models that write, one of vectors and one of scores, in memory for three: they are unloaded meanwhile

Both speak TLS, keep prefixes in a folder, and send traces to a collector that is not there. Tiny models are made on the
spot, each with a form of calls of its own. Completions, chats, JSON by schema and calls of tools, both also after a
thought of a budget, Anthropic's messages, responses, vectors and scores are asked for, in several priorities, whole,
streamed and read slowly; each answer is compared with the one that it has alone and undrafted. Beside them there are
requests that are no good, halves of requests, and clients that go away. Meanwhile light requests are timed.

Exit code 1 where an answer is another one, a light request waits longer than --light, or, after all have ended, a text
still runs, a block is not free, or memory, threads, open files or processes are more than after the warm-up. Time in
which this process or the server was stopped (SIGSTOP) does not count as waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # what the benchmarks share

import measure
from everything_requests import SCALES, Asking, StreamReader, all_kinds, compared, told, wrong_ones
from everything_servers import EverythingFlags, many_models, one_model
from serve_clients import CHAT, COMPLETIONS, END_SECONDS, Asked, Server, http_client, idle, until

from ipex_assist.env.errors import IpexAssistError

WARM_UP = 0.25  # of the whole time
REST_SECONDS = 30.0  # in which what nobody waits for has ended, and idle models are unloaded
TICK = 0.05  # seconds between two looks at whether this process was stopped
HALF = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Len"
LEFT_OVER = {"threads": 2, "open files": 2, "processes": 0}  # how many more there may be after all than after warm-up
SERVERS: dict[str, Callable[[Path], EverythingFlags]] = {"one": one_model, "many": many_models}


@dataclass(frozen=True)
class Held:
    """What a server has while nothing is asked of it. mib: of memory, without pages of files, by process."""

    mib: tuple[float, ...]
    counts: dict[str, int]

    @classmethod
    def by(cls, server: Server) -> Held:
        """Its front's and its engines' together."""
        found = [server.front, *server.front.children(recursive=True)]
        alive = [each for each in found if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        counts = {
            "threads": sum(each.num_threads() for each in alive),
            "open files": sum(each.num_fds() for each in alive),
            "processes": len(found),
        }
        return cls(tuple(map(_private_mib, alive)), counts)


def _private_mib(process: psutil.Process) -> float:
    """Pages of files come and go with what else the machine does."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))


class Waits:
    """The longest wait for each kind of light request, less the time for which it or the server was stopped."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.worst: dict[str, float] = {}
        self.stopped = 0.0  # seconds

    async def look(self) -> None:
        """Count the time for which nothing could run here or there, until cancelled."""
        while True:
            started = time.monotonic()
            await asyncio.sleep(TICK)
            seconds = time.monotonic() - started
            if seconds > 4 * TICK or self._server.front.status() == psutil.STATUS_STOPPED:
                self.stopped += seconds

    async def of(self, kind: str, request: Callable[[], Awaitable[Any]]) -> Any:
        """Time one request."""
        started, stopped = time.monotonic(), self.stopped
        found = await request()
        await asyncio.sleep(TICK)  # that `look` has seen it
        seconds = time.monotonic() - TICK - started - (self.stopped - stopped)
        self.worst[kind] = max(self.worst.get(kind, 0.0), seconds)
        return found


class Everything:
    """Load of every kind on one server. complaints: what does not hold."""

    def __init__(self, server: Server, flags: EverythingFlags, args: argparse.Namespace) -> None:
        self._server, self._flags, self._args = server, flags, args
        self._chance = random.Random(args.seed)
        self._asked = all_kinds(flags, args.seed)
        self._expected: list[list[Any]] = []
        self._counts: Counter[str] = Counter()
        self._under_way: set[asyncio.Task[None]] = set()
        self._waits = Waits(server)
        self._client: httpx.AsyncClient
        self.complaints: list[str] = []
        self.figures: dict[str, Any] = {}

    async def run(self) -> None:
        """Ask each alone, then all together: first to warm up, then for what is measured."""
        await self._load(0.0)
        await self._load(WARM_UP * self._args.seconds)
        before = await self._held()
        self._waits, started, asked = Waits(self._server), time.monotonic(), self._counts.total()
        await self._load((1 - WARM_UP) * self._args.seconds)
        seconds, requests = time.monotonic() - started, self._counts.total() - asked
        after = await self._held()
        for name, most in LEFT_OVER.items():
            self._expect(
                after.counts[name] <= before.counts[name] + most,
                f"{after.counts[name]} {name} after all, {before.counts[name]} after the warm-up",
            )
        grown = sum(after.mib) - sum(before.mib)
        self._expect(grown <= self._args.most_growth, f"memory grew by {grown:.1f} MiB from {sum(before.mib):.1f} MiB")
        for name, wait in self._waits.worst.items():
            self._expect(wait <= self._args.light, f"{name} took {wait:.2f} s while others ran")
        self.figures = {"requests": requests, "seconds": round(seconds, 1), **dict(sorted(self._counts.items()))}
        self.figures |= {"MiB": " to ".join("+".join(f"{mib:.0f}" for mib in held.mib) for held in (before, after))}
        self.figures |= {name: f"{before.counts[name]} to {after.counts[name]}" for name in LEFT_OVER}
        self.figures |= {f"slowest {name} ms": round(1000 * wait) for name, wait in self._waits.worst.items()}
        self.figures |= {"stopped s": round(self._waits.stopped, 1)} if self._waits.stopped > 1 else {}

    async def _load(self, seconds: float) -> None:
        """Load for so long; without any, ask each alone."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
        async with http_client(self._server.url, limits=limits) as self._client:
            if not seconds:
                self._expected = [[await self._alone(each, body) for body in each.alone] for each in self._asked]
                return
            timing = [asyncio.create_task(self._waits.look()), asyncio.create_task(self._light())]
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                level = self._chance.randint(1, 2 * self._args.concurrency)
                await self._wave(level, min(end, time.monotonic() + self._chance.uniform(2, 8)))
            await asyncio.gather(*self._under_way)
            for task in timing:
                task.cancel()
            for outcome in await asyncio.gather(*timing, return_exceptions=True):
                if isinstance(outcome, Exception):
                    self.complaints.append(f"a light request failed: {type(outcome).__name__}: {outcome}")

    async def _wave(self, level: int, end: float) -> None:
        """Keep up to `level` requests under way."""
        kinds: tuple[tuple[Callable[[], Awaitable[None]], float], ...] = (
            *((self._compare, 8), (self._read_slowly, 1), (self._wrong, 2), (self._go_away, 2)),
            *((self._stay_silent, 0.3), (self._look, 0.5), (self._change, 0.5 if self._flags.adapters else 0)),
        )
        while time.monotonic() < end:
            if len(self._under_way) < level:
                (kind,) = self._chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
                task = asyncio.create_task(self._noted(kind))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(self._chance.expovariate(2 * level))

    async def _noted(self, kind: Callable[[], Awaitable[None]]) -> None:
        """One of them; what goes wrong is a complaint."""
        try:
            await asyncio.wait_for(kind(), END_SECONDS)
        except (ConnectionError, httpx.ConnectError, httpx.TimeoutException, asyncio.TimeoutError) as error:
            if not self._waits.stopped:  # while it is, the time for a handshake, or a request, passes
                self.complaints.append(f"{kind.__name__}: {type(error).__name__}: {error}")
        except (httpx.HTTPError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
            self.complaints.append(f"{kind.__name__}: {type(error).__name__}: {error}")

    def _expect(self, holds: object, complaint: str) -> None:
        if not holds:
            self.complaints.append(complaint)

    # Requests.

    async def _alone(self, asked: Asking, body: dict[str, Any]) -> Any:
        response = await self._client.post(asked.path, json=body)
        self._expect(response.status_code == 200, f"{asked.kind} alone: {response.status_code} {response.text[:300]}")
        return compared(asked.path, response.json()) if response.status_code == 200 else None

    async def _compare(self) -> None:
        """One whose answer is known, whole or streamed, and read as fast as it comes or with pauses."""
        index = self._chance.randrange(len(self._asked))
        asked = self._asked[index]
        stream = asked.streams and self._chance.random() < 0.5
        pause = self._chance.choice((0.0, 0.0, 0.05))
        body = {**asked.body, "stream": True} if stream else asked.body
        async with self._client.stream("POST", asked.path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
                raise ValueError(f"{asked}: {response.status_code} {response.text[:300]}")
            if stream:
                found, ended = await _streamed(asked.path, response, pause)
                self._expect(ended, f"the stream breaks off: {asked}")
            else:
                found = compared(asked.path, json.loads(await response.aread()))
        self._expect(found in self._expected[index], f"{asked}: {found} instead of {self._expected[index]}")
        self._counts[asked.kind] += 1

    async def _wrong(self) -> None:
        """One that is no good."""
        each = self._chance.choice(wrong_ones(self._flags))
        response = await self._client.post(each.path, json=each.body)
        said = told(each.path, response)
        right = response.status_code == each.status and each.words in said
        self._expect(right, f"{each.path} {str(each.body)[:200]}: {response.status_code} {said}")
        self._counts[f"told {response.status_code}"] += 1

    async def _look(self) -> None:
        """What is served, and figures."""
        path = self._chance.choice(("/v1/models", "/metrics", "/lora-adapters", "/openapi.json", "/ready"))
        response = await self._client.get(path)
        self._expect(response.status_code == 200, f"{path}: {response.status_code} {response.text[:300]}")
        self._counts["looks"] += 1

    async def _change(self) -> None:
        """Another scale for the last adapter."""
        last = len(self._flags.adapters) - 1
        scales = [{"id": number, "scale": 1.0} for number in range(last)]
        scales.append({"id": last, "scale": self._chance.choice(SCALES)})
        response = await self._client.post("/lora-adapters", json=scales)
        self._expect(response.json() == {"success": True}, f"/lora-adapters: {response.text[:300]}")
        self._counts["scales"] += 1

    # Connections by hand.

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that takes little before it is read."""
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, self._server.address)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return await asyncio.open_connection(sock=made, ssl=context, server_hostname="localhost", limit=1024)

    async def _leave(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort() if self._chance.random() < 0.7 else writer.close()

    async def _go_away(self) -> None:
        """A client that goes in the middle of its request, before its answer, or in it."""
        asked = self._chance.choice(self._asked)
        data = Asked(
            asked.path, {**asked.body, **({"stream": self._chance.random() < 0.7} if asked.streams else {})}
        ).raw()
        reader, writer = await self._connected()
        moment = self._chance.choice(("in its request", "before its answer", "in its answer"))
        writer.write(data[: self._chance.randrange(len(data))] if moment == "in its request" else data)
        await writer.drain()
        if moment == "in its answer":
            await reader.read(self._chance.randint(1, 2000))
        await asyncio.sleep(self._chance.random() ** 3)
        await self._leave(writer)
        self._counts[f"gone {moment}"] += 1

    async def _read_slowly(self) -> None:
        """A client that asks for a lot, and reads a little of it now and then."""
        model = self._chance.choice((*self._flags.generators, *self._flags.adapters))
        body = {"model": model, "messages": [{"role": "user", "content": "a"}], "n": 3, "max_tokens": 100, "seed": 1}
        more = {"ignore_eos": True, "logprobs": True, "top_logprobs": 20, "stream": True}
        reader, writer = await self._connected()
        writer.write(Asked(CHAT, {**body, **more}).raw())
        for _ in range(self._chance.randint(1, 40)):
            if not await reader.read(1000):
                break
            await asyncio.sleep(0.1)
        await self._leave(writer)
        self._counts["slow readers"] += 1

    async def _stay_silent(self) -> None:
        """A client that sends half of a head, and nothing more."""
        _, writer = await self._connected()
        writer.write(HALF[: self._chance.randrange(len(HALF))])
        await asyncio.sleep(self._chance.uniform(1, 4))
        await self._leave(writer)
        self._counts["silent"] += 1

    # What is watched.

    async def _light(self) -> None:
        """Light requests, one after the other, until cancelled."""
        async with http_client(self._server.url) as client:

            async def get(path: str) -> None:
                (await client.get(path)).raise_for_status()

            async def write() -> None:
                body = {"prompt": "a", "max_tokens": 2, "temperature": 0, "model": self._flags.generators[0]}
                (await client.post(COMPLETIONS, json=body)).raise_for_status()

            while True:
                await self._waits.of("/health", lambda: get("/health"))
                await self._waits.of("/v1/models", lambda: get("/v1/models"))
                if not self._flags.many:  # where a model may have to be loaded first
                    await self._waits.of("short text", write)
                await asyncio.sleep(0.1)

    async def _held(self) -> Held:
        """What the server has when all is at rest."""
        async with http_client(self._server.url) as client:
            if await until(client, idle, REST_SECONDS) is None:
                self.complaints.append(f"after {REST_SECONDS:g} s something still runs, or has blocks")
            end = time.monotonic() + REST_SECONDS
            while self._flags.many and any(card["loaded"] for card in (await client.get("/v1/models")).json()["data"]):
                if time.monotonic() > end:
                    self.complaints.append(f"models are loaded {REST_SECONDS:g} s after the last request")
                    break
                await asyncio.sleep(0.2)
        least = Held.by(self._server)
        for _ in range(10):  # while connections and processes end
            await asyncio.sleep(0.2)
            now = Held.by(self._server)
            least = min(least, now, key=lambda held: sum(held.counts.values()))
        return least


async def _streamed(path: str, response: httpx.Response, pause: float) -> tuple[Any, bool]:
    """What is compared of a stream, and whether it came to its end. pause: seconds after each line."""
    reader = StreamReader(path)
    async for line in response.aiter_lines():
        reader.line(line)
        await asyncio.sleep(pause)
    return reader.value, reader.ended


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default=",".join(SERVERS), help="default: both")
    parser.add_argument("--seconds", type=float, default=60, help="of load on each, a quarter of it to warm up")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at a time; up to twice as many")
    parser.add_argument("--most-growth", type=float, default=24, help="MiB of resident memory after the warm-up")
    parser.add_argument("--light", type=float, default=5, help="seconds that a light request may take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    args = parser.parse_args(argv)
    args.servers = args.servers.split(",")
    if unknown := set(args.servers) - set(SERVERS):
        parser.error(f"--servers {','.join(sorted(unknown))}: there are {', '.join(SERVERS)}")
    return args


def run_server(name: str, args: argparse.Namespace) -> Everything:
    """Load one server, and print a line."""
    with tempfile.TemporaryDirectory() as folder:
        flags = SERVERS[name](Path(folder))
        load = Everything(server := Server(flags.words), flags, args)
        try:
            with server:
                asyncio.run(load.run())
        except IpexAssistError as error:  # it has not ended well
            load.complaints.append(str(error))
    found = ", ".join(f"{key} {value}" for key, value in load.figures.items())
    print(f"{name}: {'FAILED' if load.complaints else 'holds'}: {found}", flush=True)
    for complaint in load.complaints[:10]:
        print(f"  {complaint[:2000]}", flush=True)
    return load


def main(args: argparse.Namespace) -> int:
    """Run all servers; 1 where something does not hold."""
    done = {name: run_server(name, args) for name in args.servers}
    if args.json is not None:
        servers = {name: {**load.figures, "complaints": load.complaints} for name, load in done.items()}
        kept = {"benchmark": "serve_everything", "time": measure.now(), "machine": measure.machine()}
        args.json.write_text(json.dumps({**kept, "servers": servers}) + "\n")
    return 1 if any(load.complaints for load in done.values()) else 0


if __name__ == "__main__":
    arguments = parse()
    sys.exit(measure.exit_code(lambda: main(arguments), lambda text: print(f"error: {text}", file=sys.stderr)))
