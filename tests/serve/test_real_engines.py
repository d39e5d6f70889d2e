"""Engines with real models behind a server: texts are those that each has alone, whatever happens beside them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import checkpoint_files
import pytest
from batch_runs import children

import ipex_assist
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve.backend import Finished, GenerationRequest, OutputChunk
from ipex_assist.serve.engines import Engines
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import load_tokenizer
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.placement import unplaced_commands
from ipex_assist.workers.settings import WorkerSettings

pytestmark = pytest.mark.one_stack

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
    """Forty texts, drafted, sixteen at a time, two of them given up and an engine killed meanwhile: each is the
    one that it is alone, those too that went on elsewhere, and each part is a part of it."""
    alone = ipex_assist.load(load.target or "", load.assistant, precision="fp32", executor="torch")
    asked = [GenerationRequest([5 + i % 9, 17, 40 + i % 3], OPTIONS[i % 4]) for i in range(40)]
    expected = [alone.generate(each.tokens, each.options) for each in asked]

    async def one(engines: Engines, index: int) -> None:
        items: list[OutputChunk | Finished] = []
        async for item in engines.generate(asked[index]):
            items.append(item)
        *parts, end = items
        result = expected[index]
        assert isinstance(end, Finished)
        assert (end.result["text"], end.result["tokens"]) == (result.text, result.tokens)
        pieces = [piece for part in parts if isinstance(part, OutputChunk) for piece in part.token_deltas]
        assert "".join(piece.text for piece in pieces) == result.text
        assert [piece.token for piece in pieces] == result.tokens

    async def main() -> None:
        settings = WorkerSettings(load, 64, threads=1, concurrency=8, lengths=(256,) * 8, neighbours=2)
        engines = Engines("tiny")
        engines.start(LocalPool(unplaced_commands(2), settings))
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
        await asyncio.gather(*tasks)
        counted = engines.statistics().engine
        assert counted["new_tokens"] > 0
        assert counted["drafted"] > 0
        await one(engines, 1)
        engines.close(now=True)

    asyncio.run(asyncio.wait_for(main(), 120))


FRONT = """
import json, sys
from types import SimpleNamespace
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve import app, engines, server
from ipex_assist.serve.command import ServeCommand

def ids(folder):
    settings = SimpleNamespace(load=LoadOptions.of(target=folder, offline=True))
    tokenizer = ServeCommand.load_tokenizer(SimpleNamespace(settings=settings))
    return list(tokenizer(sys.argv[1])["input_ids"])

print(json.dumps([[ids(folder) for folder in sys.argv[2:]], sys.modules.get("torch") is not None]))
"""


def test_the_front_never_imports_torch(load: LoadOptions, tmp_path: Path) -> None:
    """It would take seconds of each start, and memory beside the engines'. Ids are the same without it, whether
    tokenizer.json has all of them or AutoTokenizer has to know more."""
    target = Path(load.target or "")
    folders = [target]
    config = json.loads((target / "tokenizer_config.json").read_text())
    for name in ("PreTrainedTokenizerFast", "GPT2Tokenizer"):
        folders.append(Path(shutil.copytree(target, tmp_path / name)))
        (folders[-1] / "tokenizer_config.json").write_text(
            json.dumps(config | {"tokenizer_class": name, "add_bos_token": name == "GPT2Tokenizer"})
        )
    text = "The quick brown fox, <|im_start|>naïve\n\n 123"
    run = subprocess.run(
        [sys.executable, "-c", FRONT, text, *map(str, folders)], capture_output=True, text=True, check=True
    )
    found, imported = json.loads(run.stdout)
    assert not imported
    assert found == [load_tokenizer(open_checkpoint(str(folder)))(text)["input_ids"] for folder in folders]
    assert run.stderr == ""
