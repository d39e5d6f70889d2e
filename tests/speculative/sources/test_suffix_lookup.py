"""Suffix lookup against a slow search of its own, and earlier text: whose it is, how much is kept, what is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import checkpoint_files
import pytest
from conftest import HAS_NATIVE

from ipex_assist.env.errors import UsageError
from ipex_assist.native.token_index import SEPARATOR
from ipex_assist.speculative.schedule import LONGEST_DRAFT
from ipex_assist.speculative.sources import text_index as indexes
from ipex_assist.speculative.sources.earlier_text import (
    BYTES_A_TOKEN,
    NOBODY,
    Caller,
    EarlierAnswers,
    EarlierText,
    read_corpus,
)
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.speculative.sources.suffix_lookup import SuffixLookup
from ipex_assist.speculative.sources.text_index import TokenLists, VotedDrafts, copied_drafts, text_index

pytestmark = pytest.mark.one_stack

LONGEST, NGRAMS, PLACES = 64, (6, 2, 1), 32


@pytest.fixture(autouse=True, params=["core", "python"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native core finds what to copy, or Python where there is none."""
    if request.param == "core" and not HAS_NATIVE:
        pytest.skip("the native core is not built")
    monkeypatch.setattr(indexes, "_in_core", lambda: request.param == "core")


def places(text: Sequence[int], end: Sequence[int]) -> list[tuple[int, int]]:
    """The slow way: positions in `text` after which the last tokens of `end` stand, and how many do."""
    found, known = [], LONGEST + 1
    for n in NGRAMS:
        at = [p for p in range(n, len(text)) if list(text[p - n : p]) == list(end[-n:])]
        lengths = []
        for position in reversed(at):
            length = 0
            while length < min(LONGEST, position, len(end)) and text[position - 1 - length] == end[-1 - length]:
                length += 1
            lengths += [(position, length)] if length < known else []
        found += lengths[:PLACES]
        known = n
    return found


def drafted(own: Sequence[int], *others: Sequence[int]) -> Proposal:
    """The slow way: places vote by their lengths, those of the text itself for more, and those outvoted leave."""
    texts = [list(own), *map(list, others)]
    voters = [
        (text, position, length**3 * (4 if not number else 1) / (1 if text is texts[0] else 16))
        for text in texts
        for number, (position, length) in enumerate(places(text, own))
    ]
    tokens: list[int] = []
    confidence: list[float] = []
    while voters and len(tokens) < LONGEST_DRAFT:
        votes: dict[int, float] = {}
        following = [
            (texts[0] + tokens)[position] if text is texts[0] else [*text, SEPARATOR][min(position, len(text))]
            for text, position, _ in voters
        ]
        for token, (_, _, weight) in zip(following, voters, strict=True):
            if token != SEPARATOR:
                votes[token] = votes.get(token, 0) + weight
        if not votes:
            break
        best = max(votes, key=votes.__getitem__)
        tokens.append(best)
        confidence.append(votes[best] / (sum(votes.values()) + 1))
        voters = [
            (text, position + 1, weight)
            for token, (text, position, weight) in zip(following, voters, strict=True)
            if token == best
        ]
    return Proposal(tokens, confidence)


def same(ours: Proposal, slow: Proposal) -> bool:
    return ours.tokens == slow.tokens and ours.confidence == pytest.approx(slow.confidence)


def test_drafts_are_those_of_a_slow_search() -> None:
    """Texts that grow by several tokens a round, as accepted drafts make them; alone, and beside others with ends."""
    generator = random.Random(0)
    for number in range(30):
        letters = generator.choice((2, 3, 8))
        other = [generator.randrange(letters) if generator.random() > 0.05 else SEPARATOR for _ in range(70)]
        index = text_index()
        index.append(other)
        tokens = [generator.randrange(letters) for _ in range(generator.randrange(1, 40))]
        lookup, beside = SuffixLookup(), SuffixLookup(EarlierText([index]))
        while len(tokens) < 150:
            assert same(lookup.after(tokens), drafted(tokens)), number
            assert same(beside.after(tokens), drafted(tokens, other)), number
            tokens += [generator.randrange(letters) for _ in range(generator.randrange(1, 6))]


def test_python_drafts_as_the_core_does(where: None) -> None:
    """Long matches and many places, more than are looked at; a ring that is full; confidences to the last bits.

    In texts so short that no chain of the core is walked to its limit for the places of other n-grams.
    """
    generator = random.Random(3)
    for letters, most in ((2, 0), (3, 40), (40, 300), (40, 0)):
        texts = [text_index(), text_index(most)], [TokenLists(), TokenLists(most)]
        drafts = copied_drafts(texts[0], LONGEST_DRAFT), VotedDrafts(texts[1], LONGEST_DRAFT)
        written = [generator.randrange(letters) for _ in range(50)]
        for _ in range(30):
            again = generator.randrange(len(written))
            more = [*written[again : again + generator.randrange(90)], generator.randrange(letters)]
            written += more
            for own, other in texts:
                own.append(more)
                other.append([*reversed(more), SEPARATOR])
            (tokens, confidence), expected = (each.draft() for each in drafts)
            assert tokens == expected[0]
            assert confidence == pytest.approx(expected[1], rel=1e-5)


def test_a_full_index_has_the_latest_tokens_alone() -> None:
    """One that keeps 50 tokens, beside a slow search in the last 50: as it fills up, and several laps later."""
    generator = random.Random(1)
    index, written = text_index(50), [0]
    index.append(written)
    for _ in range(120):
        more = [generator.randrange(4) for _ in range(generator.choice((1, 2, 7, 60)))]
        index.append(more)
        written += more
        end = [generator.randrange(4) for _ in range(8)]
        lookup = SuffixLookup(EarlierText([index]))
        assert same(lookup.after(end), drafted(end, written[-50:]))
        assert index.nbytes <= 50 * BYTES_A_TOKEN + 1024  # the smallest tables have 64 places


def test_what_followed_is_copied() -> None:
    """Nothing where there is no match; the copy goes on with itself at the text's end."""
    assert SuffixLookup().propose([1, 2, 3], 4) == Proposal([])
    assert SuffixLookup().propose([], 4) == Proposal([])
    assert SuffixLookup().propose([5, 6, 7, 8, 9, 1, 5, 6], 3).tokens == [7, 8, 9]
    assert SuffixLookup().propose([1, 2, 1, 2, 1, 2], 5).tokens == [1, 2, 1, 2, 1]
    assert SuffixLookup().propose([4, 4, 4], 4).tokens == [4, 4, 4, 4]


def test_confidence_is_by_length_and_by_frequency() -> None:
    """It rises with the match and with the places that agree; a threshold ends a draft behind its first token below."""
    short, long = [9, 5, 6, 7, 8, 1, 5, 6], [3, 4, 5, 6, 7, 8, 1, 3, 4, 5, 6]
    twice, torn = [5, 6, 7, 1, 5, 6, 7, 2, 5, 6], [5, 6, 7, 1, 5, 6, 8, 2, 5, 6]
    first = [SuffixLookup().propose(text, 2).confidence[0] for text in (torn, short, twice, long)]
    assert first == sorted(first)
    assert len(set(first)) == 4
    assert SuffixLookup().propose(torn, 1).tokens == [8]  # of equals the latest
    assert len(SuffixLookup().propose(torn, 4, min_confidence=0.9).tokens) == 1


def test_answers_are_for_the_caller_alone() -> None:
    """Another key's, another adapter's and nobody's answers are not drafted, and none of theirs for this one."""
    answers, secret = EarlierAnswers(1 << 20), list(range(100, 140))
    mine = Caller("key 0", "sql")
    answers.add(mine, secret)
    for other in (NOBODY, Caller("key 1", "sql"), Caller("key 0"), Caller(None, "sql"), Caller("key 0", "other")):
        assert SuffixLookup(answers.of(other)).propose(secret[:8], 8).tokens == []
        answers.add(other, [7, *secret[2:10], 8, 9])
    assert SuffixLookup(answers.of(mine)).propose(secret[:8], 30).tokens == secret[8:38]


def test_answers_come_while_a_text_is_written_and_no_match_goes_over_two() -> None:
    """A request that runs finds what another brings; the end of an answer is the end of a draft."""
    answers = EarlierAnswers(1 << 20)
    lookup = SuffixLookup(answers.of(NOBODY))
    assert lookup.after([1, 2, 3]).tokens == []
    answers.add(NOBODY, [1, 2, 3, 4])
    answers.add(NOBODY, [5, 6, 7])
    assert lookup.after([1, 2, 3, 9, 5]).tokens == [6, 7]
    assert lookup.after([1, 2, 3, 9, 5, 1, 2, 3]).tokens == [9, 5, 1, 2, 3] * 12 + [9, 5, 1]  # its own come first
    assert SuffixLookup(answers.of(NOBODY)).after([2, 3]).tokens == [4]
    assert SuffixLookup(answers.of(NOBODY)).after([3, 4]).tokens == []


@pytest.mark.parametrize("most", [1, 2000, 100_000])
def test_memory_of_answers_is_bounded(most: int) -> None:
    """One caller's answers, and those of many: whoever asked the longest ago is forgotten first."""
    answers, generator = EarlierAnswers(most), random.Random(0)
    for number in range(60):
        answers.add(Caller(f"key {number % 7}"), [generator.randrange(1000) for _ in range(200)])
        assert answers.nbytes <= max(most, 2048)
    last = [generator.randrange(1000) for _ in range(30)]
    answers.add(Caller("key 0"), last)
    kept = SuffixLookup(answers.of(Caller("key 0"))).after(last[:20]).tokens
    assert kept == (last[20:] if most > 1 else [])


def test_equal_histories_make_equal_drafts() -> None:
    """Drafts depend on what was added, and on nothing else."""
    found = []
    for _ in range(2):
        answers, generator = EarlierAnswers(1 << 16), random.Random(5)
        for _ in range(40):
            answers.add(NOBODY, [generator.randrange(6) for _ in range(100)])
        found.append(SuffixLookup(answers.of(NOBODY)).after([generator.randrange(6) for _ in range(50)]))
    assert found[0] == found[1]
    assert found[0].tokens


def test_a_corpus_is_read_as_text(tmp_path: Path) -> None:
    """In parts, whose tokens are those of the whole; what cannot be read is said, with the file's name."""
    tokenizer = checkpoint_files.tiny_tokenizer()
    text = "the quick brown fox jumps over the lazy dog\n" * 40
    (tmp_path / "text").write_text(text)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    found = SuffixLookup(EarlierText([read_corpus(str(tmp_path / "text"), tokenizer)])).after(tokens[:9])
    assert found.tokens == tokens[9 : 9 + LONGEST_DRAFT]
    (tmp_path / "empty").write_text("")
    (tmp_path / "image").write_bytes(b"text \xff\xfe")
    for name, said in (("empty", "is empty"), ("image", "not at byte 5"), ("none", "No such file"), (".", "directory")):
        with pytest.raises(UsageError, match=f"--draft-corpus .*{name}: .*{said}"):
            read_corpus(str(tmp_path / name), tokenizer)
