"""Log-probabilities of a prompt's tokens: those of one pass, however it is read, beside others, and known before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch

from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

WANTED = GenerationOptions(max_new_tokens=3, prompt_logprobs=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    tiny_models.save(made, "llama", max_position_embeddings=1024)
    return made


def prompt(length: int) -> list[int]:
    return [(7 * place + place**2) % 150 + 3 for place in range(length)]


def run(engine: Engine, tokens: list[int], options: GenerationOptions = WANTED) -> tuple[list[int], list[TokenLogprob]]:
    rounds = list(engine.submit(tokens, options))
    assert all(round_.prompt_logprobs is None for round_ in rounds[1:])
    return [token for round_ in rounds for token in round_.tokens], rounds[0].prompt_logprobs  # type: ignore[return-value]


def new_engine(model: Any) -> Engine:
    drafting = Drafting(model.spec.vocab_size, lambda: pytest.fail("nothing drafts"), None)
    return Engine(model, drafting, limits=EngineLimits())


@pytest.mark.parametrize("length", [1, 2, 64, 65, 300])
def test_they_are_those_of_one_pass(folder: Path, executor: str, length: int) -> None:
    """In chunks of 64 rows, or as a whole; the text behind the prompt is what it is without them."""
    model, tokens = tiny_models.model(folder, executor), prompt(length)
    text, listed = run(new_engine(model), tokens)
    sequence = model.new_sequence(length)
    expected = torch.log_softmax(model.extend(sequence, tokens, last=length).double(), -1)
    assert [choice.token for choice in listed] == tokens[1:]
    for row, choice in enumerate(listed):
        assert choice.log_probability == pytest.approx(float(expected[row, choice.token]), abs=1e-4)
        assert [token for token, _ in choice.top] == expected[row].topk(2).indices.tolist()
    plain, nothing = run(new_engine(model), tokens, GenerationOptions(max_new_tokens=3))
    assert text == plain
    assert nothing is None


def test_beside_others_and_behind_a_known_prefix(folder: Path, executor: str) -> None:
    """A prompt that was read before is read again: its logits are nowhere; those of others are not mixed up."""
    model, tokens = tiny_models.model(folder, executor), prompt(520)
    alone = run(new_engine(model), tokens)[1]
    engine = new_engine(model)
    run(engine, tokens, GenerationOptions(max_new_tokens=3))
    others = [engine.submit(prompt(length), GenerationOptions(max_new_tokens=30)) for length in (5, 90)]
    again = run(engine, tokens)[1]
    assert [choice.log_probability for choice in again] == [choice.log_probability for choice in alone]
    assert [len([t for round_ in other for t in round_.tokens]) for other in others] == [30, 30]
