"""A server under load and faults, with real engines: is every text right, does every request end, does it live?

    python tests/outside/serve_faults.py                                     # the embedded model; minutes
    python tests/outside/serve_faults.py --tasks soak --minutes 30
    python tests/outside/serve_faults.py --tasks texts,kills -m FOLDER -- --assistant-model FOLDER --precision int8

texts        each text of requests at once is the one that the request has alone, with drafting on
kills        engines are killed (SIGKILL) under load: right texts or clean errors, and the server recovers
disconnects  clients go away at any moment: nothing is left running, and no block of keys and values is lost
malformed    bodies that are no good, on all routes: each is told so in OpenAI's form
queue        many clients and a short queue: each gets its text, or 429 with Retry-After
soak         random load for --minutes: memory stays flat, and every request ends

Each prints a line; where one does not hold, the exit code is 1. What stands behind -- are further flags of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # what the benchmarks share

import measure
from serve_bodies import Malformed
from serve_clients import END_SECONDS, Answer, Asked, Server, ask, connect, figures, http_client, idle, mixed, until
from serve_soak import Soak

RECOVERY_SECONDS = 120.0  # in which an engine is loaded anew
RESTARTS = "ipex_assist:restarts_total"
IDLE_SECONDS = 15.0  # in which what nobody waits for has ended


@dataclass
class Run:
    """A server, the client that asks it, and what a task finds. complaints: what does not hold."""

    server: Server
    client: httpx.AsyncClient
    args: argparse.Namespace
    chance: random.Random
    figures: dict[str, Any] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Whether what is promised held."""
        return "FAILED" if self.complaints else "holds"

    @property
    def found(self) -> str:
        """The figures, in a line."""
        return ", ".join(f"{name} {value}" for name, value in self.figures.items())

    def expect(self, holds: object, complaint: str) -> None:
        """Something that is promised."""
        if not holds:
            self.complaints.append(complaint)

    async def together(self, asked: Sequence[Asked], count: int) -> list[Answer]:
        """Their answers, `count` requests at a time."""
        turns = asyncio.Semaphore(count)

        async def one(each: Asked) -> Answer:
            async with turns:
                return await ask(self.client, each)

        return list(await asyncio.gather(*map(one, asked)))

    async def alone(self, asked: Sequence[Asked]) -> list[Answer]:
        """Their answers, one after the other, none of them streamed."""
        return [await ask(self.client, each.streamed(False)) for each in asked]


async def texts(run: Run) -> None:
    """Texts at once against the same alone."""
    asked = [each.streamed(index % 2 == 0) for index, each in enumerate(mixed(run.args.requests, run.args, 3))]
    before, started = await figures(run.client), time.monotonic()
    together = await run.together(asked, run.args.concurrency)
    after, seconds = await figures(run.client), time.monotonic() - started
    alone = await run.alone(asked)
    equal = 0
    for each, one, other in zip(asked, together, alone, strict=True):
        same = one.kind == "text" == other.kind and one.texts == other.texts
        run.expect(same, f"{each}: together {one}, alone {other}")
        equal += same
    drafted, accepted = (
        int(after[name] - before[name])
        for name in ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")
    )
    run.expect(drafted and accepted, "nothing was drafted and accepted")
    run.figures = {"requests": len(asked), "equal": equal, "texts": sum(len(one.texts) for one in together)}
    run.figures |= {"drafted": drafted, "accepted": accepted, "seconds": round(seconds, 1)}


async def kills(run: Run) -> None:
    """SIGKILL to engines, while clients go on asking."""
    asked = mixed(24, run.args)
    expected = [answer.texts for answer in await run.alone(asked)]
    over, counts = asyncio.Event(), Counter[str]()

    async def client(chance: random.Random) -> None:
        while not over.is_set():
            index = chance.randrange(len(asked))
            answer = await ask(run.client, asked[index].streamed(chance.random() < 0.5))
            counts[_outcome(run, answer, expected[index])] += 1
            if answer.kind == "error":
                await asyncio.sleep(0.2)

    clients = [asyncio.create_task(client(random.Random(number))) for number in range(run.args.concurrency)]
    recoveries = [await _kill(run) for _ in range(run.args.kills)]
    over.set()
    await asyncio.gather(*clients)
    again = [answer.texts for answer in await run.alone(asked)]
    run.expect(again == expected, "texts behind the kills are others than before")
    run.expect(await until(run.client, idle, IDLE_SECONDS) is not None, "something is left running")
    slowest = max((seconds for seconds in recoveries if seconds is not None), default=None)
    run.expect(None not in recoveries, f"the server has not recovered within {RECOVERY_SECONDS:g} s")
    run.figures = {"kills": len(recoveries), **counts, "slowest recovery s": slowest and round(slowest, 1)}


def _outcome(run: Run, answer: Answer, expected: tuple[tuple[str, str | None], ...]) -> str:
    """How one request ended, with what of it is not as promised among the complaints."""
    if answer.kind == "text":
        run.expect(answer.texts == expected, f"{answer.texts} instead of {expected}")
        return "whole"
    run.expect(answer.kind == "error" and answer.status in (200, 500, 503), str(answer))
    begun = zip(answer.texts, expected[: len(answer.texts)], strict=True)
    run.expect(all(whole.startswith(text) for (text, _), (whole, _) in begun), str(answer))
    return f"errors {answer.status}" if answer.status != 200 else "errors in a stream"


async def _kill(run: Run) -> float | None:
    """Kill an engine, when all are there and at something; returns the seconds until all are there again, None where
    they are not."""

    def whole(now: dict[str, float]) -> bool:
        return now["ipex_assist:places_alive"] == now["ipex_assist:places"]

    busy = await until(run.client, lambda now: whole(now) and now["vllm:num_requests_running"] > 0, RECOVERY_SECONDS)
    if busy is None:
        return None
    await asyncio.sleep(run.chance.uniform(0.1, 1.0))
    before = (await figures(run.client))[RESTARTS]
    run.chance.choice(run.server.engines()).kill()
    seconds = await until(run.client, lambda now: whole(now) and now[RESTARTS] > before, RECOVERY_SECONDS)
    run.expect((await run.client.get("/ready")).status_code == 200, "/ready is not true behind a kill")
    return seconds


async def disconnects(run: Run) -> None:
    """Clients that go away: before the answer, in it, and before all of the request was sent."""
    asked = mixed(24, run.args)
    expected = (await run.alone(asked[:1]))[0]
    turns, counts = asyncio.Semaphore(2 * run.args.concurrency), Counter[str]()

    async def one(number: int) -> None:
        async with turns:
            each = asked[number % len(asked)]
            each = Asked(each.path, {**each.body, "max_tokens": run.args.tokens[1] * 2, "stream": number % 3 > 0})
            counts[await _go_away(run, each)] += 1

    await asyncio.gather(*map(one, range(run.args.disconnects)))
    seconds = await until(run.client, idle, IDLE_SECONDS)
    now = await figures(run.client)
    left = {name: value for name, value in now.items() if "num_requests" in name or "kv_blocks" in name}
    run.expect(seconds is not None, f"after {IDLE_SECONDS:g} s not all is at rest: {left}")
    run.expect((await run.alone(asked[:1]))[0] == expected, "a text behind the disconnects is another than before")
    run.figures = {"disconnects": sum(counts.values()), **counts}
    run.figures |= {"at rest after s": seconds and round(seconds, 2)}


async def _go_away(run: Run, asked: Asked) -> str:
    """Send a request, or a part of it, read nothing or a part of the answer, and be gone; returns when that was."""
    connection = connect(run.server.url)
    reader, writer = await asyncio.open_connection(sock=connection)
    data, moment = asked.raw(), run.chance.choice(("in its request", "before its answer", "in its answer"))
    writer.write(data[: run.chance.randrange(len(data))] if moment == "in its request" else data)
    await writer.drain()
    if moment == "in its answer":
        await asyncio.wait_for(reader.read(run.chance.randint(1, 2000)), END_SECONDS)
    else:
        await asyncio.sleep(run.chance.random() ** 3)
    if run.chance.random() < 0.5:
        writer.close()
    else:
        writer.transport.abort()
    return moment


async def malformed(run: Run) -> None:
    """Bodies that are no good."""
    expected = await run.alone(mixed(2, run.args))
    found = await Malformed(run.server.url, run.args.bodies, run.args.concurrency, run.args.seed).run()
    run.complaints += found.complaints
    run.expect(await run.alone(mixed(2, run.args)) == expected, "a text behind the bodies is another than before")
    run.expect(await until(run.client, idle, IDLE_SECONDS) is not None, "something is left running")
    run.figures = found.figures


async def queue(run: Run) -> None:
    """A hundred clients and a short queue."""
    asked = [each.streamed(index % 2 == 0) for index, each in enumerate(mixed(run.args.clients, run.args))]
    together = await run.together(asked, len(asked))
    alone = await run.alone(asked)
    right = 0
    for one, other in zip(together, alone, strict=True):
        busy = one.status == 429 and one.kind == "error" and (one.retry_after or "").isdigit()
        run.expect(busy or (one.kind == "text" and one.texts == other.texts), f"{one} instead of {other}")
        right += one.kind == "text"
    run.figures = {"clients": len(asked), "texts": right, "told 429": sum(one.status == 429 for one in together)}
    run.expect(right, "nobody got a text")


async def soak(run: Run) -> None:
    """Random load, and memory."""
    found = await Soak(run.server, run.client, run.args).run()
    run.complaints += found.complaints
    run.figures = found.figures


TASKS: dict[str, Callable[[Run], Awaitable[None]]] = {
    each.__name__: each for each in (texts, kills, disconnects, malformed, queue, soak)
}


def flags_of(task: str, args: argparse.Namespace) -> list[str]:
    """What the server is told for a task; those with the same flags share a server."""
    flags = [*(["-m", args.model] if args.model else []), *args.more]
    if task == "kills" and args.instances > 1:
        flags += ["--instances", str(args.instances)]
    if task == "soak" and "--kv-memory" not in flags:  # a cache of prefixes that is soon full does not grow
        flags += ["--kv-memory", "1G"]
    return [*flags, "--max-queue", "16"] if task == "queue" else flags


async def run_tasks(tasks: Sequence[str], server: Server, args: argparse.Namespace) -> list[Run]:
    """Run them one after the other, and print a line for each."""
    done = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with http_client(server.url, limits=limits) as client:
        for task in tasks:
            run = Run(server, client, args, random.Random(args.seed))
            try:
                await TASKS[task](run)
            except (httpx.HTTPError, OSError, asyncio.TimeoutError) as error:
                run.complaints.append(f"the server does not answer: {type(error).__name__}: {error}")
            done.append(run)
            print(f"{task}: {run.verdict}: {run.found}", flush=True)
            for complaint in run.complaints[:5]:
                print(f"  {complaint}", flush=True)
    return done


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="as the server's (default: the embedded one)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="default: all")
    parser.add_argument("--requests", type=int, default=200, help="of texts")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at a time")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--instances", type=int, default=min(2, len(os.sched_getaffinity(0))), help="of kills")
    parser.add_argument("--disconnects", type=int, default=1000)
    parser.add_argument("--bodies", type=int, default=10_000, help="of malformed")
    parser.add_argument("--clients", type=int, default=100, help="of queue")
    parser.add_argument("--minutes", type=float, default=30, help="of soak")
    parser.add_argument("--words", type=int, nargs=2, default=(3, 300), help="of prompts: the least and the most")
    parser.add_argument("--tokens", type=int, nargs=2, default=(8, 64), help="of texts: the least and the most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("more", nargs="*", help="behind --: further flags of the server")
    args = parser.parse_args(argv)
    args.tasks = args.tasks.split(",")
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"--tasks {','.join(sorted(unknown))}: there are {', '.join(TASKS)}")
    return args


def main(args: argparse.Namespace) -> int:
    """Run all tasks; 1 where one does not hold."""
    servers: dict[tuple[str, ...], list[str]] = {}
    for task in args.tasks:
        servers.setdefault(tuple(flags_of(task, args)), []).append(task)
    done: dict[str, Run] = {}
    for flags, tasks in servers.items():
        with Server(list(flags)) as server:
            done |= zip(tasks, asyncio.run(run_tasks(tasks, server, args)), strict=True)
    if args.json is not None:
        kept = {
            "benchmark": "serve_faults",
            "time": measure.now(),
            "machine": measure.machine(),
            "table": [{"task": task, "": run.verdict, "figures": run.found} for task, run in done.items()],
            "model": args.model,
            "tasks": {task: {**run.figures, "complaints": run.complaints} for task, run in done.items()},
        }
        args.json.write_text(json.dumps(kept) + "\n")
    return 1 if any(run.complaints for run in done.values()) else 0


if __name__ == "__main__":
    arguments = parse()
    sys.exit(measure.exit_code(lambda: main(arguments), lambda text: print(f"error: {text}", file=sys.stderr)))
