"""Engine processes with an embedding model: vectors are those that each text has alone, and the front has no torch."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import embedding_folders as folders
import numpy as np
import pytest
from batch_runs import children

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.embedding.facts import EncodedText
from ipex_assist.embedding.jobs import EmbeddingInputs
from ipex_assist.embedding.loading import load_embedder
from ipex_assist.embedding.settled import settled
from ipex_assist.embedding.task import AUTO, EMBED, GENERATE
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve.backend import Finished, GenerationRequest, InvalidField
from ipex_assist.serve.engines import Engines
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import load_tokenizer
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.placement import unplaced_commands
from ipex_assist.workers.settings import WorkerSettings

pytestmark = pytest.mark.one_stack


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> LoadOptions:
    folder = folders.write_embedder(tmp_path_factory.mktemp("engines") / "model", "dense")
    return LoadOptions.of(
        target=str(folder), precision="fp32", kv_memory=64 << 20, cache_packed=False, assistant="none", offline=True
    )


def asked(texts: list[EncodedText]) -> GenerationRequest:
    tokens, inputs = EmbeddingInputs.of(texts)
    return GenerationRequest(tokens, GenerationOptions(), inputs=inputs)


def test_vectors_under_load_and_a_kill(load: LoadOptions) -> None:
    """Forty requests of several texts, two given up and an engine killed meanwhile: texts of another request, a lost
    answer, an engine that writes, one that ends by a wrong request."""
    model = load_embedder(load, EMBED)
    texts = [[EncodedText([5 + i % 9, *range(20, 24 + i), 40 + j]) for j in range(1 + i % 3)] for i in range(40)]
    alone = [model.embed(each) for each in texts]

    async def one(engines: Engines, index: int) -> None:
        [end] = [item async for item in engines.generate(asked(texts[index]))]
        assert isinstance(end, Finished)
        found = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in end.result["vectors"]]
        assert np.array_equal(found, alone[index])
        assert end.result["prompt_tokens"] == sum(len(text.tokens) for text in texts[index])

    async def main() -> None:
        settings = WorkerSettings(load, 64, threads=1, concurrency=8, lengths=(256,) * 8, neighbours=2, task=AUTO)
        engines = Engines("tiny")
        engines.start(LocalPool(unplaced_commands(2), settings))
        engines.tokenizer = load_tokenizer(open_checkpoint(load.target or ""))
        await engines.wait_ready()
        facts = engines.facts
        assert facts.embedding is not None
        assert (facts.embedding.task, facts.embedding.size, facts.context_length) == (EMBED, 24, 160)
        tasks = [asyncio.ensure_future(one(engines, index)) for index in range(40)]
        for index in (1, 2):
            async with aclosing(engines.generate(asked(texts[index] * 20))) as stream:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.001)
        while engines.statistics().alive < 2:
            await asyncio.sleep(0.01)
        os.kill(children(os.getpid())[-1], signal.SIGKILL)
        await asyncio.gather(*tasks)
        with pytest.raises(InvalidField, match="gives vectors here and writes no text"):
            [item async for item in engines.generate(GenerationRequest([1, 2], GenerationOptions()))]
        await one(engines, 1)
        assert engines.statistics().engine["prompt_tokens"] > 0
        engines.close(now=True)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_what_is_known_before_loading(load: LoadOptions, tmp_path: Path) -> None:
    """Memory for an assistant that drafts vectors; an assistant that was asked for and left out in silence."""
    assisted = LoadOptions.of(target=load.target, offline=True)
    found, task = settled(assisted, AUTO)
    assert (found.assistant, task) == ("none", EMBED)
    assert settled(assisted, GENERATE) == (assisted, GENERATE)
    elsewhere = LoadOptions.of(target="nobody/has-this", offline=True)
    assert settled(elsewhere, AUTO) == (elsewhere, AUTO)
    with pytest.raises(UsageError, match="nothing to draft"):
        settled(LoadOptions.of(target=load.target, assistant="lookup", offline=True), AUTO)


def test_the_front_imports_no_torch() -> None:
    """Seconds of each start, and memory beside the engines'."""
    code = "import sys; from ipex_assist.serve import app, command; print(sys.modules.get('torch') is None)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
