"""Requests of many texts: they take what nobody else needs, and keep nobody waiting for one of their texts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra serve brings it")

from engine_fake import ENDLESS, PLAY, pool_of

from ipex_assist.serve.app import create_app
from ipex_assist.serve.backend import GenerationRequest, RequestShare
from ipex_assist.serve.dispatcher import Dispatcher
from ipex_assist.serve.engine_slot import ActiveRequest, EngineSlot
from ipex_assist.serve.engines import Engines
from ipex_assist.serve.fair_queue import FairQueue
from ipex_assist.serve.options import ServeOptions
from ipex_assist.speculative.options import DraftOptions, GenerationOptions

pytestmark = pytest.mark.one_stack


def texts(count: int, first: int = 0) -> list[ActiveRequest]:
    """Of one request. Their numbers are their prompts."""
    share = RequestShare()
    requests = [GenerationRequest([first + i], GenerationOptions(), share=share) for i in range(count)]
    return [ActiveRequest.of(request, DraftOptions()) for request in requests]


def order(queue: FairQueue, running: list[ActiveRequest], slots: int) -> list[int]:
    """The prompts in the order in which they run, `slots` at a time, each as long as the others."""
    found = []
    while queue.shares:
        del running[: max(0, len(running) - slots + 1)]
        active = queue.next(running)
        queue.take(active)
        found.append(active.request.tokens[0])
        running.append(active)
    return found


def test_texts_of_several_requests_take_turns() -> None:
    queue = FairQueue()
    for active in (*texts(5), *texts(3, 10), *texts(1, 20)):
        queue.put(active)
    assert (len(queue), queue.shares) == (9, 3)
    assert order(queue, [], 1) == [0, 10, 20, 1, 11, 2, 12, 3, 4]
    assert (len(queue), queue.shares) == (0, 0)


def test_who_has_fewer_running_is_next() -> None:
    """A request that came later is given each slot that becomes free, until it has as many."""
    queue, large = FairQueue(), texts(8)
    for active in (*large[4:], *texts(4, 10)):
        queue.put(active)
    assert order(queue, large[:4], 4) == [10, 11, 4, 5, 12, 13, 6, 7]


def test_requests_of_one_text_keep_their_order() -> None:
    queue, first = FairQueue(), texts(1)[0]
    for number in range(4):
        queue.put(texts(1, number)[0])
    queue.put_back(first)  # its engine has died
    assert queue.next([]) is first
    queue.remove(first)
    assert order(queue, [], 2) == [0, 1, 2, 3]


def test_who_runs_most_gives_a_place_to_who_runs_two_fewer() -> None:
    """The youngest of its texts; a request that runs one text gives none, or requests would pause each other."""
    queue, large, medium = FairQueue(), texts(4), texts(2, 10)
    for number, active in enumerate((*large, *medium)):
        active.number = number
    queue.put(texts(1, 20)[0])
    assert queue.to_pause([*large, *medium]) is large[3]
    assert queue.to_pause([*large[:2], *medium]) is large[1]
    assert queue.to_pause([large[0], medium[0]]) is None
    assert queue.to_pause([]) is None
    waits = FairQueue()
    waits.put(texts(1, 20)[0])
    waits.put_back(large[3])  # what it waits for is the rest of the largest itself
    waits.remove(waits.next([*large[:3]]))
    assert waits.to_pause([*large[:3], *medium]) is None


class NoPool:
    """Engines that are told, and do nothing."""

    told = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        def tell(*_: object) -> None:
            self.told += 1
            assert self.told < 1000, "texts are paused and resumed without end"

        return tell


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_paused_to_be_next(seed: int) -> None:
    """Of any keys and priorities: a request of several texts was paused and resumed for ever beside one of another
    priority, and the server answered nobody any more."""
    chance = random.Random(seed)
    queue, pool = FairQueue(), NoPool()
    slots = [EngineSlot(concurrency=3, pauses=True, ready=True) for _ in range(chance.randint(1, 2))]
    dispatcher = Dispatcher(pool, slots, queue)  # type: ignore[arg-type]
    for _ in range(30):
        share, options = RequestShare(chance.choice("ab")), GenerationOptions(priority=chance.randint(-2, 2))
        for _ in range(chance.choice([1, 1, 2, 5])):
            queue.put(ActiveRequest.of(GenerationRequest([5], options, share=share), DraftOptions()))
            dispatcher.feed()
        for slot in slots:  # some end
            for active in slot.running[: chance.randint(0, 2)]:
                del slot.requests[active.number]
        pool.told = 0
        dispatcher.feed()
        assert all(len(slot.running) == 3 for slot in slots) or not queue.shares


def test_a_paused_text_waits_for_its_own_engine() -> None:
    """Others of its request are started where there is room; alone it has to move."""
    queue, (paused, other) = FairQueue(), texts(2)
    paused.slot, paused.paused = 0, True
    queue.put(other)
    queue.put_back(paused)
    assert queue.next([], {0, 1}) is paused
    assert queue.next([], {1}) is other
    queue.take(other)
    assert queue.next([other], {1}) is paused


@asynccontextmanager
async def served(concurrency: int, **options: Any) -> AsyncIterator[tuple[Engines, httpx.AsyncClient]]:
    """The real application over engines without models."""
    engines = Engines("fake", ServeOptions(**options))
    engines.start(pool_of(1, concurrency=concurrency))
    tokenizer: Any = object()
    engines.tokenizer = tokenizer
    transport = httpx.ASGITransport(create_app(engines, ServeOptions(**options)))
    try:
        await asyncio.wait_for(engines.wait_ready(), 20)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=20) as client:
            yield engines, client
    finally:
        engines.close(now=True)


def test_a_request_of_thousands_of_texts_and_others() -> None:
    """Those who come later are neither told that the queue is full, nor wait for all of its texts."""

    async def main() -> None:
        async with served(2, max_queue=2) as (engines, client):
            body = {"prompt": [[PLAY, 20]] * 128, "n": 128, "max_tokens": 20}
            large = asyncio.ensure_future(client.post("/v1/completions", json=body))
            while engines.statistics().waiting < 3:
                await asyncio.sleep(0.01)
                assert not large.done(), large.result().text
            before = engines.statistics().engine.get("finished", 0)
            body = {"prompt": [PLAY, 200], "max_tokens": 200}  # a fifth of a second, in which all of them come
            found = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(8)))
            codes = [answer.status_code for answer in found]
            # The queue is for two requests; how many leave it before others come is a matter of time.
            assert codes[:2] == [200, 200]
            assert set(codes[2:]) == {200, 429} or set(codes[2:]) == {429}
            assert found[0].json()["choices"][0]["text"].startswith("w0 w1 ")
            assert engines.statistics().engine["finished"] - before < 100  # of 16,384
            assert not large.done()
            large.cancel()
            while engines.statistics().running:
                await asyncio.sleep(0.01)
            assert (await asked_again(client)).status_code == 200

    async def asked_again(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/completions", json={"prompt": [PLAY, 1], "max_tokens": 1})

    asyncio.run(asyncio.wait_for(main(), 60))


def test_nobody_waits_for_a_long_text_of_a_large_request() -> None:
    """All places have texts of one request that never end: others are answered, and then all places are its again."""

    async def main() -> None:
        async with served(4) as (engines, client):
            body = {"prompt": [[ENDLESS, 0]] * 128, "n": 128, "max_tokens": 100}
            large = asyncio.ensure_future(client.post("/v1/completions", json=body))
            while engines.statistics().running < 4 or not engines.statistics().waiting:
                await asyncio.sleep(0.01)
            asked = [client.post("/v1/completions", json={"prompt": [PLAY, 5], "max_tokens": 5}) for _ in range(6)]
            for answer in await asyncio.gather(*asked):
                assert answer.json()["choices"][0]["text"] == "w0 w1 w2 w3 w4 "
            assert engines.statistics().running == 4
            assert not large.done()
            large.cancel()
            while engines.statistics().running:
                await asyncio.sleep(0.01)
            assert engines.statistics().waiting == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_request_waits_in_one_place() -> None:
    """However many texts it has: with a queue for one, all of them are written."""

    async def main() -> None:
        async with served(1, max_queue=1) as (_, client):
            answer = await client.post("/v1/completions", json={"prompt": [[PLAY, 2]] * 40, "max_tokens": 2})
            assert [each["text"] for each in answer.json()["choices"]] == ["w0 w1 "] * 40

    asyncio.run(asyncio.wait_for(main(), 60))


def test_many_requests_of_one_key_are_not_many_shares() -> None:
    """Nine requests of one API key and one of another: the other's is second, not tenth. Within a key a lower priority
    number comes first."""
    queue = FairQueue()
    shares = [RequestShare("a") for _ in range(9)] + [RequestShare("b")]
    for number, share in enumerate(shares):
        options = GenerationOptions(priority=-1 if number == 8 else 0)
        queue.put(ActiveRequest.of(GenerationRequest([number], options, share=share), DraftOptions()))
    found = order(queue, [], 10)
    assert found[:3] == [8, 9, 0]
