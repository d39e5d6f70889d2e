"""Engines with real models behind a server: texts are those that each has alone, whatever happens beside them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import checkpoint_files
import pytest
from batch_runs import children

import ipex_assist
from ipex_assist.batch.local import LocalPool
from ipex_assist.batch.places import unplaced_commands
from ipex_assist.batch.worker import WorkerSettings
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve.backend import Done, Failed, Part, TextRequest
from ipex_assist.serve.engines import Engines
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import load_tokenizer

OPTIONS = [
    GenerationOptions(max_new_tokens=24, ignore_eos=True, num_assistant_tokens=3),
    GenerationOptions(max_new_tokens=24, ignore_eos=True, num_assistant_tokens=3, do_sample=True, seed=7),
    GenerationOptions(max_new_tokens=30, stop=("qu",)),
    GenerationOptions(max_new_tokens=9, ignore_eos=True, logprobs=1),
]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> LoadOptions:
    folder = tmp_path_factory.mktemp("serve")
    target = checkpoint_files.save(checkpoint_files.tiny_model("llama"), folder / "target")
    drafts = checkpoint_files.save(checkpoint_files.tiny_model("llama", seed=1), folder / "drafts")
    return LoadOptions.of(target=str(target), assistant=str(drafts), precision="fp32", executor="torch", offline=True)


def test_texts_under_load_and_a_kill(load: LoadOptions) -> None:
    """Forty texts, drafted, sixteen at a time, two of them given up and an engine killed meanwhile: each that ends is
    the one that it is alone, and each part is a part of it."""
    alone = ipex_assist.load(load.target or "", load.assistant, precision="fp32", executor="torch")
    asked = [TextRequest([5 + i % 9, 17, 40 + i % 3], OPTIONS[i % 4]) for i in range(40)]
    expected = [alone.generate(each.tokens, each.options) for each in asked]

    async def one(engines: Engines, index: int) -> bool:
        items: list[Part | Done] = []
        try:
            async for item in engines.generate(asked[index]):
                items.append(item)
        except Failed as error:
            return not error.again
        *parts, end = items
        result = expected[index]
        assert isinstance(end, Done)
        assert (end.result["text"], end.result["tokens"]) == (result.text, result.tokens)
        pieces = [piece for part in parts if isinstance(part, Part) for piece in part.pieces]
        assert "".join(piece.text for piece in pieces) == result.text
        assert [piece.token for piece in pieces] == result.tokens
        return True

    async def main() -> None:
        settings = WorkerSettings(load, 64, threads=1, concurrency=8, texts=(256,) * 8, neighbours=2)
        engines = Engines("tiny")
        engines.start(LocalPool(unplaced_commands(2), settings.as_dict()))
        engines.tokenizer = load_tokenizer(open_checkpoint(load.target or ""))
        await engines.wait_ready()
        assert (engines.facts.context_length, engines.facts.vocab_size) == (128, 320)
        tasks = [asyncio.ensure_future(one(engines, index)) for index in range(40)]
        for _ in range(2):
            async with aclosing(engines.generate(asked[0])) as stream:
                await anext(stream)
        while engines.statistics().alive < 2:
            await asyncio.sleep(0.01)
        os.kill(children(os.getpid())[-1], signal.SIGKILL)
        done = await asyncio.gather(*tasks)
        assert sum(done) >= 40 - 8
        counted = engines.statistics().engine
        assert counted["new_tokens"] > 0
        assert counted["drafted"] > 0
        assert await one(engines, 1)
        engines.close(now=True)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_the_front_never_imports_torch(load: LoadOptions, tmp_path: Path) -> None:
    """It would take seconds of each start, and memory beside the engines'."""
    folder = Path(shutil.copytree(load.target or "", tmp_path / "target"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    code = (
        "import sys; from ipex_assist.serve import app, command, engines, server; "
        "from ipex_assist.tokenization.tokenizer import load_tokenizer; "
        "from ipex_assist.checkpoints.open import open_checkpoint; "
        f"load_tokenizer(open_checkpoint({str(folder)!r})); sys.exit('torch' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
