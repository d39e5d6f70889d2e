"""Draft sources one by one: lookup beside a model, windows and rewinding of assistants, other tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from still_clock import stop_clock
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import ipex_assist
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.native.token_index import CopiedDrafts
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.costs.pair_cache import PairCache
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.schedule import DraftPlan
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.assistant_name import AssistantName, parse_assistant
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.speculative.sources.suffix_lookup import LookupWithFallback, SuffixLookup
from ipex_assist.speculative.sources.universal_assistant import FragmentTokenizer, UniversalAssistant

GREEDY = Sampling()
PROMPT = "def add(a, b):\n    return a + b\n"


class Recorded(DraftSource):
    """A source that notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def unread(self, tokens: Sequence[int]) -> int:
        return 5

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        self.calls.append("propose")
        yield from ()  # no model is asked
        return Proposal([0] * plan.k)

    def accept(self, count: int) -> None:
        self.calls.append(f"accept {count}")


def test_lookup_first_asks_the_model_without_a_long_match() -> None:
    """It tells the one that proposed what was accepted, which the other must not hear."""
    other = Recorded()
    source = LookupWithFallback(SuffixLookup(), other, sure=0.9)
    assert source.unread([1, 2, 3, 4]) == 5
    assert source.propose([1, 2, 3, 4], 2).tokens == [0, 0]
    source.accept(1)
    text = [1, 2, 3, 4, 1, 2, 3]
    assert source.unread(text) == 0
    assert source.propose(text, 2).tokens == [4, 1]
    source.accept(2)
    assert other.calls == ["propose", "accept 1"]


def test_a_text_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass asks whether to rest, what is unread, and for the draft: each would search again; a longer text is new."""
    searched: list[int] = []
    draft = CopiedDrafts.draft

    def counted(drafts: CopiedDrafts) -> tuple[list[int], list[float]]:
        searched.append(len(text))
        return draft(drafts)

    monkeypatch.setattr(CopiedDrafts, "draft", counted)
    source, text = LookupWithFallback(SuffixLookup(), Recorded(), sure=0.9), [1, 2, 3, 4, 1, 2, 3]
    assert source.copies(text)
    assert source.unread(text) == 0
    assert source.propose(text, 2).tokens == [4, 1]
    assert searched == [7]
    text += [4, 9]
    assert not source.copies(text)
    assert source.propose(text, 2).tokens == [0, 0]
    assert searched == [7, 9]


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Return two models of one vocabulary."""
    tiny_models.save(tmp_path / "one", "llama")
    tiny_models.save(tmp_path / "two", "llama", seed=1)
    return tmp_path


def assistant(folder: Path, executor: str, **options: Any) -> AssistantModel:
    model = tiny_models.model(folder / "two", executor, "fp32", exact=False)
    return AssistantModel(model, GREEDY, tiny_models.VOCAB, **options)


TEXT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31, 90, 55, 2, 71, 118, 29, 33, 4, 80]


def test_a_window_reads_the_end_of_the_text_and_the_whole_when_asked(pair: Path, executor: str) -> None:
    """A draft from the last tokens is that of a text which begins there; None reads all, and then it is the usual."""
    source = assistant(pair, executor)
    windowed = source.propose(TEXT, 3, context=6).tokens
    source.accept(0)
    assert source.unread([*TEXT, 1]) == 1
    assert windowed == assistant(pair, executor).propose(TEXT[-6:], 3).tokens
    whole = source.propose(TEXT, 3).tokens
    assert whole == assistant(pair, executor).propose(TEXT, 3).tokens
    source.accept(1)
    # What was read is enough: a small window changes nothing.
    text = [*TEXT, whole[0], 7]
    assert source.propose(text, 3, context=6).tokens == assistant(pair, executor).propose(text, 3).tokens


def test_catching_up_after_a_pause_gives_the_same_draft(pair: Path, executor: str) -> None:
    """Rounds without a draft leave tokens unread; read together they are as if they had come one by one."""
    source = assistant(pair, executor)
    source.propose(TEXT[:4], 2)
    source.accept(0)
    assert source.unread(TEXT) == len(TEXT) - 4
    assert source.propose(TEXT, 3).tokens == assistant(pair, executor).propose(TEXT, 3).tokens


def test_least_ends_behind_an_unsure_token(pair: Path, executor: str) -> None:
    """All confidences but the last reach the threshold, whichever way the executor drafts."""
    confidence = assistant(pair, executor).propose(TEXT, 6).confidence
    assert len(confidence) == 6
    min_confidence = sorted(confidence)[2]
    ours = assistant(pair, executor).propose(TEXT, 6, min_confidence=min_confidence).confidence
    stop = next((i for i, value in enumerate(confidence) if value < min_confidence), 5)
    assert ours == pytest.approx(confidence[: stop + 1], rel=1e-4)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(do_sample=True, top_k=0), Sampling(repetition_penalty=1.3)])
def test_a_narrow_vocabulary(pair: Path, executor: str, sampling: Sampling) -> None:
    """Only its first tokens are drafted, though the text has others."""
    model = tiny_models.model(pair / "two", executor, "fp32", exact=False)
    source = AssistantModel(model, sampling, tiny_models.VOCAB, 40)
    proposal = source.propose(TEXT, 8)
    assert len(proposal.tokens) == 8
    assert max(proposal.tokens) < 40


@pytest.mark.skipif(not HAS_NATIVE, reason="needs the native core")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("vocabulary", [1, 16, 37, 100, 159, 160, 500])
def test_the_cores_narrow_head_has_the_full_heads_bits(pair: Path, precision: str, vocabulary: int) -> None:
    """Columns divided over the threads in another way are the same columns, and so is their maximum."""
    text = tiny_models.text(pair / "two", "native", precision)
    full = text.forward(TEXT, last=3)
    text.truncate(0)
    narrow = text.forward(TEXT, last=3, vocabulary=vocabulary)
    assert torch.equal(narrow, full[:, :vocabulary])
    text.truncate(0)
    tokens, confidence = text.draft(TEXT, 1, vocabulary=vocabulary)
    assert tokens == [int(narrow[-1].argmax())]
    assert confidence[0] == pytest.approx(float(torch.softmax(narrow[-1], -1).max()), rel=1e-4)


def words() -> PreTrainedTokenizerFast:
    """Return another tokenizer: other merges, other ids, other special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["return a + b", "quick café 12345 fox", "print(i) lazy over"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, an assistant of its vocabulary, and one of another."""
    folder = checkpoint_files.save_pair(tmp_path_factory.mktemp("sources"))
    checkpoint_files.save(checkpoint_files.tiny_model("llama", seed=2), folder / "other", tokenizer=False)
    words().save_pretrained(folder / "other")
    return folder


@pytest.mark.parametrize("text", ["return a + b", "naïve café — 12345", "  indented\n\tline", "x"])
def test_pieces_go_there_and_back(text: str) -> None:
    """Text behind a text, in both tokenizers: nothing lost or doubled at the seam."""
    for tokenizer in (checkpoint_files.tiny_tokenizer(), words()):
        pieces = FragmentTokenizer(tokenizer)
        before = pieces.first_tokens("def add(a, b):\n    ")
        tokens = pieces.tokens_after(before, text)
        assert pieces.text_after(before, tokens) == text
        assert pieces.text(pieces.tokens(text)) == text


def test_universal_drafts_the_text_that_the_assistant_would_write(folders: Path) -> None:
    """Its own tokens of the same text give the same continuation, and a repeated call continues from its cache."""
    target, other = checkpoint_files.tiny_tokenizer(), words()
    model = tiny_models.model(folders / "other", exact=False)
    source = UniversalAssistant(model, other, target, checkpoint_files.VOCAB_SIZE, 128)
    ids = FragmentTokenizer(other).first_tokens(PROMPT)
    alone = tiny_models.text(folders / "other", tokens=128, exact=False)
    drafted: list[int] = []
    pending = ids
    for _ in range(4):
        drafted.append(int(alone.forward(pending).argmax()))
        pending = drafted[-1:]
    expected = FragmentTokenizer(other).text(drafted)
    tokens = list(target(PROMPT)["input_ids"])
    assert source.unread(tokens) == len(ids)
    proposal = source.propose(tokens, 4)
    got = FragmentTokenizer(target).text(proposal.tokens)
    assert got
    assert expected.startswith(got.rstrip("\ufffd"))
    longer = [*tokens, *target(" fox")["input_ids"]]
    assert 0 < source.unread(longer) < len(ids)


@pytest.fixture(autouse=True)
def _calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs by which drafting pays, whatever passes take: what the machine does meanwhile decides nothing."""
    stop_clock(monkeypatch)
    monkeypatch.setattr(PairCache, "costs", lambda *_: Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7))


NAMES = ["self", "lookup", "lookup+self", "lookup+{assistant}", "{assistant}", "{other}"]


@pytest.mark.skipif(not HAS_NATIVE, reason="self needs an executor with int4")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("schedule", ["adaptive", "constant", "heuristic"])
def test_every_name_gives_the_targets_text(folders: Path, name: str, schedule: str) -> None:
    """Through load and generate, greedily; and the result says what drafted."""
    name = name.format(assistant=folders / "assistant", other=folders / "other")
    model = ipex_assist.load(str(folders / "target"), name, executor="native", universal="other" in name)
    plain = model.generate(PROMPT * 2, max_new_tokens=40, assisted=False)
    ours = model.generate(PROMPT * 2, max_new_tokens=40, num_assistant_tokens_schedule=schedule)
    assert ours.tokens == plain.tokens
    assert ours.assisted
    assert ours.draft.drafted
    assert ours.assistant == (f"{name} (universal)" if "other" in name else name)
    again = model.generate(PROMPT * 2, max_new_tokens=40, num_assistant_tokens_schedule=schedule)
    assert again.tokens == plain.tokens


@pytest.mark.skipif(not HAS_NATIVE, reason="self needs an executor with int4")
def test_the_targets_copy_shares_its_embedding(folders: Path) -> None:
    """Of the copy's own table no page is written; its drafts are those of a copy with a table of its own."""
    model: Any = ipex_assist.load(str(folders / "target"), "self", executor="native")
    alone: Any = load_model(
        LoadRequest(open_checkpoint(str(folders / "target")), "int4", "native", group=DRAFT_INT4_GROUP)
    )
    tokens = model.tokenizer(PROMPT)["input_ids"]
    ours, expected = (tiny_models.Text(each).forward(tokens) for each in (model.assistant, alone))
    assert torch.equal(ours, expected)
    image, whole = b"".join(model.assistant.packed.image()), b"".join(alone.packed.image())
    table = checkpoint_files.VOCAB_SIZE * 64 * 2
    assert len(image) == len(whole)
    assert image.count(0) > whole.count(0) + 0.9 * table


def test_another_vocabulary_needs_the_flag(folders: Path) -> None:
    """Without the flag the pair is refused, and the error names the flag."""
    with pytest.raises(UsageError, match="--universal"):
        ipex_assist.load(str(folders / "target"), str(folders / "other"), precision="fp32", executor="torch")


def test_self_needs_an_executor_with_int4(folders: Path) -> None:
    """torch has none: said before anything is loaded."""
    with pytest.raises(UsageError, match="int4"):
        ipex_assist.load(str(folders / "target"), "self", precision="fp32", executor="torch")


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        (None, AssistantName()),
        ("none", AssistantName()),
        ("facebook/opt-125m", AssistantName(False, "facebook/opt-125m")),
        ("self", AssistantName(False, "self")),
        ("./lookup", AssistantName(False, "./lookup")),
        ("lookup", AssistantName(True)),
        ("auto-lookup", AssistantName(True, "auto")),
        ("lookup+self", AssistantName(True, "self")),
        ("mtp+lookup", AssistantName(True, "mtp")),
        ("lookup+facebook/opt-125m", AssistantName(True, "facebook/opt-125m")),
    ],
)
def test_names(name: str | None, parsed: AssistantName) -> None:
    """Every spelling of --assistant-model means what its help says."""
    assert parse_assistant(name) == parsed


@pytest.mark.parametrize(("name", "meant"), [("selff", "self"), ("lookp", "lookup"), ("auto-lokup", "auto-lookup")])
def test_a_misspelt_keyword_is_no_model(name: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a search of the hub for a model named selff; a folder of that name is one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"did you mean {meant}?"):
        parse_assistant(name)
    (tmp_path / name).mkdir()
    assert parse_assistant(name) == AssistantName(False, name)


@pytest.mark.parametrize("name", ["lookup+", "lookup+none", "lookup+lookup", "lookup+auto-lookup"])
def test_names_without_a_model_behind_lookup(name: str) -> None:
    """The error says what to type."""
    with pytest.raises(UsageError, match="a model must follow"):
        parse_assistant(name)
