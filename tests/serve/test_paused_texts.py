"""Texts that are paused for others: their places are taken at once, and their own text stays the same."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from conftest import HAS_NATIVE
from engine_fake import ENDLESS, PLAY
from test_engines import TOKENIZER, request, run, served, text_of, until

import ipex_assist
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve.backend import Finished, GenerationRequest, RequestShare
from ipex_assist.serve.engines import Engines
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.placement import unplaced_commands
from ipex_assist.workers.settings import WorkerSettings

pytestmark = pytest.mark.one_stack

Task = asyncio.Future[Any]


def started(engines: Engines, action: int, *counts: int) -> list[Task]:
    """The texts of one request, under way or waiting."""
    share = RequestShare()
    asked = [GenerationRequest([action, count], GenerationOptions(), share=share) for count in counts]
    return [asyncio.ensure_future(text_of(engines, each)) for each in asked]


def whole(count: int) -> str:
    return "".join(f"w{i} " for i in range(count))


def test_a_paused_text_goes_on_where_it_was() -> None:
    async def main() -> None:
        async with served(1, concurrency=2) as engines:
            large = started(engines, PLAY, 400, 400, 400)
            await until(lambda: engines.statistics().running == 2)
            assert (await text_of(engines, request(PLAY, 3)))[0] == "w0 w1 w2 "
            assert not any(task.done() for task in large)
            for task in large:
                text, items = await task
                assert text == whole(400)
                assert [type(item) for item in items].count(Finished) == 1
            assert engines.statistics().engine["finished"] == 4

    run(main())


def test_a_paused_text_that_nobody_wants_any_more() -> None:
    """Its client goes, or its time is over: it leaves the queue and the engine."""

    async def main() -> None:
        async with served(1, concurrency=2) as engines:
            large = started(engines, ENDLESS, 0, 0)
            await until(lambda: engines.statistics().running == 2)
            async with aclosing(engines.generate(request(ENDLESS))) as other:
                await anext(other)
                assert engines.statistics().waiting == 1
                large[1].cancel()
                await until(lambda: engines.statistics().waiting == 0)
            large[0].cancel()
            await until(lambda: engines.statistics().running == 0)
            for _ in range(3):
                assert (await text_of(engines, request(PLAY, 2)))[0] == "w0 w1 "

    run(main())


@pytest.mark.parametrize("count", [1, 2])
def test_an_engine_dies_with_a_paused_text(count: int) -> None:
    """It is begun again, in whatever engine has room, and continues what its client has."""

    async def main() -> None:
        async with served(count, concurrency=2) as engines:
            large = started(engines, PLAY, *[800] * 2 * count)
            await until(lambda: engines.statistics().running == 2 * count)
            async with aclosing(engines.generate(request(ENDLESS))) as other:
                await anext(other)
                assert engines.statistics().waiting == 1
                _, items = await text_of(
                    engines, GenerationRequest([PLAY, 1], GenerationOptions(), share=RequestShare())
                )
                os.kill(items[-1].result["pid"], signal.SIGKILL)  # type: ignore[union-attr]
                for task in large:
                    assert (await task)[0] == whole(800)

    run(main())


def test_a_paused_text_moves_to_an_idle_engine() -> None:
    """Its own engine stays full; the other one has room, and nothing else to do."""

    async def main() -> None:
        async with served(2, concurrency=1) as engines:
            assert engines.statistics().slots == 2
            large = started(engines, PLAY, 600, 600)
            await until(lambda: engines.statistics().running == 2)
            async with aclosing(engines.generate(request(ENDLESS))) as other:
                await anext(other)
                for task in large:
                    assert (await task)[0] == whole(600)

    run(main())


@pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")
def test_real_texts_stay_the_same(tmp_path: Path) -> None:
    """Drafted, sampled and plain ones of a request that fills the engine: three clients have their texts before any of
    its texts ends, and each text is the one that it is alone."""
    target = checkpoint_files.save(
        checkpoint_files.tiny_model("llama", max_position_embeddings=4096), tmp_path / "target"
    )
    load = LoadOptions.of(target=str(target), assistant="lookup", precision="fp32", executor="native", offline=True)
    alone = ipex_assist.load(str(target), None, precision="fp32", executor="native")
    kinds = [
        GenerationOptions(max_new_tokens=200, ignore_eos=True, logprobs=1),
        GenerationOptions(max_new_tokens=200, ignore_eos=True, do_sample=True, seed=7),
        GenerationOptions(max_new_tokens=200, ignore_eos=True, num_assistant_tokens=3),
    ]
    share = RequestShare()
    asked = [GenerationRequest([5 + i, 17, 40], kinds[i % 3], share=share) for i in range(6)]
    short = GenerationRequest([9, 9, 9], GenerationOptions(max_new_tokens=2, ignore_eos=True))
    expected = [alone.generate(each.tokens, each.options).text for each in (*asked, short)]

    begun = 0

    async def text_once_begun(engines: Engines, asked: GenerationRequest) -> str:
        nonlocal begun
        async with aclosing(engines.generate(asked)) as stream:
            await anext(stream)
            begun += 1
            items = [item async for item in stream]
        assert isinstance(items[-1], Finished)
        return str(items[-1].result["text"])

    async def main() -> None:
        settings = WorkerSettings(load, 64, threads=1, concurrency=4, lengths=(512,) * 4)
        engines = Engines("tiny")
        engines.start(LocalPool(unplaced_commands(1), settings))
        engines.tokenizer = TOKENIZER
        await engines.wait_ready()
        large = [asyncio.ensure_future(text_once_begun(engines, each)) for each in asked]
        await until(lambda: begun == 4)
        for _ in range(3):
            assert (await text_of(engines, short))[0] == expected[-1]
        assert not any(task.done() for task in large)
        assert [await task for task in large] == expected[:-1]
        assert engines.statistics().engine["preempted"] > 0
        engines.close(now=True)

    asyncio.run(asyncio.wait_for(main(), 120))
