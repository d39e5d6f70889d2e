"""Where a generation ends: eos, stop strings and limits, in the middle of accepted tokens as well as between rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import checkpoint_files
import pytest
from drafts import ScriptedDraft

import ipex_assist
from ipex_assist.env.errors import UsageError
from ipex_assist.generation.result import Identity
from ipex_assist.generation.stream import Generation, OwnRounds
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import ConstantSchedule

IDENTITY = Identity("target", "assistant", "bf16", "bf16", "torch")


class Letters:
    """A tokenizer whose token n is the n-th letter."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The letters; 25 is a special token without text."""
        return "".join(chr(97 + token) for token in token_ids if token != 25)


ROUNDS = [
    Round([0], prompt=True),
    Round([1, 2, 3, 4], drafted=3, accepted=3),
    Round([5, 25], drafted=3, accepted=1),
    Round([6, 7], drafted=3, accepted=1),
]


def generation(limit: int = 100, eos: frozenset[int] = frozenset(), stop: Sequence[str] = (), **options: bool):
    """A generation over ROUNDS, and the list of rounds it took."""
    taken: list[Round] = []

    def rounds() -> Iterator[Round]:
        for round_ in ROUNDS:
            taken.append(round_)
            yield round_

    options = {"assisted": True, **options}
    return (
        Generation(
            OwnRounds(rounds()),
            Letters(),
            IDENTITY,
            prompt_tokens=3,
            max_new_tokens=limit,
            eos=eos,
            stop=stop,
            **options,
        ),
        taken,
    )


@pytest.mark.parametrize(
    ("options", "text", "tokens", "reason", "rounds"),
    [
        ({"limit": 3}, "abc", [0, 1, 2], "length", 2),
        ({"limit": 3, "limit_is_context": True}, "abc", [0, 1, 2], "context", 2),
        ({"eos": frozenset({2})}, "abc", [0, 1, 2], "eos", 2),
        ({"eos": frozenset({25})}, "abcdef", [0, 1, 2, 3, 4, 5, 25], "eos", 3),
        ({"stop": ["cd"]}, "ab", [0, 1, 2, 3], "stop", 2),
        ({"stop": ["ef"]}, "abcd", [0, 1, 2, 3, 4, 5], "stop", 3),
        ({"limit": 1}, "a", [0], "length", 1),
    ],
)
def test_ends_inside_a_round(options: dict, text: str, tokens: list[int], reason: str, rounds: int) -> None:
    """Tokens after the end are dropped from text and counts, and no further round is asked for."""
    ours, taken = generation(**options)
    pieces = [chunk.text for chunk in ours]
    result = ours.result()
    assert ("".join(pieces), result.text, result.tokens) == (text, text, tokens)
    assert (result.stop_reason, result.new_tokens, len(taken)) == (reason, len(tokens), rounds)
    with pytest.raises(StopIteration):
        next(ours)


def test_counts_come_from_the_rounds() -> None:
    """Acceptance, tokens per pass and histogram by hand."""
    ours, _ = generation(limit=9)
    for _ in ours:
        pass
    draft = ours.result().draft
    assert (draft.rounds, draft.drafted, draft.accepted) == (3, 9, 5)
    assert draft.acceptance_rate == pytest.approx(5 / 9)
    assert draft.tokens_per_pass == pytest.approx(8 / 3)
    assert draft.accepted_histogram == [0, 2, 0, 1]


def test_pieces_tell_drafted_text_from_the_targets() -> None:
    """--show-accepted: the last token of each round is the target's own; a stop inside a round keeps the marks."""
    ours, _ = generation(limit=9)
    pieces = [(piece.text, piece.drafted) for chunk in ours for piece in chunk.pieces]
    assert pieces == [
        ("a", False),
        *[("b", True), ("c", True), ("d", True), ("e", False)],
        *[("f", True), ("", False)],
        *[("g", True), ("h", False)],
    ]
    ours, _ = generation(stop=["de"])
    chunks = list(ours)
    assert [(piece.text, piece.drafted) for piece in chunks[-1].pieces] == [
        ("b", True),
        ("c", True),
        ("", True),
        ("", False),
    ]
    assert all("".join(piece.text for piece in chunk.pieces) == chunk.text for chunk in chunks)


def test_times_come_from_the_rounds() -> None:
    """Draft and verification seconds of all rounds but the prompt's, and a speed for the prompt."""
    rounds = [Round([0], target_s=9.0, prompt=True), Round([1, 2], 1, 1, 0.25, 0.5), Round([3], 1, 0, 0.25, 0.5)]
    ours = Generation(OwnRounds(iter(rounds)), Letters(), IDENTITY, prompt_tokens=3, max_new_tokens=4, assisted=True)
    for _ in ours:
        pass
    times = ours.result().times
    assert (times.draft_s, times.verify_s) == (0.5, 1.0)
    assert times.encode_tokens_per_s is not None
    assert times.machine_gb_per_s is None


def test_plain_has_no_draft_figures() -> None:
    """The JSON keeps the keys, and their values are null."""
    ours, _ = generation(limit=9, assisted=False)
    for _ in ours:
        pass
    assert set(vars(ours.result().draft).values()) == {None}


def test_interrupt_releases_held_text() -> None:
    """Text held back for a stop string comes out at Ctrl-C, and the reason is said."""
    ours, _ = generation(stop=["ex"])
    assert [next(ours).text, next(ours).text] == ["a", "bcd"]
    assert ours.interrupt() == "e"
    result = ours.result()
    assert (result.text, result.stop_reason) == ("abcde", "interrupted")
    assert ours.interrupt() == ""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ipex_assist.AssistedModel:
    """A model that assists itself, so that every draft is accepted."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("model"))
    loaded = ipex_assist.load(str(folder), assistant=str(folder), precision="fp32", executor="torch")
    assert isinstance(loaded, ipex_assist.AssistedModel)
    return loaded


def test_stop_and_eos_in_accepted_runs_equal_plain(model: ipex_assist.AssistedModel) -> None:
    """With every draft accepted, a stop nearly always falls inside a round: same tokens and text as plain."""
    whole = model.generate("the quick", max_new_tokens=30, assisted=False)
    eos = model.eos
    try:
        for at in range(3, 12):
            stops = {"stop": [whole.text[at : at + 2]]} if whole.text[at : at + 2] else {}
            model.eos = frozenset({whole.tokens[at]})
            for options in ({}, stops):
                plain = model.generate("the quick", max_new_tokens=30, assisted=False, **options)
                for k in (1, 3, 5):
                    ours = model.generate("the quick", max_new_tokens=30, num_assistant_tokens=k, **options)
                    assert (ours.tokens, ours.text) == (plain.tokens, plain.text)
                    assert ours.stop_reason == plain.stop_reason
    finally:
        model.eos = eos


def test_ignore_eos_goes_on_until_the_limit(model: ipex_assist.AssistedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assisted and plain; without it the same text ends at its first end-of-text token."""
    whole = model.generate("the quick", max_new_tokens=20, ignore_eos=True)
    monkeypatch.setattr(model, "eos", frozenset({whole.tokens[6]}))
    for options in ({"assisted": False}, {"num_assistant_tokens": 3}):
        ended = model.generate("the quick", max_new_tokens=20, **options)
        assert ended.stop_reason == "eos"
        assert len(ended.tokens) <= 7
        result = model.generate("the quick", max_new_tokens=20, ignore_eos=True, **options)
        assert (result.tokens, result.stop_reason) == (whole.tokens, "length")


def test_options_are_checked_in_python(model: ipex_assist.AssistedModel) -> None:
    """`stop="abc"` was three stops, 0 tokens generated some, a temperature of 0 ended in an error of torch's."""
    text = model.generate("the quick", max_new_tokens=20).text
    stop = text[4:8]
    stopped = model.generate("the quick", max_new_tokens=20, stop=stop)
    assert stopped.text == text[: text.index(stop)]
    for wrong in (
        {"max_new_tokens": 0},
        {"num_assistant_tokens": -1},
        {"temperature": -1},
        {"stop": ""},
        {"top_k": 1.5},
    ):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            model.generate("the quick", **wrong)
    with pytest.raises(UsageError, match="did you mean max_new_tokens"):
        model.generate("the quick", max_new_token=3)
    greedy = model.generate("the quick", max_new_tokens=20, do_sample=True, temperature=0, num_assistant_tokens=3)
    assert greedy.text == text


def test_a_draft_and_a_schedule_are_passed_in(model: ipex_assist.AssistedModel) -> None:
    """For experiments: a draft that is always right, and a schedule that says how much of it; tokens stay plain's."""
    prompt = model.encode("the quick")
    plain = model.generate(prompt, max_new_tokens=13, assisted=False, ignore_eos=True)
    draft = ScriptedDraft([*prompt, *plain.tokens], lambda at: False, 1_000)
    result = model.generate(prompt, max_new_tokens=13, ignore_eos=True, draft=draft, schedule=ConstantSchedule(2))
    assert result.tokens == plain.tokens
    assert draft.accepted == [2, 2, 2, 2]
    assert not model.generate(prompt, max_new_tokens=13, assisted=False, draft=draft).assisted


def test_stream_and_generate_agree(model: ipex_assist.AssistedModel) -> None:
    """The two ways of the README give the same text."""
    result = model.generate("the quick", max_new_tokens=20)
    stream = model.stream("the quick", max_new_tokens=20)
    assert "".join(chunk.text for chunk in stream) == result.text == stream.result().text


def test_prompts_that_cannot_work(model: ipex_assist.AssistedModel) -> None:
    """An empty prompt, and one that leaves no room."""
    with pytest.raises(UsageError, match="empty"):
        model.generate([[]])
    with pytest.raises(UsageError, match=r"130 tokens.*holds 128.*at least 3"):
        model.generate([5] * 130)
    assert model.generate([5] * 127, max_new_tokens=10).stop_reason in ("context", "eos")


def test_import_is_lazy() -> None:
    """`import ipex_assist` must cost nothing: the launcher and `--help` depend on it."""
    code = "import sys, ipex_assist, ipex_assist.cli; print({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    assert checkpoint_files.run_python(code).strip() == "set()"


def test_generations_do_not_see_each_other(model: ipex_assist.AssistedModel) -> None:
    """Two generations on one model: the second must not see the first one's cache."""
    first = model.generate("a long first prompt " * 3, max_new_tokens=20)
    second = model.generate("the quick", max_new_tokens=20)
    assert model.generate("a long first prompt " * 3, max_new_tokens=20).tokens == first.tokens
    assert model.generate("the quick", max_new_tokens=20).tokens == second.tokens
