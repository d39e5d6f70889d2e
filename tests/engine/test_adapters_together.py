"""Requests with adapters and without share passes: each has the text that it has alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import adapter_files
import pytest
import tiny_models
from conftest import HAS_NATIVE
from test_engine import SCHEDULES, Pair, check, clients_of, play, prompt_of, tokens_of

from ipex_assist.checkpoints.lora_folder import read_lora
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.executors.adapters import TakesAdapters, adapter_matrices
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.planned_assistant import KNOWN_TOKENS

CHOICES = ((None, 1.0), ("one", 1.0), ("two", 1.0), ("wide", 0.5))
PRECISIONS = [*(("native", each) for each in ("int8", "int4", "bf16", "fp32") if HAS_NATIVE), ("torch", "fp32")]


@pytest.fixture(scope="module", params=PRECISIONS, ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target with three adapters of different ranks and linears, and an assistant without any."""
    folder: Path = tmp_path_factory.mktemp("adapters")
    executor, precision = request.param
    model = tiny_models.save(folder, "llama", max_position_embeddings=2048)
    target = tiny_models.model(folder, executor, precision)
    assistant = tiny_models.model(folder, executor, "int4" if executor == "native" else "bf16")
    asked = LoadRequest(open_checkpoint(str(folder)), precision, executor)
    made = {
        "one": adapter_files.save_adapter(folder / "one", model, 4, adapter_files.ATTENTION, 1),
        "two": adapter_files.save_adapter(folder / "two", model, 16, adapter_files.LINEARS, 2),
        "wide": adapter_files.save_adapter(folder / "wide", model, 40, r".*(v_proj|up_proj|down_proj)", 3),
    }
    assert isinstance(target, TakesAdapters)
    for name, path in made.items():
        target.add_adapter(name, adapter_matrices(asked.spec, asked.sources, read_lora(str(path)), str(path)))
    return Pair(target, assistant)


@pytest.mark.parametrize("draft", ["none", "both"])
def test_every_text_is_as_alone_whatever_the_adapters_beside_it(pair: Pair, draft: str) -> None:
    """Finds a sum that depends on rows of other adapters, rows with the adapter of another request, and prefixes that
    were kept with another adapter: prompts often begin alike.
    """
    accepted = prefix_tokens = 0
    for seed in range(max(8, SCHEDULES)):
        chance = random.Random(f"{seed} {draft}")
        clients = clients_of(chance, 8, 120)
        for client in clients:
            name, scale = chance.choice(CHOICES)
            client.options = replace(client.options, lora=name, lora_scale=scale)
        engine = pair.engine(draft, EngineLimits(requests=chance.randrange(2, 9), rows=chance.choice((17, 40, 512))))
        play(engine, clients)
        check(pair, clients)
        accepted += engine.stats.accepted
        prefix_tokens += engine.stats.prefix_tokens
        engine.close()
    assert accepted > 0 or draft == "none"


def test_adapters_change_texts_and_scale_0_does_not(pair: Pair) -> None:
    """Finds an adapter that is never applied, and one that is applied to rows without it."""
    prompt = prompt_of(random.Random(1))
    options = GenerationOptions(max_new_tokens=12, ignore_eos=True)
    texts = {each: pair.alone(prompt, replace(options, lora=each[0], lora_scale=each[1])) for each in CHOICES}
    assert len({tuple(text) for text in texts.values()}) == len(CHOICES)
    assert pair.alone(prompt, replace(options, lora="one", lora_scale=0.0)) == texts[CHOICES[0]]
    assert pair.alone(prompt, replace(options, lora="two", lora_scale=0.5)) != texts["two", 1.0]


@pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")
def test_a_prefix_is_found_with_its_own_adapter_alone(pair: Pair) -> None:
    """Finds keys and values that a text without an adapter takes from one with it."""
    if pair.target.blocks is None:
        pytest.skip("a model without blocks keeps no prefixes")
    engine = pair.engine("none")
    prompt = [3 + i % 90 for i in range(600)]
    options = GenerationOptions(max_new_tokens=4, ignore_eos=True)
    found = []
    for name, scale in (("one", 1.0), (None, 1.0), ("two", 1.0), ("one", 0.5), ("one", 1.0), (None, 1.0)):
        before = engine.stats.prefix_tokens
        tokens_of(engine.submit(prompt, replace(options, lora=name, lora_scale=scale)))
        found.append(engine.stats.prefix_tokens - before)
    engine.close()
    assert found[:4] == [0] * 4
    assert all(each > 500 for each in found[4:])


def test_acceptance_is_learnt_for_each_adapter(pair: Pair) -> None:
    """Finds acceptance rates of a text with an adapter among those of the model without one."""
    engine = pair.engine("both")
    before = engine.drafting.model_acceptance
    options = GenerationOptions(max_new_tokens=20, ignore_eos=True, lora="one")
    for seed in range(2, 6):  # one text, disturbed, may draft next to nothing
        tokens_of(engine.submit(prompt_of(random.Random(seed)), options))
    assert engine.drafting.model_acceptance is before
    assert set(engine.drafting.adapter_acceptance) == {"one"}
    assert engine.drafting.known_of("one")[0] is engine.drafting.adapter_acceptance["one"][0]
    for seed in range(2, 6):
        tokens_of(engine.submit(prompt_of(random.Random(seed)), replace(options, lora=None)))
    assert engine.drafting.model_acceptance is not before
    # A new adapter begins with the model's rates, and with none of the trust that these have earned.
    assert engine.drafting.model_acceptance.seen > KNOWN_TOKENS > engine.drafting.known_of("two")[0].seen > 0
    engine.close()
