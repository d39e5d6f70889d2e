"""Log-probabilities and seeds of results: the model's own distribution, whatever chose the token, drafted or not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import checkpoint_files
import numpy as np
import pytest
import torch
from test_transformers_model import save

import ipex_assist
from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.choosing.logprobs import IMPOSSIBLE, log_probabilities
from ipex_assist.speculative.options import GenerationOptions

PROMPT = "the quick"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A target and an assistant that is often right."""
    folder = tmp_path_factory.mktemp("pair")
    target = checkpoint_files.tiny_model("llama")
    checkpoint_files.save(target, folder / "target")
    with torch.no_grad():
        target.lm_head.weight += 0.01 * torch.randn_like(target.lm_head.weight)
    checkpoint_files.save(target, folder / "assistant")
    return ipex_assist.load(
        str(folder / "target"), str(folder / "assistant"), precision="fp32", executor="torch", calibrate=False
    )


def reference(pair: Any, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities after each prefix of a text from its prompt's last token on, by one pass and float64."""
    prompt = pair.encode(PROMPT)
    sequence = pair.target.new_sequence(len(prompt) + len(tokens))
    logits = pair.target.extend(sequence, [*prompt, *tokens[:-1]], last=len(tokens))
    return torch.log_softmax(logits.double(), -1)


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.3, "logit_bias": {"5": 3}},
    "sampled": {"do_sample": True, "temperature": 1.5, "top_k": 7, "seed": 3},
}


@pytest.mark.parametrize("drafted", [0, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_they_are_the_models_own(name: str, drafted: int, pair: Any) -> None:
    """Not those after temperature, penalties or filters; as many as tokens, with and without a draft."""
    result = pair.generate(PROMPT, max_new_tokens=20, logprobs=4, num_assistant_tokens=drafted, **OPTIONS[name])
    assert (result.draft.accepted or 0) > 0 or not drafted
    assert [choice.token for choice in result.logprobs] == result.tokens
    expected = reference(pair, result.tokens)
    for row, choice in zip(expected, result.logprobs, strict=True):
        assert choice.log_probability == pytest.approx(float(row[choice.token]), abs=1e-4)
        best = row.topk(4)
        assert [token for token, _ in choice.top] == best.indices.tolist()
        assert [value for _, value in choice.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_chunks_have_those_of_their_tokens(pair: Any) -> None:
    """A stop in the middle of a round cuts both."""
    whole = pair.generate(PROMPT, max_new_tokens=20, logprobs=0, num_assistant_tokens=3)
    stop = pair.tokenizer.decode(whole.tokens[8:10])
    generation = pair.stream(PROMPT, max_new_tokens=20, logprobs=0, num_assistant_tokens=3, stop=stop)
    found = []
    for chunk in generation:
        assert len(chunk.logprobs) == len(chunk.tokens)
        found += chunk.logprobs
    result = generation.result()
    assert result.stop_reason == "stop"
    assert result.logprobs == found == whole.logprobs[: len(result.tokens)]
    assert all(choice.top == [] for choice in found)


def test_results_say_them_in_json_and_only_where_asked(pair: Any) -> None:
    """None is null; a token has its number and those of its rivals."""
    assert pair.generate(PROMPT, max_new_tokens=3).as_dict()["logprobs"] is None
    result = pair.generate(PROMPT, max_new_tokens=3, logprobs=2)
    written = json.loads(json.dumps(result.as_dict()))["logprobs"]
    assert len(written) == 3
    assert written[0].keys() == {"token", "log_probability", "top"}
    assert written[0]["top"][0] == [written[0]["token"], written[0]["log_probability"]]


def test_impossible_and_equal_tokens() -> None:
    """-inf has no logarithm that JSON could hold; of equals the lowest ids come first, as many as are wanted."""
    row = np.array([1, -np.inf, 1, 1, 0, -np.inf], dtype=np.float32)
    choice = log_probabilities(row, 4, 2)
    total = math.log(3 * math.e + 1)
    assert choice.log_probability == pytest.approx(-total)
    assert choice.top == [(0, pytest.approx(1 - total)), (2, pytest.approx(1 - total))]
    assert [token for token, _ in log_probabilities(row, 4, 20).top] == [0, 2, 3, 4]
    assert [token for token, _ in log_probabilities(row, 4, 5).top] == [0, 2, 3, 4]


def test_a_token_without_a_logit() -> None:
    """A prompt may have tokens that the head does not know: of images, where they are tokens of the vocabulary."""
    choice = log_probabilities(np.zeros(4, np.float32), 9, 1)
    assert (choice.token, choice.log_probability, len(choice.top)) == (9, IMPOSSIBLE, 1)


OTHERWISE: list[dict[str, Any]] = [
    {"assisted": False},
    {"num_assistant_tokens": 5},
    {"num_assistant_tokens_schedule": "heuristic"},
]


def test_a_result_says_its_seed_and_the_seed_gives_the_result(pair: Any) -> None:
    """Drawn text could not be had again, unless somebody had thought of a seed before."""
    drawn = [pair.generate(PROMPT, max_new_tokens=20, do_sample=True, num_assistant_tokens=2) for _ in range(3)]
    assert len({result.seed for result in drawn}) == 3
    assert len({tuple(result.tokens) for result in drawn}) == 3
    for result in drawn:
        for options in OTHERWISE:
            again = pair.generate(PROMPT, max_new_tokens=20, do_sample=True, seed=result.seed, **options)
            assert again.tokens == result.tokens
    assert pair.generate(PROMPT, max_new_tokens=2, do_sample=True, seed=0).seed == 0
    assert pair.generate(PROMPT, max_new_tokens=2, seed=5).seed is None
    assert pair.generate(PROMPT, max_new_tokens=2, do_sample=True, temperature=0, seed=5).seed is None


def test_a_source_made_beforehand_shares_the_noise(pair: Any) -> None:
    """With the seed of the text's options a draft is right more often than two draws are equal."""
    options = GenerationOptions(max_new_tokens=60, do_sample=True, top_k=0, seed=9, num_assistant_tokens=2)
    source = pair.draft_source(pair.encode(PROMPT), options)
    result = pair.generate(PROMPT, options, draft=source)
    assert result.draft.acceptance_rate > 0.7


def test_through_transformers_there_are_none(tmp_path: Path) -> None:
    """Its generate would give scores, some of them after filters: we refuse instead."""
    save(tmp_path)
    model = ipex_assist.load(str(tmp_path), None, precision="fp32", executor="torch")
    with pytest.raises(UsageError, match="no log-probabilities"):
        model.generate(PROMPT, max_new_tokens=2, logprobs=1)
