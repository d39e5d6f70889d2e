"""Sampling filters against transformers' own logits processors, and the whole assisted sampler on a real decoder."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from test_verify import assert_follows
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ipex_assist.decode import decode
from ipex_assist.draft import AssistantModel
from ipex_assist.sampling import Sampling
from ipex_assist.schedule import Constant

VOCAB = 50


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 100])
@pytest.mark.parametrize("top_p", [0.05, 0.7, 1.0])
def test_probabilities_equal_transformers(temperature: float, top_k: int, top_p: float) -> None:
    """Order of filters and which token is the last to stay."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    expected = torch.softmax(warpers(torch.zeros(6, 1, dtype=torch.long), logits.clone()), -1)
    ours = Sampling(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p).probabilities(logits)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


def test_penalty_equals_transformers_row_by_row() -> None:
    """Row i sees the context and the first i of the following tokens."""
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    context, following = [4, 4, 9], [11, 30]
    ours = Sampling(repetition_penalty=1.3).penalise(logits, context, following)
    reference = RepetitionPenaltyLogitsProcessor(1.3)
    for row in range(3):
        seen = torch.tensor([context + following[:row]])
        torch.testing.assert_close(ours[row : row + 1], reference(seen, logits[row : row + 1].clone()))


def test_seed_repeats_and_no_seed_does_not() -> None:
    """A seed is a promise; without one two runs must differ."""
    draws = [torch.rand(4, generator=Sampling(seed=seed).generator()) for seed in (7, 7, None, None)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[2], draws[3])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(do_sample=True, top_k=0),
        Sampling(do_sample=True, top_k=4, temperature=0.7),
        Sampling(do_sample=True, top_k=0, top_p=0.8),
    ],
    ids=["plain", "top-k", "top-p"],
)
def test_assisted_tokens_follow_the_targets_distribution(sampling: Sampling, tmp_path: Path) -> None:
    """The loop end to end, caches and all: the second token, drafted by another model, over 3,000 runs."""
    small = {"vocab_size": 12, "num_hidden_layers": 1}
    tiny_models.save(tmp_path / "target", "llama", **small)
    tiny_models.save(tmp_path / "assistant", "llama", seed=1, **small)
    target, assistant = (tiny_models.decoder(tmp_path / name, tokens=16) for name in ("target", "assistant"))
    prompt = [3, 7, 1]

    # The second token's distribution, summed over all first tokens, from the target alone.
    first = sampling.probabilities(target.forward(prompt))[0]
    expected = torch.zeros(12)
    for token in range(12):
        target.truncate(3)
        expected += first[token] * sampling.probabilities(target.forward([token]))[0]

    generator = torch.Generator().manual_seed(5)
    counts, accepted = torch.zeros(12), 0
    for _ in range(3000):
        draft = AssistantModel(assistant, sampling, generator, 12)
        rounds = decode(
            target,
            prompt,
            max_new_tokens=3,
            sampling=sampling,
            generator=generator,
            draft=draft,
            schedule=Constant(2),
        )
        next(rounds)
        round_ = next(rounds)
        counts[round_.tokens[0]] += 1
        accepted += round_.accepted
    assert 0 < accepted < 3000
    assert_follows(counts, expected)
