"""Engines behind a server: what dies, hangs, is slow or goes away costs nobody else anything, and nothing hangs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batch_runs import gone
from engine_fake import (
    AGAIN,
    BREAKS,
    DEAF,
    DIE,
    DIE_FIRST,
    ENDLESS,
    PART_AND_DIE,
    PLAY,
    REFUSED,
    SILENT,
    TURNS,
    WRONG,
    pool_of,
)

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.serve import engines as serve_engines
from ipex_assist.serve.backend import (
    Busy,
    Failed,
    Finished,
    GenerationRequest,
    InvalidField,
    NotReady,
    OutputChunk,
    TokenDelta,
)
from ipex_assist.serve.engine_slot import ActiveRequest
from ipex_assist.serve.engines import Engines
from ipex_assist.serve.options import ServeOptions
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.options import DraftOptions, GenerationOptions
from ipex_assist.workers.wire import PhaseReport

pytestmark = pytest.mark.one_stack

TOKENIZER: Any = object()


@asynccontextmanager
async def served(count: int = 1, *, said: list[str] | None = None, **more: Any) -> AsyncIterator[Engines]:
    """Engines that are ready; `more` are pool_of's, and the server's options."""
    names = ("concurrency", "target", "first")
    pool = pool_of(count, **{name: more.pop(name) for name in names if name in more})
    engines = Engines("fake", ServeOptions(**more), say=(said if said is not None else []).append)
    engines.start(pool)
    engines.tokenizer = TOKENIZER
    try:
        await asyncio.wait_for(engines.wait_ready(), 20)
        await until(lambda: engines.statistics().alive == count)
        yield engines
    finally:
        engines.close(now=True)


def test_what_engines_do_until_they_are_ready_is_passed_on() -> None:
    """A server was silent until then."""

    async def load() -> list[PhaseReport]:
        reports: list[PhaseReport] = []
        engines = Engines("fake", loading=reports.append)
        engines.start(pool_of(1, target="loads"))
        engines.tokenizer = TOKENIZER
        try:
            await asyncio.wait_for(engines.wait_ready(), 20)
        finally:
            engines.close(now=True)
        return reports

    assert asyncio.run(load()) == [PhaseReport("packing weights", 0.43, 2.0, instance=0)]


def request(action: int, count: int = 0, *more: int) -> GenerationRequest:
    return GenerationRequest([action, count, *more], GenerationOptions())


async def text_of(engines: Engines, asked: GenerationRequest, **more: Any) -> tuple[str, list[OutputChunk | Finished]]:
    """The text of a request by its parts, and all that came."""
    items = [item async for item in engines.generate(asked, **more)]
    return "".join(piece.text for item in items if isinstance(item, OutputChunk) for piece in item.token_deltas), items


async def until(condition: Callable[[], object]) -> None:
    """Wait for it, and not for ever."""
    async with asyncio_timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def asyncio_timeout(seconds: float) -> AsyncIterator[None]:
    """asyncio.timeout, which Python 3.10 has not."""
    task = asyncio.current_task()
    assert task is not None
    handle = asyncio.get_running_loop().call_later(seconds, task.cancel)
    try:
        yield
    finally:
        handle.cancel()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_parts_come_in_order_and_then_the_result() -> None:
    async def main() -> None:
        async with served(2) as engines:
            assert engines.ready
            assert (engines.facts.name, engines.facts.context_length) == ("fake", 128)
            found = await asyncio.gather(*(text_of(engines, request(PLAY, count)) for count in range(1, 9)))
            for count, (text, items) in enumerate(found, 1):
                assert text == "".join(f"w{i} " for i in range(count))
                assert isinstance(items[-1], Finished)
                assert items[-1].result["text"] == text
                assert [item.accepted for item in items if isinstance(item, OutputChunk)] == [
                    i % 2 for i in range(count)
                ]
            assert len({items[-1].result["pid"] for _, items in found if isinstance(items[-1], Finished)}) == 2
            statistics = engines.statistics()
            assert (statistics.running, statistics.waiting, statistics.alive) == (0, 0, 2)
            assert statistics.engine == {"finished": 8, "rows": {"1": statistics.engine["rows"]["1"]}}
            assert (statistics.blocks_used, statistics.blocks_total) == (2, 16)

    run(main())


def test_who_goes_away_makes_room_and_stops_nobody() -> None:
    """Closed in the midst of a stream, cancelled while nothing has come, cancelled in the queue: the slot is free."""

    async def main() -> None:
        async with served(1, concurrency=1) as engines:
            for action in (ENDLESS, SILENT):
                stream = engines.generate(request(action))
                first = asyncio.ensure_future(anext(stream))
                await until(lambda: engines.statistics().running == 1)
                queued = asyncio.ensure_future(text_of(engines, request(PLAY, 2)))
                away = asyncio.ensure_future(text_of(engines, request(PLAY, 3)))
                await until(lambda: engines.statistics().waiting == 2)
                away.cancel()
                await until(lambda: engines.statistics().waiting == 1)
                if action == ENDLESS:
                    await first
                    await stream.aclose()
                else:
                    first.cancel()
                assert (await queued)[0] == "w0 w1 "
            assert engines.statistics().running == 0

    run(main())


def test_a_slow_reader_stops_nobody() -> None:
    """Its parts wait for it, and others get theirs."""

    async def main() -> None:
        async with served(1, concurrency=2) as engines, aclosing(engines.generate(request(PLAY, 500))) as slow:
            await anext(slow)
            for _ in range(5):
                assert (await text_of(engines, request(PLAY, 3)))[0] == "w0 w1 w2 "
            await until(lambda: engines.statistics().running == 0)
            assert len([item async for item in slow]) == 500

    run(main())


def test_a_full_queue() -> None:
    """Of many at once those that run and wait get their texts, all others are told to come again."""

    async def main() -> None:
        async with served(1, concurrency=2, max_queue=3) as engines:
            asked = [text_of(engines, request(PLAY, 20)) for _ in range(50)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            busy = [each for each in found if isinstance(each, Busy)]
            assert len(busy) == 50 - 5
            assert all(1 <= each.retry_after <= 600 for each in busy)
            assert sum(isinstance(each, tuple) and len(each[1]) == 21 for each in found) == 5
        async with served(1, concurrency=1, max_queue=0) as engines, aclosing(engines.generate(request(ENDLESS))) as it:
            await anext(it)
            with pytest.raises(Busy, match="0 requests wait"):
                await text_of(engines, request(PLAY, 1))

    run(main())


def test_a_request_that_takes_too_long() -> None:
    """Its time counts from its arrival, in the queue and in an engine, and its room is free at once."""

    async def main() -> None:
        said: list[str] = []
        async with served(1, concurrency=1, timeout=0.1, said=said) as engines:
            async with aclosing(engines.generate(request(ENDLESS), timeout=30.0)) as first:
                await anext(first)
                with pytest.raises(TimeoutError, match=r"longer than 0\.1 s; no token was written"):
                    await text_of(engines, request(PLAY, 1))
                assert engines.statistics().waiting == 0
            with pytest.raises(TimeoutError):
                await text_of(engines, request(SILENT))
            assert (await text_of(engines, request(PLAY, 1)))[0] == "w0 "
            with pytest.raises(TimeoutError, match=r"; \d+ tokens were written: ask for fewer \(max_tokens\)"):
                await text_of(engines, request(ENDLESS))
        assert len([line for line in said if "longer than --timeout (0.1 s) and is ended" in line]) == 3

    run(main())


def test_errors_of_requests() -> None:
    async def main() -> None:
        async with served(1) as engines:
            for action, again in ((WRONG, False), (AGAIN, True)):
                with pytest.raises(Failed, match="no good") as caught:
                    await text_of(engines, request(action))
                assert caught.value.again == again
            held = replace(request(REFUSED), grammar=GrammarSpec("lark", "start: <[99999]>", "guided_grammar"))
            for asked, field in ((request(REFUSED), None), (held, "guided_grammar")):
                with pytest.raises(InvalidField, match="no good") as refusal:  # 400, where it is the request's fault
                    await text_of(engines, asked)
                assert refusal.value.param == field

    run(main())


@pytest.mark.parametrize("count", [1, 2])
def test_an_engine_that_dies_before_a_part_came(count: int, tmp_path: Path) -> None:
    """The request is tried again, elsewhere or by the engine that is started anew; nobody notices."""

    async def main() -> None:
        said: list[str] = []
        async with served(count, first=tmp_path / "first", said=said) as engines:
            assert (await text_of(engines, request(DIE_FIRST, 2)))[0] == "w0 w1 "
            await until(lambda: engines.statistics().alive == count)
            assert engines.statistics().restarts == 1
            assert any("SIGKILL" in line and "at 1 requests, of which 0 failed" in line for line in said), said
            with pytest.raises(Failed, match=r"engine .* was killed by SIGKILL") as caught:
                await text_of(engines, request(DIE))
            assert caught.value.again

    run(main())


def test_an_engine_that_dies_in_the_midst_of_a_stream() -> None:
    """The reader is told, behind what there is, where another engine dies of it, too."""

    async def main() -> None:
        async with served(2) as engines:
            async with aclosing(engines.generate(request(PART_AND_DIE))) as stream:
                assert isinstance(await anext(stream), OutputChunk)
                with pytest.raises(Failed, match="SIGKILL"):
                    await anext(stream)
            await until(lambda: engines.ready)
            assert (await text_of(engines, request(PLAY, 1)))[0] == "w0 "

    run(main())


@pytest.mark.parametrize("count", [1, 2])
def test_a_text_goes_on_behind_the_death_of_its_engine(count: int, tmp_path: Path) -> None:
    """Elsewhere, or when the engine is back: what was delivered is neither repeated nor missing."""

    async def main() -> None:
        async with served(count, first=tmp_path / "first") as engines:
            text, items = await text_of(engines, request(BREAKS, 9))
            assert text == "".join(f"w{i} " for i in range(9))
            assert [
                piece.token for item in items if isinstance(item, OutputChunk) for piece in item.token_deltas
            ] == list(range(9))
            assert isinstance(items[-1], Finished)
            assert items[-1].result["text"] == text
            assert engines.statistics().restarts == 1

    run(main())


def test_a_text_does_not_go_on_by_other_tokens(tmp_path: Path) -> None:
    """As engines of other arithmetic might: nobody gets the halves of two texts for one."""

    async def main() -> None:
        async with served(1, first=tmp_path / "first") as engines:
            with pytest.raises(Failed, match="did not continue with the same text") as caught:
                await text_of(engines, request(TURNS, 9))
            assert caught.value.again
            await until(lambda: engines.statistics().running == 0)

    run(main())


def test_parts_of_several_tries() -> None:
    """Cut as each try's passes were: what is new of a part is delivered with its own log-probabilities."""

    def part(*tokens: int) -> OutputChunk:
        return OutputChunk(
            [TokenDelta(str(token), token, False) for token in tokens],
            [TokenLogprob(token, -1.0) for token in tokens],
            2,
            1,
        )

    async def main() -> None:
        text = ActiveRequest.of(GenerationRequest([1], GenerationOptions(do_sample=True)), DraftOptions())
        assert text.options.seed is not None  # each try draws alike
        assert text.deliver(part(1, 2, 3))
        text.seen = 0
        assert text.deliver(part(1, 2))
        assert text.deliver(part(3, 4, 5))
        assert text.deliver(part(6))
        text.seen = 1
        assert not text.deliver(part(2, 3, 4, 5, 7, 8))
        text.output.put(Finished({}))
        assert [item async for item in text.output] == [part(1, 2, 3), part(4, 5), part(6), Finished({})]

    run(main())


def test_kills_under_load() -> None:
    """kill -9 of an engine ten times while requests come all the time: each has its text or a clean error, and each
    engine is there in the end."""

    async def main() -> None:
        async with served(2, concurrency=4) as engines:
            pids: set[int] = set()
            results: list[Exception | None] = []
            enough = False

            async def client() -> None:
                while not enough:
                    try:
                        text, items = await text_of(engines, request(PLAY, 10))
                        assert text == "".join(f"w{i} " for i in range(10))
                        assert isinstance(items[-1], Finished)
                        pids.add(items[-1].result["pid"])
                        results.append(None)
                    except (Failed, NotReady) as error:
                        results.append(error)
                        await asyncio.sleep(0.01)

            clients = [asyncio.ensure_future(client()) for _ in range(12)]
            for kills in range(1, 11):
                await until(lambda: pids)
                os.kill(pids.pop(), signal.SIGKILL)
                pids.clear()
                await until(lambda kills=kills: engines.statistics().restarts == kills)
                await until(lambda: engines.statistics().alive == 2)
            enough = True
            await asyncio.gather(*clients)
            assert results.count(None) > 20
            assert all(error.again for error in results if isinstance(error, Failed))
            assert engines.statistics().running == engines.statistics().waiting == 0
            assert (await text_of(engines, request(PLAY, 1)))[0] == "w0 "

    run(main())


def test_an_engine_that_does_not_react(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended when a text that was cancelled long ago has not ended, and another one takes its place."""
    monkeypatch.setattr(serve_engines, "CANCEL_SECONDS", 0.1)
    monkeypatch.setattr(serve_engines, "WATCH_SECONDS", 0.05)

    async def main() -> None:
        said: list[str] = []
        async with served(1, concurrency=2, said=said) as engines:
            async with aclosing(engines.generate(request(DEAF))) as stream:
                await anext(stream)
            waits = asyncio.ensure_future(text_of(engines, request(PLAY, 1)))
            assert (await waits)[0] == "w0 "
            assert any("did not react for 0.1 s" in line for line in said), said

    run(main())


def test_the_end() -> None:
    """Nothing new is taken, what runs and waits ends; what does not within the grace is told so."""

    async def main() -> None:
        async with served(1, concurrency=1) as engines:
            runs = [asyncio.ensure_future(text_of(engines, request(PLAY, 50))) for _ in range(3)]
            await until(lambda: engines.statistics().running == 1)
            ending = asyncio.ensure_future(engines.drain(20))
            await asyncio.sleep(0)
            assert engines.draining
            assert not engines.ready
            with pytest.raises(NotReady, match="about to end"):
                await text_of(engines, request(PLAY, 1))
            assert [len(items) for _, items in await asyncio.gather(*runs)] == [51] * 3
            assert await ending == 0
        async with served(1, concurrency=1) as engines:
            endless = [asyncio.ensure_future(text_of(engines, request(ENDLESS))) for _ in range(2)]
            await until(lambda: engines.statistics().waiting == 1)
            assert await engines.drain(0.05) == 2
            for each in await asyncio.gather(*endless, return_exceptions=True):
                assert isinstance(each, Failed)
                assert each.again

    run(main())


def test_close_leaves_no_process() -> None:
    async def main() -> None:
        pids = []
        async with served(2) as engines:
            for _, items in await asyncio.gather(*(text_of(engines, request(PLAY, 1)) for _ in range(4))):
                assert isinstance(items[-1], Finished)
                pids.append(items[-1].result["pid"])
            endless = asyncio.ensure_future(text_of(engines, request(ENDLESS)))
            await until(lambda: engines.statistics().running)
        assert gone(pids)
        with pytest.raises(Failed, match="has ended"):
            await endless

    run(main())


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("refuses", IpexAssistError, "no such model"),
        ("refuses-usage", UsageError, "no such model"),
        ("dies", IpexAssistError, "was killed by SIGKILL .* while loading, 5 times in a row"),
    ],
)
def test_models_that_cannot_be_loaded(
    target: str, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_engines, "RESTART_DELAYS", (0.0,) * 4)

    async def main() -> None:
        engines = Engines("fake")
        with pytest.raises(NotReady, match="being loaded"):
            _ = engines.facts
        with pytest.raises(NotReady, match="being loaded"):
            await text_of(engines, request(PLAY, 1))
        engines.start(pool_of(2, target=target))
        with pytest.raises(kind, match=message) as caught:
            await engines.wait_ready()
        assert type(caught.value) is kind
        engines.close()

    run(main())


def test_how_to_draft_is_the_servers_unless_a_request_says() -> None:
    from ipex_assist.serve.engine_slot import ActiveRequest

    server = DraftOptions(num_assistant_tokens=3)
    plain, own = GenerationOptions(seed=1), GenerationOptions(num_assistant_tokens=5)
    assert ActiveRequest.of(GenerationRequest([1], plain), server).options == GenerationOptions(
        seed=1, num_assistant_tokens=3
    )
    assert ActiveRequest.of(GenerationRequest([1], own), server).options == own
