"""Random load on a server of real engines, and its memory meanwhile, for serve_faults.py."""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections import Counter
from typing import Any

import httpx
import psutil
from serve_clients import CHAT, END_SECONDS, Answer, Asked, Server, ask, idle, mixed, until

SAMPLE_SECONDS = 10.0
CHECKED, CANCELLED, TALKS = 0.4, 0.2, 0.15  # shares of arrivals: texts that are compared, cancelled, conversations
TURNS = 5  # of a conversation, at most
WARM_UP = 0.1  # of the whole time, which does not count
MOST_GROWTH = 0.05  # of memory, from the first third to the last
IDLE_SECONDS = 30.0


class Soak:
    """Requests that come as they like: in waves, some again and again, some given up, some as conversations.

    complaints: what does not hold.
    """

    def __init__(self, server: Server, client: httpx.AsyncClient, args: argparse.Namespace) -> None:
        self._server, self._client, self._args = server, client, args
        self._chance = random.Random(args.seed)
        self._asked = mixed(48, args)
        self._expected: list[Answer] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()
        self._mib: dict[str, list[float]] = {}
        self._processes: dict[str, psutil.Process] = {}
        self.complaints: list[str] = []
        self.figures: dict[str, Any] = {}

    async def run(self) -> Soak:
        """Load for so long, and look at the memory."""
        self._expected = [await ask(self._client, each) for each in self._asked]
        engines = {f"engine {number}": each for number, each in enumerate(self._server.engines())}
        self._processes = {"front": self._server.front, **engines}
        end = time.monotonic() + 60 * self._args.minutes
        sampling = asyncio.create_task(self._sample(end))
        while time.monotonic() < end:
            level = self._chance.randint(1, 2 * self._args.concurrency)
            await self._wave(level, min(end, time.monotonic() + self._chance.uniform(5, 30)))
        await sampling
        await asyncio.gather(*self._under_way)
        if await until(self._client, idle, IDLE_SECONDS) is None:
            self.complaints.append(f"after {IDLE_SECONDS:g} s not all is at rest")
        self._report()
        return self

    async def _wave(self, level: int, end: float) -> None:
        """Keep up to `level` of them under way."""
        while time.monotonic() < end:
            if len(self._under_way) < level:
                kinds, fate = (self._check, self._cancel, self._talk, self._pass), self._chance.random()
                kind = kinds[sum(fate >= each for each in (CHECKED, CHECKED + CANCELLED, CHECKED + CANCELLED + TALKS))]
                task = asyncio.create_task(kind())
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)
            await asyncio.sleep(self._chance.expovariate(level))

    async def _check(self) -> None:
        """One whose text is known."""
        index = self._chance.randrange(len(self._asked))
        answer = await ask(self._client, self._asked[index].streamed(self._chance.random() < 0.5))
        if answer.kind == "text" and answer.texts != self._expected[index].texts:
            self.complaints.append(f"{answer} instead of {self._expected[index]}")
        self._count("compared", answer)

    async def _pass(self) -> None:
        """One that nobody has asked before."""
        each = self._chance.choice(self._asked)
        how = {"seed": self._chance.randrange(1 << 30), "temperature": 0.7, "stream": self._chance.random() < 0.5}
        if "prompt" in each.body:
            how["prompt"] = f"{self._chance.random()} {each.body['prompt']}"
        self._count("others", await ask(self._client, Asked(each.path, {**each.body, **how})))

    async def _cancel(self) -> None:
        """One whose client goes away: its connection is closed with it."""
        patience = self._chance.random()
        try:
            answer = await asyncio.wait_for(ask(self._client, self._chance.choice(self._asked)), patience)
        except asyncio.TimeoutError:
            self._counts["cancelled"] += 1
        else:
            self._count("others", answer)

    async def _talk(self) -> None:
        """A conversation: each turn has all before it."""
        questions = [each.body["messages"][0] for each in self._asked if each.path == CHAT]
        messages: list[dict[str, str]] = []
        for _ in range(self._chance.randint(2, TURNS)):
            messages.append(self._chance.choice(questions))
            body = {"messages": messages, "max_tokens": self._args.tokens[1], "temperature": 0, "stream": True}
            answer = await ask(self._client, Asked(CHAT, body))
            self._count("turns", answer)
            if answer.kind != "text":
                return
            messages = [*messages, {"role": "assistant", "content": answer.texts[0][0]}]

    def _count(self, kind: str, answer: Answer) -> None:
        if answer.kind == "text":
            self._counts[kind] += 1
        elif answer.kind == "error" and answer.status in (413, 429):  # too long a conversation, too full a queue
            self._counts[f"told {answer.status}"] += 1
        else:
            self.complaints.append(str(answer))

    async def _sample(self, end: float) -> None:
        while (left := end - time.monotonic()) > 0:
            for name, process in self._processes.items():
                try:
                    self._mib.setdefault(name, []).append(process.memory_info().rss / (1 << 20))
                except psutil.Error:
                    self.complaints.append(f"{name} has ended")
                    return
            await asyncio.sleep(min(left, SAMPLE_SECONDS, 6 * self._args.minutes))

    def _report(self) -> None:
        self.figures = {"minutes": self._args.minutes, **dict(sorted(self._counts.items()))}
        for name, samples in self._mib.items():
            warm = samples[int(len(samples) * WARM_UP) :]
            third = max(1, len(warm) // 3)
            first, last = statistics.median(warm[:third]), statistics.median(warm[-third:])
            self.figures[f"{name} MiB"] = f"{first:.0f} to {last:.0f}"
            if last > first * (1 + MOST_GROWTH):
                self.complaints.append(f"memory of {name} grew from {first:.1f} to {last:.1f} MiB")
        if not self._counts["compared"]:
            self.complaints.append(f"no text was compared within {END_SECONDS:g} s")
