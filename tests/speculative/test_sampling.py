"""Sampling filters against transformers' own logits processors, and the whole assisted sampler on a real model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from test_verify import assert_follows
from tokenizers import Tokenizer, decoders, models
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedTokenizerFast,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ipex_assist.executors.interface import Model
from ipex_assist.speculative.assistant_model import AssistantModel
from ipex_assist.speculative.decode import decode
from ipex_assist.speculative.draft import DraftSource
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.prompt_lookup import LookupFirst, PromptLookup
from ipex_assist.speculative.sampling import Sampling
from ipex_assist.speculative.schedule import Constant, Plan, RoundResult, RoundState
from ipex_assist.speculative.universal import UniversalAssistant

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


@pytest.mark.parametrize("min_p", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("top_p", [0.7, 1.0])
def test_min_p_equals_transformers(min_p: float, top_p: float) -> None:
    """Behind top-p, as there; 1 leaves the likeliest token."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopPLogitsWarper(top_p), MinPLogitsWarper(min_p)])
    expected = torch.softmax(warpers(torch.zeros(6, 1, dtype=torch.long), logits.clone()), -1)
    ours = Sampling(do_sample=True, temperature=0.7, top_k=0, top_p=top_p, min_p=min_p).probabilities(logits)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


def test_penalties_count_generated_tokens_row_by_row() -> None:
    """OpenAI's rule by hand: c × frequency + [c > 0] × presence, with no count of the prompt's tokens."""
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, prompt_length=3)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    prompt, generated, following = [4, 4, 9], [9, 11, 11], [9, 30]
    ours = sampling.penalise(logits, [*prompt, *generated], following)
    for row in range(3):
        expected = logits[row].clone()
        for token, count in Counter([*generated, *following[:row]]).items():
            expected[token] -= 0.25 * count + 0.5
        torch.testing.assert_close(ours[row], expected)


def test_biases_are_added_before_penalties_and_may_exceed_a_drafts_vocabulary() -> None:
    """A draft may have fewer tokens than the text and the biases."""
    sampling = Sampling(logit_bias={2: -100, 4: 1.5, VOCAB + 3: 9}, repetition_penalty=2.0)
    logits = torch.ones(1, VOCAB)
    ours = sampling.penalise(logits, [4, VOCAB + 7])
    assert ours[0, 2] == -99
    assert ours[0, 4] == 1.25
    assert ours[0, 5] == 1
    assert torch.equal(logits, torch.ones(1, VOCAB)), "the target's own logits must not change"


def test_temperature_0_is_greedy() -> None:
    """It was a division by zero, and an error of torch's."""
    assert not Sampling(do_sample=True, temperature=0).do_sample
    assert Sampling.part_of(GenerationOptions(do_sample=True, temperature=0.5), prompt_length=7).do_sample


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
        Sampling(do_sample=True, top_k=0, min_p=0.15),
        Sampling(do_sample=True, top_k=0, presence_penalty=1.5, frequency_penalty=0.7, prompt_length=3),
        Sampling(do_sample=True, top_k=0, logit_bias={2: 3.0, 5: -100}, repetition_penalty=1.6),
    ],
    ids=["plain", "top-k", "top-p", "min-p", "penalties", "biases"],
)
def test_assisted_tokens_follow_the_targets_distribution(sampling: Sampling, tmp_path: Path) -> None:
    """The loop end to end, caches and all: the second token, drafted by another model, over 3,000 runs."""
    small = {"vocab_size": 12, "num_hidden_layers": 1}
    tiny_models.save(tmp_path / "target", "llama", **small)
    tiny_models.save(tmp_path / "assistant", "llama", seed=1, **small)
    target, assistant = (tiny_models.model(tmp_path / name) for name in ("target", "assistant"))
    prompt = [3, 7, 1]
    text = tiny_models.Text(target)

    # The second token's distribution, summed over all first tokens, from the target alone.
    first = sampling.probabilities(sampling.penalise(text.forward(prompt), prompt))[0]
    expected = torch.zeros(12)
    for token in range(12):
        text.truncate(3)
        logits = sampling.penalise(text.forward([token]), [*prompt, token])
        expected += first[token] * sampling.probabilities(logits)[0]

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


class Threshold:
    """Stops behind unsure tokens, and drafts from the text's end alone every other round."""

    plain_s = None

    def __init__(self) -> None:
        self.rounds = 0

    def plan(self, now: RoundState) -> Plan:
        self.rounds += 1
        return Plan(3, 0.25, 3 if self.rounds % 2 else None)

    def observe(self, outcome: RoundResult) -> None:
        pass


def letters(order: str, pairs: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of single letters, and of some pairs of them."""
    vocabulary = {token: index for index, token in enumerate([*order, *pairs])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in pairs]))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def universal(model: Model) -> DraftSource:
    """The assistant writes the target's letters under other numbers, and has tokens of two."""
    return UniversalAssistant(model, letters("lkjihgf\n", ["lk", "ji", "hg", "fl"]), letters("abcdefghijkl\n"), 12, 60)


SAMPLED = Sampling(do_sample=True, top_k=0, temperature=0.8)
SOURCES: dict[str, Callable[[Model, torch.Generator], DraftSource]] = {
    "self": lambda model, generator: AssistantModel(model, SAMPLED, generator, 12),
    "model": lambda model, generator: AssistantModel(model, SAMPLED, generator, 12),
    "narrow": lambda model, generator: AssistantModel(model, SAMPLED, generator, 12, 7),
    "universal": lambda model, generator: universal(model),
    "lookup": lambda model, generator: PromptLookup(),
    "lookup+model": lambda model, generator: LookupFirst(
        PromptLookup(), AssistantModel(model, SAMPLED, generator, 12), 3
    ),
}


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model, Model]:
    """Return models of 12 tokens: a target, another model, and the target in few bits."""
    folder = tmp_path_factory.mktemp("small")
    for seed, name in enumerate(("target", "assistant")):
        tiny_models.save(folder / name, "llama", seed=seed, vocab_size=12, num_hidden_layers=1)
    target = tiny_models.model(folder / "target")
    assistant = tiny_models.model(folder / "assistant", exact=False)
    few_bits = ("native", "int4") if HAS_NATIVE else ("torch", "bf16")
    return target, assistant, tiny_models.model(folder / "target", *few_bits, exact=False)


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_with_thresholds_keeps_the_distribution(
    name: str, small_models: tuple[Model, Model, Model]
) -> None:
    """Second and third tokens against all their probabilities, over 1,500 texts.

    Dropping a drawn token for being unlikely, or a distribution that was not padded, shows here.
    """
    target, assistant = small_models[0], small_models[2 if name == "self" else 1]
    prompt = [11, *(token for other in range(12) for token in (other, 11))]  # any first token makes a match for lookup
    text = tiny_models.Text(target)
    first = SAMPLED.probabilities(text.forward(prompt))[0]
    second, third = torch.zeros(12), torch.zeros(12)
    for one in range(12):
        text.truncate(len(prompt))
        chances = first[one] * SAMPLED.probabilities(text.forward([one]))[0]
        second += chances
        for two in range(12):
            text.truncate(len(prompt) + 1)
            third += chances[two] * SAMPLED.probabilities(text.forward([two]))[0]

    generator = torch.Generator().manual_seed(11)
    seconds, thirds, accepted = torch.zeros(12), torch.zeros(12), 0
    for _ in range(1500):
        rounds = list(
            decode(
                target,
                prompt,
                max_new_tokens=4,
                sampling=SAMPLED,
                generator=generator,
                draft=SOURCES[name](assistant, generator),
                schedule=Threshold(),
            )
        )
        tokens = [token for round_ in rounds for token in round_.tokens]
        seconds[tokens[1]] += 1
        thirds[tokens[2]] += 1
        accepted += sum(round_.accepted for round_ in rounds)
    assert accepted > 60, accepted
    assert_follows(seconds, second)
    assert_follows(thirds, third)
