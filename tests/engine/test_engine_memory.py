"""The engine at the limit of its blocks: what fits is taken, and who must give way does."""

from __future__ import annotations

import gc
import itertools
import random
from pathlib import Path
from typing import Any

import draft_heads
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from still_clock import still
from test_engine import CHEAP, Failing, Pair, prompt_of, tokens_of

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_head, load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")]


def test_what_fits_to_the_last_position_is_not_refused(tmp_path: Path) -> None:
    """Three blocks hold what is read of 769 tokens, as nothing is read behind the last; one more is refused at once."""
    tiny_models.save(tmp_path, "llama", max_position_embeddings=2048)
    checkpoint = open_checkpoint(str(tmp_path))
    block = tiny_models.model(tmp_path, "native", "int8").block_bytes  # type: ignore[attr-defined]
    target = load_model(LoadRequest(checkpoint, "int8", "native", kv_memory=KvMemory(3 * block)))
    engine = Engine(target, Drafting(tiny_models.VOCAB, lambda: CHEAP, lookup=True))
    prompt = prompt_of(random.Random(0), 40) * 20
    prompt, rest = prompt[:700], 769 - 700
    options = GenerationOptions.of(max_new_tokens=rest, ignore_eos=True)
    others = [engine.submit(prompt[:300], options) for _ in range(2)]
    handle = engine.submit(prompt, options)
    assert len(tokens_of(handle)) == rest
    assert all(len(tokens_of(other)) == rest for other in others)
    with pytest.raises(IpexAssistError, match=r"of 769 tokens, prompt and text, take 4 blocks of 256.* memory for 3:"):
        engine.submit(prompt, GenerationOptions.of(options, max_new_tokens=rest + 1))


@pytest.mark.parametrize("used", ["by prefixes", "by a text"])
def test_costs_are_measured_where_memory_is_full(tmp_path: Path, used: str) -> None:
    """Prefixes give way to the measurement; beside a text that has everything, a request goes on without drafts."""
    tiny_models.save(tmp_path, "llama", max_position_embeddings=2048)
    checkpoint = open_checkpoint(str(tmp_path))
    block = tiny_models.model(tmp_path, "native", "int8").block_bytes  # type: ignore[attr-defined]
    target = load_model(LoadRequest(checkpoint, "int8", "native", kv_memory=KvMemory(2 * block)))
    measured = []

    def measure() -> Costs:
        sequence = target.new_sequence(1)
        target.extend(sequence, [1])
        measured.append(True)
        return CHEAP

    engine = Engine(target, Drafting(tiny_models.VOCAB, measure, lookup=True))
    plain = GenerationOptions.of(max_new_tokens=8, ignore_eos=True, assisted=False)
    prompt = list(range(3, 43)) * 10
    first = engine.submit(prompt[:300], plain)
    next(first)
    if used == "by prefixes":
        tokens_of(first)
        assert target.blocks is not None
        assert target.blocks.free == 0
    asked = engine.submit(prompt[:100], GenerationOptions.of(plain, assisted=True))
    assert bool(measured) == (used == "by prefixes")
    engine_alone = Engine(tiny_models.model(tmp_path, "native", "int8"), Drafting(tiny_models.VOCAB, measure))
    assert tokens_of(asked) == tokens_of(engine_alone.submit(prompt[:100], plain))


def test_an_engine_that_nobody_keeps_is_gone_at_once(tmp_path: Path) -> None:
    """With what it knows of texts, without waiting for the collector: many engines of one model had all its blocks."""
    tiny_models.save(tmp_path, "llama", max_position_embeddings=2048)
    pair = Pair(*(tiny_models.model(tmp_path, "native", each) for each in ("int8", "int4")))
    blocks = pair.target.blocks
    assert blocks is not None
    gc.collect()
    gc.disable()
    try:
        for draft in ("none", "both"):
            engine = pair.engine(draft)
            tokens_of(engine.submit(list(range(3, 60)), GenerationOptions.of(max_new_tokens=8, ignore_eos=True)))
            assert blocks.free < blocks.count
            del engine
            assert blocks.free == blocks.count
    finally:
        gc.enable()


class OneByOne(Failing):
    """Has memory for one text a pass."""

    def forward(self, rows: Any, vocabulary: int | None = None) -> torch.Tensor:
        if len(rows) > 1:
            raise IpexAssistError("out of something")
        return self._target.forward(rows, vocabulary)


def test_blocks_of_a_request_that_waits_for_its_turn(tmp_path: Path) -> None:
    """The older text needs a block while a younger one that is not in its pass has all others: that one is put back.

    The older one failed for want of memory. Random schedules met that once in a hundred, where blocks run out.
    """
    tiny_models.save(tmp_path, "llama", max_position_embeddings=2048)
    checkpoint = open_checkpoint(str(tmp_path))
    large = tiny_models.model(tmp_path, "native", "int8")
    memory = KvMemory(3 * large.block_bytes)  # type: ignore[attr-defined]
    target = load_model(LoadRequest(checkpoint, "int8", "native", kv_memory=memory))
    engine = Engine(OneByOne(target), Drafting(tiny_models.VOCAB, lambda: CHEAP))  # type: ignore[arg-type]
    options = GenerationOptions.of(max_new_tokens=16, ignore_eos=True)
    prompts = [(7, *range(3, 150), *range(3, 103)), (9, *range(3, 150), *range(3, 150), *range(3, 150), *range(3, 60))]
    handles = [engine.submit(prompt, options) for prompt in prompts]
    texts = [tokens_of(handle) for handle in handles]
    assert engine.stats.preempted > engine.stats.failed == 0
    alone = Pair(large, large)
    assert texts == [alone.alone(prompt, options) for prompt in prompts]


@pytest.mark.parametrize("thread", [False, True])
def test_a_paused_request(tmp_path: Path, thread: bool) -> None:
    """It holds no blocks and no place while it is paused, and its text is the one that it has alone."""
    tiny_models.save(tmp_path, "llama", max_position_embeddings=2048)
    pair = Pair(*(tiny_models.model(tmp_path, "native", each) for each in ("int8", "int4")))
    engine = pair.engine("model", EngineLimits(requests=1))
    options = GenerationOptions.of(max_new_tokens=40, ignore_eos=True)
    prompts = tuple(range(3, 60)), tuple(range(9, 30))
    if thread:
        engine.start()
    paused, other = (engine.submit(prompt, options) for prompt in prompts)
    first = next(paused)
    paused.pause()
    assert tokens_of(other) == pair.alone(prompts[1], options)
    assert engine.stats.preempted == 1
    assert not paused.ended
    if not thread:
        assert not engine.step()  # nothing is left to do
    paused.resume()
    assert tokens_of(itertools.chain([first], paused)) == pair.alone(prompts[0], options)
    ended = engine.submit(prompts[0], options)
    ended.pause()
    ended.cancel()
    engine.close()
    assert pair.target.blocks is not None
    assert pair.target.blocks.free == pair.target.blocks.count


@pytest.mark.skipif(not tiny_models.known("gemma4"), reason="this transformers has no Gemma 4")
def test_a_head_over_blocks_that_come_and_go(tmp_path: Path) -> None:
    """Requests that share prefixes, are put back and read again draft over the blocks that their sequences then have,
    and have the texts that they have alone.
    """
    with draft_heads.all_layers_share():
        draft_heads.save_assistant(tmp_path, tmp_path / "head", "gemma4", {"max_position_embeddings": 2048})
    checkpoint, head = open_checkpoint(str(tmp_path)), open_checkpoint(str(tmp_path / "head"))
    block = tiny_models.model(tmp_path, "native", "bf16").block_bytes  # type: ignore[attr-defined]
    memory = KvMemory(7 * block)
    target = load_model(LoadRequest(checkpoint, "bf16", "native", kv_memory=memory))
    assistant = load_head(checkpoint, target, head, "int8", "native", kv_memory=memory)
    assert target.blocks is not None
    assert target.blocks.count == 7
    drafting = Drafting(tiny_models.VOCAB, lambda: CHEAP, assistant)
    engine = Engine(target, drafting, limits=EngineLimits(requests=4), clock=still)
    alone = Engine(tiny_models.model(tmp_path, "native", "bf16"), Drafting(tiny_models.VOCAB, lambda: CHEAP))
    begin = prompt_of(random.Random(0), 40) * 20
    asked = []
    for seed in range(8):
        prompt = (*begin[:300], *prompt_of(random.Random(seed), 40))
        sampled = {"do_sample": True, "seed": seed} if seed % 2 else {}
        options = GenerationOptions.of(max_new_tokens=200 + 20 * seed, ignore_eos=True, **sampled)
        asked.append((prompt, options, engine.submit(prompt, options)))
    for prompt, options, handle in asked:
        plain = GenerationOptions.of(options, assisted=False)
        assert tokens_of(handle) == tokens_of(alone.submit(prompt, plain))
    assert engine.stats.drafted > 0
    assert engine.stats.preempted > 0
    assert engine.stats.prefix_tokens > 0
