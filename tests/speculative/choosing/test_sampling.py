"""Sampling filters against transformers' own logits processors, and the whole assisted sampler on a real model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE, some_quick
from decoding import run, tokens_of
from distributions import assert_follows, probabilities
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
from ipex_assist.speculative.choosing.sampling import Sampling, filtered_tokens
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.schedule import ConstantSchedule, DraftPlan, RoundState
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.partial_vocabulary import PartialVocabularyAssistant
from ipex_assist.speculative.sources.suffix_lookup import LookupWithFallback, SuffixLookup
from ipex_assist.speculative.sources.universal_assistant import UniversalAssistant

VOCAB = 50
EXECUTOR = "native" if HAS_NATIVE else "torch"  # thousands of texts take a quarter of the time


def assert_kept(logits: torch.Tensor, sampling: Sampling, expected: torch.Tensor) -> None:
    """The tokens that are left are those of `expected`, and so is the reference of the other tests."""
    torch.testing.assert_close(probabilities(logits, sampling), expected, atol=1e-6, rtol=1e-5)
    for row, wanted in zip(logits, expected, strict=True):
        ids = filtered_tokens(row.numpy(), sampling)
        found = range(len(row)) if ids is None else ids.tolist()
        assert list(found) == wanted.nonzero().flatten().tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 7, 100])
@pytest.mark.parametrize("top_p", [0.05, 0.7, 1.0])
def test_filters_equal_transformers(temperature: float, top_k: int, top_p: float) -> None:
    """Order of filters and which token is the last to stay."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    expected = torch.softmax(warpers(torch.zeros(6, 1, dtype=torch.long), logits.clone()), -1)
    assert_kept(logits, Sampling(do_sample=True, temperature=temperature, top_k=top_k, top_p=top_p), expected)


def test_penalty_equals_transformers_row_by_row() -> None:
    """Row i sees the context and the first i of the following tokens."""
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    context, following = [4, 4, 9], [11, 30]
    ours = Sampling(repetition_penalty=1.3).apply_penalties(logits, context, following)
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
    assert_kept(logits, Sampling(do_sample=True, temperature=0.7, top_k=0, top_p=top_p, min_p=min_p), expected)


def test_penalties_count_generated_tokens_row_by_row() -> None:
    """OpenAI's rule by hand: c × frequency + [c > 0] × presence, with no count of the prompt's tokens."""
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25, prompt_length=3)
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    prompt, generated, following = [4, 4, 9], [9, 11, 11], [9, 30]
    ours = sampling.apply_penalties(logits, [*prompt, *generated], following)
    for row in range(3):
        expected = logits[row].clone()
        for token, count in Counter([*generated, *following[:row]]).items():
            expected[token] -= 0.25 * count + 0.5
        torch.testing.assert_close(ours[row], expected)


def test_biases_are_added_before_penalties_and_may_exceed_a_drafts_vocabulary() -> None:
    """A draft may have fewer tokens than the text and the biases."""
    sampling = Sampling(logit_bias={2: -100, 4: 1.5, VOCAB + 3: 9}, repetition_penalty=2.0)
    logits = torch.ones(1, VOCAB)
    ours = sampling.apply_penalties(logits, [4, VOCAB + 7])
    assert ours[0, 2] == -99
    assert ours[0, 4] == 1.25
    assert ours[0, 5] == 1
    assert torch.equal(logits, torch.ones(1, VOCAB)), "the target's own logits must not change"


def test_temperature_0_is_greedy() -> None:
    """It was a division by zero, and an error of torch's."""
    assert not Sampling(do_sample=True, temperature=0).do_sample
    assert Sampling.part_of(GenerationOptions(do_sample=True, temperature=0.5), prompt_length=7).do_sample


def test_seed_repeats_and_no_seed_does_not() -> None:
    """A seed is a promise; without one two texts must differ, and say by what."""
    seeds = [Sampling(do_sample=True, seed=seed).seed for seed in (7, 7, 0, None, None)]
    assert seeds[:3] == [7, 7, 0]
    assert None not in seeds
    assert seeds[3] != seeds[4]
    assert Sampling().seed is None


@pytest.mark.one_stack
@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(do_sample=True, top_k=0), marks=pytest.mark.full),
        pytest.param(Sampling(do_sample=True, top_k=4, temperature=0.7), marks=pytest.mark.full),
        pytest.param(Sampling(do_sample=True, top_k=0, top_p=0.8), marks=pytest.mark.full),
        pytest.param(Sampling(do_sample=True, top_k=0, min_p=0.15), marks=pytest.mark.full),
        Sampling(do_sample=True, top_k=0, presence_penalty=1.5, frequency_penalty=0.7, prompt_length=3),
        pytest.param(
            Sampling(do_sample=True, top_k=0, logit_bias={2: 3.0, 5: -100}, repetition_penalty=1.6),
            marks=pytest.mark.full,
        ),
    ],
    ids=["plain", "top-k", "top-p", "min-p", "penalties", "biases"],
)
def test_assisted_tokens_follow_the_targets_distribution(sampling: Sampling, tmp_path: Path) -> None:
    """The loop end to end, caches and all: the second token, drafted by another model, over 3,000 runs."""
    small = {"vocab_size": 12, "num_hidden_layers": 1}
    tiny_models.save(tmp_path / "target", "llama", **small)
    tiny_models.save(tmp_path / "assistant", "llama", seed=1, **small)
    target, assistant = (tiny_models.model(tmp_path / name, EXECUTOR) for name in ("target", "assistant"))
    prompt = [3, 7, 1]
    sampling = replace(sampling, prompt_length=len(prompt))
    text = tiny_models.Text(target)

    # The second token's distribution, summed over all first tokens, from the target alone.
    first = probabilities(sampling.apply_penalties(text.forward(prompt), prompt), sampling)[0]
    expected = torch.zeros(12)
    for token in range(12):
        text.truncate(3)
        logits = sampling.apply_penalties(text.forward([token]), [*prompt, token])
        expected += first[token] * probabilities(logits, sampling)[0]

    counts, accepted = torch.zeros(12), 0
    for seed in range(3000):
        seeded = replace(sampling, seed=seed)
        draft = AssistantModel(assistant, seeded, 12)
        round_ = run(target, draft, 2, prompt, 3, seeded)[1]
        counts[round_.tokens[0]] += 1
        accepted += round_.accepted
    assert 0 < accepted < 6000
    assert_follows(counts, expected)


class Threshold:
    """Stops behind unsure tokens, and drafts from the text's end alone every other round."""

    def __init__(self) -> None:
        self.rounds = 0

    def plan(self, now: RoundState) -> DraftPlan:
        self.rounds += 1
        return DraftPlan(3, 0.25, 3 if self.rounds % 2 else None)

    def observe(self, drafted: int, accepted: int) -> None:
        pass


class Dice:
    """Any number of tokens, any threshold, any context."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def plan(self, now: RoundState) -> DraftPlan:
        return DraftPlan(self.random.randrange(6), self.random.choice((0, 0.4, 0.9)), self.random.choice((None, 4)))

    def observe(self, drafted: int, accepted: int) -> None:
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


def partly(model: Model, sampling: Sampling, unknown: frozenset[int]) -> DraftSource:
    """The assistant neither reads nor drafts these."""
    return PartialVocabularyAssistant(AssistantModel(model, sampling, 12, masked=unknown), unknown)


SAMPLED = Sampling(do_sample=True, top_k=0, temperature=0.8)
SOURCES: dict[str, Callable[[Model, Sampling], DraftSource]] = {
    "self": lambda model, sampling: AssistantModel(model, sampling, 12),
    "model": lambda model, sampling: AssistantModel(model, sampling, 12),
    "narrow": lambda model, sampling: AssistantModel(model, sampling, 12, 7),
    "partly": lambda model, sampling: partly(model, sampling, frozenset({3, 11})),
    "universal": lambda model, sampling: universal(model),
    "lookup": lambda model, sampling: SuffixLookup(),
    "lookup+model": lambda model, sampling: LookupWithFallback(
        SuffixLookup(), AssistantModel(model, sampling, 12), 0.9
    ),
}


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model, Model]:
    """Return models of 12 tokens: a target, another model, and the target in few bits."""
    folder = tmp_path_factory.mktemp("small")
    for seed, name in enumerate(("target", "assistant")):
        tiny_models.save(folder / name, "llama", seed=seed, vocab_size=12, num_hidden_layers=1)
    target = tiny_models.model(folder / "target", EXECUTOR)
    assistant = tiny_models.model(folder / "assistant", EXECUTOR, exact=False)
    few_bits = ("native", "int4") if HAS_NATIVE else ("torch", "bf16")
    return target, assistant, tiny_models.model(folder / "target", *few_bits, exact=False)


# Any first token makes a match for lookup.
LONG_PROMPT = [11, *(token for other in range(12) for token in (other, 11))]


@pytest.mark.one_stack
@pytest.mark.parametrize("name", some_quick(SOURCES, {"universal", "lookup"}))
def test_every_source_with_thresholds_keeps_the_distribution(
    name: str, small_models: tuple[Model, Model, Model]
) -> None:
    """Second and third tokens against all their probabilities, over 1,500 texts."""
    target, assistant = small_models[0], small_models[2 if name == "self" else 1]
    text = tiny_models.Text(target)
    first = probabilities(text.forward(LONG_PROMPT), SAMPLED)[0]
    second, third = torch.zeros(12), torch.zeros(12)
    for one in range(12):
        text.truncate(len(LONG_PROMPT))
        chances = first[one] * probabilities(text.forward([one]), SAMPLED)[0]
        second += chances
        for two in range(12):
            text.truncate(len(LONG_PROMPT) + 1)
            third += chances[two] * probabilities(text.forward([two]), SAMPLED)[0]

    seconds, thirds, accepted = torch.zeros(12), torch.zeros(12), 0
    for seed in range(1500):
        sampling = replace(SAMPLED, seed=seed)
        rounds = run(
            target, SOURCES[name](assistant, sampling), 3, LONG_PROMPT, 4, sampling=sampling, schedule=Threshold()
        )
        tokens = tokens_of(rounds)
        seconds[tokens[1]] += 1
        thirds[tokens[2]] += 1
        accepted += sum(round_.accepted for round_ in rounds)
    assert accepted > 60, accepted
    assert_follows(seconds, second)
    assert_follows(thirds, third)


ROUGH = Sampling(
    do_sample=True,
    top_k=9,
    top_p=0.95,
    min_p=0.02,
    temperature=1.3,
    frequency_penalty=0.3,
    repetition_penalty=1.1,
    prompt_length=len(LONG_PROMPT),
)


@pytest.mark.parametrize(
    "sampling",
    [pytest.param(SAMPLED, marks=pytest.mark.full), ROUGH],
    ids=["noise alone", "filters and penalties"],
)
@pytest.mark.one_stack
@pytest.mark.parametrize("name", SOURCES)
def test_a_seed_is_a_text(name: str, sampling: Sampling, small_models: tuple[Model, Model, Model]) -> None:
    """With any source, number of tokens and schedule the text is the plain one; other seeds give other texts.

    Rejection sampling gave another text for each.
    """
    target, assistant = small_models[0], small_models[2 if name == "self" else 1]
    texts, accepted, rejected = set(), 0, 0
    for seed in range(12):
        seeded = replace(sampling, seed=seed)
        plain = tokens_of(run(target, prompt=LONG_PROMPT, new=40, sampling=seeded))
        texts.add(tuple(plain))
        for schedule in (ConstantSchedule(1), ConstantSchedule(7), Dice(seed), Dice(100 + seed)):
            source = SOURCES[name](assistant, seeded)
            rounds = run(target, source, prompt=LONG_PROMPT, new=40, sampling=seeded, schedule=schedule)
            assert tokens_of(rounds)[:40] == plain
            accepted += sum(round_.accepted for round_ in rounds)
            rejected += sum(round_.drafted - round_.accepted for round_ in rounds)
    assert accepted > 20
    assert rejected > 40
    assert len(texts) == 12


def test_what_is_left_out_keeps_positions(small_models: tuple[Model, Model, Model]) -> None:
    """An assistant that is the target but lacks a token is right wherever it reads what the target reads."""
    target = small_models[0]
    hits = {}
    for unknown in (frozenset[int](), frozenset({5})):
        drafted = accepted = 0
        for seed in range(40):
            sampling = replace(SAMPLED, seed=seed, prompt_length=2)
            source = partly(target, sampling, unknown)
            rounds = run(target, source, 1, [3, 5], 30, sampling=sampling)
            drafted += sum(round_.drafted for round_ in rounds)
            accepted += sum(round_.accepted for round_ in rounds)
        hits[bool(unknown)] = accepted / drafted
    assert hits[False] == 1
    assert hits[True] > 0.6, "by other noise it is right as often as two draws are equal"
