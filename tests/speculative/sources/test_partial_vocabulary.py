"""Pairs whose vocabularies differ by ids at the end: lossless both ways, and only what both know is drafted or read."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from decoding import run
from distributions import assert_follows, probabilities

import ipex_assist
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.interface import Model
from ipex_assist.generation import resolved
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.costs.pair_cache import PairCache
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.partial_vocabulary import PartialVocabularyAssistant
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.tokenization.vocabulary import SharedVocabulary

TOKENS = checkpoint_files.TOKENS
EXECUTOR = "native" if HAS_NATIVE else "torch"
GREEDY = Sampling()
CHEAP = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)


def cut(model: Any, rows: int) -> Any:
    """The same model with the first `rows` tokens alone."""
    smaller = copy.deepcopy(model)
    smaller.resize_token_embeddings(rows)
    return smaller


def save(model: Any, folder: Path, added: int, special: bool) -> None:
    """With the tokenizer of the tests and `added` tokens behind its own."""
    tokenizer = checkpoint_files.tiny_tokenizer()
    tokenizer.add_tokens([f"<extra{index}>" for index in range(added)], special_tokens=special)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def save_pair(folder: Path, target: tuple[int, int], assistant: tuple[int, int], special: bool) -> None:
    """(tokens, rows) of a random target, and of an assistant that is the target but for these.

    The target likes the last tokens, so that it writes them and its assistant would like to.
    """
    model = checkpoint_files.tiny_model("llama", vocab_size=max(target[1], assistant[1]))
    with torch.no_grad():
        model.lm_head.weight[TOKENS:] *= 1 + 4 / max(1, len(model.lm_head.weight) - TOKENS)
    for name, (tokens, rows) in {"target": target, "assistant": assistant}.items():
        save(cut(model, rows), folder / name, tokens - TOKENS, special)


# Tokens and rows of target and assistant, and the number of ids that may be drafted.
PAIRS: dict[str, tuple[tuple[int, int], tuple[int, int], int]] = {
    **{f"target +{n}": ((TOKENS + n, TOKENS + n), (TOKENS, TOKENS), TOKENS) for n in (3, 16, 64)},
    **{f"assistant +{n}": ((TOKENS, TOKENS), (TOKENS + n, TOKENS + n), TOKENS) for n in (3, 16, 64)},
    "target rows +16": ((TOKENS, TOKENS + 36), (TOKENS, TOKENS + 20), TOKENS + 20),
    "assistant rows +16": ((TOKENS, TOKENS + 20), (TOKENS, TOKENS + 36), TOKENS + 20),
    "both lack the row": ((TOKENS + 1, TOKENS + 16), (TOKENS + 1, TOKENS), TOKENS),
    "neither has the row": ((TOKENS + 1, TOKENS), (TOKENS + 1, TOKENS), TOKENS),
    "fewer rows than tokens": ((TOKENS, TOKENS), (TOKENS + 3, TOKENS + 1), TOKENS),  # TinyLlama-Chat-v0.1
}


@pytest.fixture(autouse=True)
def _calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs by which drafting pays, whatever the machine does meanwhile."""
    monkeypatch.setattr(PairCache, "costs", lambda *_: CHEAP)


class Recorded(DraftSource):
    """A source whose proposals are kept."""

    def __init__(self, source: DraftSource) -> None:
        self.source = source
        self.proposals: list[Proposal] = []

    def unread(self, tokens: Sequence[int]) -> int:
        return self.source.unread(tokens)

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        self.proposals.append((yield from self.source.steps(tokens, plan)))
        return self.proposals[-1]

    def accept(self, count: int) -> None:
        self.source.accept(count)


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> list[Proposal]:
    """What was proposed to any text since."""
    found: list[Proposal] = []
    original = Drafting.source

    def source(self: Drafting, *arguments: Any) -> DraftSource | None:
        made = original(self, *arguments)
        if made is None:
            return None
        recorded = Recorded(made)
        recorded.proposals = found
        return recorded

    monkeypatch.setattr(Drafting, "source", source)
    return found


@pytest.mark.parametrize("special", [False, True], ids=["ordinary", "special"])
@pytest.mark.parametrize("name", PAIRS)
def test_greedy_equals_plain(name: str, special: bool, tmp_path: Path, proposals: list[Proposal]) -> None:
    """Prompts with and without the odd tokens, every schedule; what only the assistant has is not proposed."""
    target, assistant, drafted = PAIRS[name]
    save_pair(tmp_path, target, assistant, special)
    model = ipex_assist.load(str(tmp_path / "target"), str(tmp_path / "assistant"), precision="fp32", executor=EXECUTOR)
    last = min(target) - 1
    written: list[int] = []
    accepted = 0
    for prompt in ([7, 40, 200, 9, 33], [7, last, 40, 200, last], [last], [90, 12] * 9):
        plain = model.generate(prompt, max_new_tokens=40, assisted=False)
        written += plain.tokens
        for schedule in ("adaptive", "constant", "heuristic"):
            ours = model.generate(prompt, max_new_tokens=40, num_assistant_tokens_schedule=schedule)
            assert ours.tokens == plain.tokens, (prompt, schedule)
            accepted += ours.draft.accepted or 0
    assert accepted > 8
    assert max(token for proposal in proposals for token in proposal.tokens) < drafted
    if name in ("target +16", "target +64"):
        assert max(written) >= TOKENS, "the target wrote none of the tokens that this is about"


@pytest.mark.parametrize("executor", dict.fromkeys([EXECUTOR, "torch"]))
def test_masked_ids_are_not_drafted(executor: str, tmp_path: Path) -> None:
    """An id in the middle that is the assistant's alone, however likely, and with a smaller --draft-vocabulary, too."""
    model = checkpoint_files.tiny_model("llama", vocab_size=64)
    checkpoint_files.save(model, tmp_path, tokenizer=False)
    loaded = tiny_models.model(tmp_path, executor, exact=False)
    text = [5, 9, 33, 2]
    best = AssistantModel(loaded, GREEDY, 64).propose(text, 1).tokens[0]
    for sampling in (GREEDY, Sampling(do_sample=True, top_k=0)):
        for limit in (None, best):
            for seed in range(20):
                drawing = replace(sampling, seed=seed)
                source = AssistantModel(loaded, drawing, 64, limit, masked=frozenset({best, 63}))
                proposal = source.propose(text, 4)
                assert not {best, 63} & set(proposal.tokens)


def small(folder: Path, rows: int, executor: str = EXECUTOR) -> Model:
    """A model of `rows` tokens; an assistant is the target with some noise, and fewer or more of them."""
    if not folder.exists():
        model = checkpoint_files.tiny_model("llama", vocab_size=12 + 64, num_hidden_layers=1)
        with torch.no_grad():
            head = model.lm_head.weight
            head += torch.randn_like(head) * (0.1 if folder.name == "assistant" else 0)
        checkpoint_files.save(cut(model, rows), folder, tokenizer=False)
    return tiny_models.model(folder, executor)


SAMPLED = Sampling(do_sample=True, top_k=0, temperature=0.6)
QUICK = [
    ((12, 12), SharedVocabulary(limit=11, masked=frozenset({4}), unknown=frozenset({7}))),
]
REST = [
    *(((12 + n, 12), SharedVocabulary(unknown=frozenset(range(12, 12 + n)))) for n in (3, 16, 64)),
    *(((12, 12 + n), SharedVocabulary(limit=12)) for n in (3, 16, 64)),
    ((15, 12), SharedVocabulary()),  # padded rows
]
DIFFERENCES = [*QUICK, *(pytest.param(*each, marks=pytest.mark.full) for each in REST)]


@pytest.mark.one_stack
@pytest.mark.parametrize(("rows", "shared"), DIFFERENCES, ids=lambda value: str(value) if type(value) is tuple else "")
def test_sampled_tokens_follow_the_targets_distribution(
    rows: tuple[int, int], shared: SharedVocabulary, tmp_path: Path
) -> None:
    """The second token of 1,500 texts against all its probabilities, and the third where they are few."""
    target, assistant = small(tmp_path / "target", rows[0]), small(tmp_path / "assistant", rows[1])
    size, prompt, text = rows[0], [3, 7, 1], tiny_models.Text(target)
    first = probabilities(text.forward(prompt), SAMPLED)[0]
    second, third = torch.zeros(size), torch.zeros(size)
    for one in range(size):
        text.truncate(3)
        chances = first[one] * probabilities(text.forward([one]), SAMPLED)[0]
        second += chances
        for two in range(size if size < 40 else 0):  # more of them would take minutes
            text.truncate(4)
            third += chances[two] * probabilities(text.forward([two]), SAMPLED)[0]

    drafting = Drafting(size, lambda: CHEAP, assistant, shared=shared)
    counts, accepted, proposed = [torch.zeros(size), torch.zeros(size)], 0, 0
    for seed in range(1500):
        sampling = replace(SAMPLED, seed=seed, prompt_length=len(prompt))
        source = Recorded(drafting.source(sampling, 12))  # type: ignore[arg-type]
        rounds = run(target, source, 2, prompt, 4, sampling)
        tokens = [token for round_ in rounds for token in round_.tokens]
        for count, token in zip(counts, tokens[1:3], strict=True):
            count[token] += 1
        accepted += sum(round_.accepted for round_ in rounds)
        drafted = [token for proposal in source.proposals for token in proposal.tokens]
        assert max(drafted, default=0) < (shared.limit or size)
        assert not shared.masked.intersection(drafted)
        proposed += len(drafted)
    assert 0 < accepted < proposed
    assert_follows(counts[0], second)
    if size < 40:
        assert_follows(counts[1], third)


def without_attention(model: Any) -> Any:
    """What it writes then follows from the last token alone."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    return model


@pytest.mark.parametrize("prompt", [[5, 9, 310, 33], [5, 9, 33, 310], [310, 311], [310, 5]])
def test_acceptance_recovers_behind_an_unknown_token(prompt: list[int], tmp_path: Path) -> None:
    """One round without a draft behind the token at most; then an assistant that knows all else is always right."""
    model = without_attention(checkpoint_files.tiny_model("llama", vocab_size=320))
    with torch.no_grad():
        model.lm_head.weight[300:] = 0
    checkpoint_files.save(model, tmp_path / "target", tokenizer=False)
    checkpoint_files.save(cut(model, 300), tmp_path / "assistant", tokenizer=False)
    target, assistant = (tiny_models.model(tmp_path / name) for name in ("target", "assistant"))
    drafting = Drafting(320, lambda: CHEAP, assistant)
    rounds = run(target, drafting.source(GREEDY, 64), 4, prompt, 41)
    assert [round_.accepted for round_ in rounds[1:]] == [4] * 8


def test_the_text_is_read_without_unknown_tokens(tmp_path: Path) -> None:
    """The draft is that of the text without them, from a cache that follows the text; behind one there is a pause."""
    model = small(tmp_path / "one", 12, "torch")
    plain = AssistantModel(model, GREEDY, 20)
    ours = PartialVocabularyAssistant(AssistantModel(model, GREEDY, 20), frozenset({11}))
    assert ours.unread([3, 11, 7, 15, 1]) == 3
    assert ours.propose([3, 11, 7, 15, 1], 3) == plain.propose([3, 7, 1], 3)
    ours.accept(1)
    plain.accept(1)
    text = [3, 11, 7, 15, 1, 2, 11]
    assert ours.unread(text) >= 1
    assert ours.propose(text, 3) == Proposal([])
    assert ours.propose([*text, 4, 15, 4], 3) == plain.propose([3, 7, 1, 2, 4, 4], 3)
    assert ours.propose([*text, 4, 15, 4, 13], 3) == Proposal([])


@pytest.mark.parametrize("masked", [frozenset(), frozenset({4})], ids=["one call", "pass by pass"])
def test_unknown_tokens_with_rows(masked: frozenset[int], tmp_path: Path) -> None:
    """The assistant has rows for ids that it must not read, and likes them: they are not drafted, and what it keeps of
    accepted drafts is the text without them. So a source that drafted before says what a new one does.
    """
    model = small(tmp_path / "one", 12)
    unknown = frozenset({1, 3, 6, 7, 8})
    cut_short = 0

    def source() -> PartialVocabularyAssistant:
        return PartialVocabularyAssistant(AssistantModel(model, GREEDY, 20, None, 80, masked), unknown)

    for seed in range(12):
        chance, ours = random.Random(seed), source()
        text = [chance.randrange(14) for _ in range(4)]
        while len(text) < 70:
            proposal = ours.propose(text, chance.randrange(1, 6))
            refresh = source().propose(text, max(1, len(proposal.tokens)))
            assert (proposal.tokens, proposal.confidence) == (refresh.tokens, refresh.confidence)
            assert not unknown.intersection(proposal.tokens)
            assert len(proposal.tokens) == len(proposal.confidence)
            cut_short += text[-1] < 12 and text[-1] not in unknown and len(proposal.tokens) < 1
            kept = chance.randrange(len(proposal.tokens) + 1)
            if proposal.tokens:
                ours.accept(kept)
            text += [*proposal.tokens[:kept], *(chance.randrange(14) for _ in range(chance.randrange(1, 4)))]
    assert cut_short, "the assistant never drafted such an id at once: this shows nothing"


def test_a_draft_without_blocks_never_happened(tmp_path: Path) -> None:
    """Memory ends in the midst of a draft that goes pass by pass: the next one is that of a new source."""
    model = small(tmp_path / "one", 12, "torch")
    ours = AssistantModel(model, GREEDY, 20, masked=frozenset({4}))
    steps = ours.steps([3, 7, 1], DraftPlan(4))
    call = next(steps)
    for _ in range(2):
        call = steps.send(model.forward([call.rows], call.vocabulary))  # type: ignore[union-attr]
    with pytest.raises(NoBlocksError):
        steps.throw(NoBlocksError(1, 0, 5))
    text = [3, 7, 1, 9, 9, 9, 2]
    refresh = AssistantModel(model, GREEDY, 20, masked=frozenset({4}))
    assert ours.propose(text, 4).tokens == refresh.propose(text, 4).tokens


def test_a_text_of_unknown_tokens_alone(tmp_path: Path) -> None:
    """Nothing to read: nothing drafted."""
    source = PartialVocabularyAssistant(AssistantModel(small(tmp_path / "one", 12, "torch"), GREEDY, 20), frozenset())
    assert source.unread([15, 16]) == 1
    assert source.propose([15, 16], 3) == Proposal([])


def test_the_familys_default_is_limited_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proposals: list[Proposal]
) -> None:
    """Its vocabulary is compared elsewhere; what was found there must arrive."""
    save_pair(tmp_path, (TOKENS, TOKENS), (TOKENS + 16, TOKENS + 16), True)
    monkeypatch.setattr(resolved, "default_assistant", lambda *_: str(tmp_path / "assistant"))
    model: Any = ipex_assist.load(str(tmp_path / "target"), precision="fp32", executor="torch")
    assert model.drafting.shared == SharedVocabulary(limit=TOKENS)
    plain = model.generate("the quick", max_new_tokens=30, assisted=False)
    assert model.generate("the quick", max_new_tokens=30).tokens == plain.tokens
    assert max(token for proposal in proposals for token in proposal.tokens) < TOKENS
