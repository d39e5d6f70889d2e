"""Texts under grammars: each is what it is alone without drafts, and what its grammar says."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import tiny_models
from conftest import HAS_NATIVE
from drafts import SCRIPTS, ScriptedDraft

from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.serve.tools.call_grammars import optional_calls
from ipex_assist.serve.tools.dialects import Dialect, JsonArguments
from ipex_assist.speculative.choosing.grammar import GrammarError, GrammarSpec
from ipex_assist.speculative.choosing.llguidance_grammar import LlguidanceGrammar
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import ConstantSchedule

pytest.importorskip("llguidance")

from grammars import EOS, SPECS, VOCABULARY, tiny_grammars

pytestmark = pytest.mark.one_stack

# Random schedules of each kind in a run of the tests; SCHEDULES=250 makes it a thousand.
SCHEDULES = int(os.environ.get("SCHEDULES", "3"))
CHEAP = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)
GRAMMARS = tiny_grammars()
EXECUTORS = [("torch", "fp32", "bf16"), *([("native", "int8", "int4")] if HAS_NATIVE else [])]
SAMPLED: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
    {"do_sample": True, "top_k": 0},
    {"do_sample": True, "presence_penalty": 0.5, "min_p": 0.02},
]


@pytest.fixture(scope="module", params=EXECUTORS, ids=lambda each: each[0])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The assistant has the target's weights, coarser."""
    folder = tmp_path_factory.mktemp("grammars")
    executor, *precisions = request.param
    tiny_models.save(folder, "llama", max_position_embeddings=2048)
    target, assistant = (tiny_models.model(folder, executor, each) for each in precisions)
    return target, assistant


def engine_of(pair: tuple[Any, Any], draft: str, limits: EngineLimits | None = None) -> Engine:
    """Drafts by "model", "lookup", "both", or by "nothing" but what grammars force."""
    assistant = pair[1] if draft in ("model", "both") else None
    drafting = Drafting(tiny_models.VOCAB, lambda: CHEAP, assistant, lookup=draft in ("lookup", "both"))
    return Engine(pair[0], drafting, frozenset([EOS]), limits or EngineLimits())


def tokens_of(rounds: Iterator[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


class Wanted:
    """A request, and the text that it has alone and plainly."""

    def __init__(
        self,
        chance: random.Random,
        pair: tuple[Any, Any],
        free: float = 0.2,
        lengths: tuple[int, int] = (1, 40),
    ) -> None:
        how = chance.choice(SAMPLED)
        seed = {"seed": chance.randrange(100)} if how else {}
        self.prompt = [chance.randrange(3, tiny_models.VOCAB) for _ in range(chance.randrange(*lengths))]
        self.options = GenerationOptions.of(max_new_tokens=chance.randrange(1, 60), **how, **seed)
        self.spec = None if chance.random() < free else chance.choice(SPECS)
        plain = GenerationOptions.of(self.options, assisted=False)
        alone = engine_of(pair, "nothing")
        self.expected = tokens_of(alone.submit(self.prompt, plain, grammar=self.grammar()))
        assert alone.stats.drafted == 0

    def grammar(self) -> Any:
        return None if self.spec is None else GRAMMARS.grammar(self.spec)


def fits(spec: GrammarSpec, text: str) -> bool:
    """Whether a whole text is what the grammar says, by somebody else's judgement."""
    if spec.kind == "regex":
        return re.fullmatch(spec.value, text) is not None
    if spec.kind == "choice":
        return text in json.loads(spec.value)
    if spec.kind == "lark":
        return re.fullmatch(r"name is [A-Z][a-z]{1,6}(, age is [0-9]+)?", text) is not None
    value = json.loads(text)
    if spec.kind == "json_object":
        return isinstance(value, dict)
    if isinstance(value, list):
        return 2 <= len(value) <= 4 and all(each in ("abc", "abcab", 12) for each in value)
    return (
        list(value) == ["name", "age", "and"]
        and len(value["name"]) <= 8
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and value["and"] in (True, None, "maybe")
    )


def fits_its_grammar(wanted: Wanted, text: list[int]) -> bool:
    """Whether a text is whole and has a grammar, which it then must fit."""
    if wanted.spec is None or text[-1] != EOS:
        return False
    assert fits(wanted.spec, VOCABULARY.text(text))
    return True


@pytest.mark.parametrize("draft", ["nothing", "model", "lookup", "both"])
def test_every_text_is_as_alone(pair: tuple[Any, Any], draft: str) -> None:
    """Random requests, with grammars and without, greedy and drawn, that come at any time and draft: the same texts.

    A matcher that is advanced by a drafted token, or not by the last one, or that a put-back spoils, would show.
    """
    ended, accepted = 0, 0
    for seed in range(SCHEDULES):
        chance = random.Random(f"{seed} {draft}")
        engine = engine_of(pair, draft, EngineLimits(requests=chance.randrange(1, 9), rows=chance.choice((17, 512))))
        every = [Wanted(chance, pair) for _ in range(6)]
        handles = []
        for each in every:
            handles.append(engine.submit(each.prompt, each.options, grammar=each.grammar()))
            for _ in range(chance.randrange(4)):
                engine.step()
        for each, handle in zip(every, handles, strict=True):
            found = tokens_of(handle)
            if each.spec is None:  # whose drafts may go on behind its end
                found = found[: len(each.expected)]
            assert found == each.expected
            ended += fits_its_grammar(each, found)
        accepted += engine.stats.accepted
    assert ended > 3
    assert accepted > 0


def test_what_is_forced_costs_no_pass(pair: tuple[Any, Any]) -> None:
    """Without any assistant, a text of one possible wording takes a pass or two, and every draft is right."""
    spec = GrammarSpec("choice", '["the name and the age or nothing 1200 maybe"]')
    engine = engine_of(pair, "nothing")
    options = GenerationOptions.of(max_new_tokens=60)
    rounds = list(engine.submit([5, 6, 7], options, grammar=GRAMMARS.grammar(spec)))
    assert VOCABULARY.text(tokens_of(iter(rounds))) == "the name and the age or nothing 1200 maybe"
    # Another spelling of the same text is the target's to choose; after it, drafts go on.
    assert len(rounds) < 0.8 * len(tokens_of(iter(rounds)))
    assert engine.stats.accepted > 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_forbidden_is_not_verified(pair: tuple[Any, Any], script: str) -> None:
    """Drafts of a source that knows nothing of the grammar are cut before the first wrong token and before the end."""
    for spec in SPECS:
        options = GenerationOptions.of(max_new_tokens=40)
        plain = GenerationOptions.of(options, assisted=False)
        engine = engine_of(pair, "nothing")
        text = tokens_of(engine.submit([9, 8, 7], plain, grammar=GRAMMARS.grammar(spec)))
        seen: list[list[int]] = []
        draft = ScriptedDraft([9, 8, 7, *text, 77, 78], SCRIPTS[script], tiny_models.VOCAB)
        watching = Watching(pair[0], seen)
        engine = Engine(watching, Drafting(tiny_models.VOCAB, lambda: CHEAP), frozenset([EOS]))  # type: ignore[arg-type]
        grammar = GRAMMARS.grammar(spec)
        assert (
            tokens_of(engine.submit([9, 8, 7], options, draft=draft, schedule=ConstantSchedule(4), grammar=grammar))
            == text
        )
        place = 1
        for rows in seen[1:]:
            state = GRAMMARS.grammar(spec)
            for token in text[:place]:
                state.advance(token)
            assert rows[0] == text[place - 1]
            assert state.allows(rows[1:]) == len(rows) - 1
            agreeing = 0
            while agreeing < len(rows) - 1 and rows[1 + agreeing] == text[place + agreeing]:
                agreeing += 1
            place += agreeing + 1
        assert place == len(text)


class Watching:
    """Remembers the rows of each pass of a single text."""

    def __init__(self, target: Any, seen: list[list[int]]) -> None:
        self._target, self._seen = target, seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._watched(found) if name == "sample" else found

    def _watched(self, sample: Any) -> Any:
        def watched(rows: Any, choices: Any) -> Any:
            self._seen.append(list(rows[0].tokens))
            return sample(rows, choices)

        return watched

    def forward(self, rows: Any, vocabulary: int | None = None) -> Any:
        self._seen.append(list(rows[0].tokens))
        return self._target.forward(rows, vocabulary)


class Breaking:
    """A grammar that breaks down behind a few tokens."""

    def __init__(self, grammar: Any, after: int) -> None:
        self._grammar, self._after = grammar, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammar, name)

    def mask(self) -> Any:
        if len(self._grammar.tokens) >= self._after:
            raise GrammarError("too complex")
        return self._grammar.mask()

    def copy(self) -> Any:
        return Breaking(self._grammar.copy(), self._after)


@pytest.mark.parametrize("draft", ["nothing", "model"])
def test_a_grammar_that_fails_ends_its_own_request(pair: tuple[Any, Any], draft: str) -> None:
    """Whether the draft meets it first or the target; the others have their texts."""
    every = [Wanted(random.Random(seed), pair) for seed in range(3)]
    engine = engine_of(pair, draft)
    handles = [engine.submit(each.prompt, each.options, grammar=each.grammar()) for each in every]
    grammar = Breaking(GRAMMARS.grammar(GrammarSpec("regex", "[a-z 0-9]{40}")), 3)
    bad = engine.submit([5, 6], GenerationOptions.of(max_new_tokens=30), grammar=grammar)
    for each, handle in zip(every, handles, strict=True):
        assert tokens_of(handle)[: len(each.expected)] == each.expected
    with pytest.raises(GrammarError, match="too complex"):
        tokens_of(bad)
    assert engine.stats.failed == 1


def test_an_interrupted_pass_goes_on(pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the choice of a token and its bookkeeping: the grammar goes back with the text."""
    wanted = next(each for seed in range(20) if len((each := Wanted(random.Random(seed), pair, 0.0)).expected) > 9)
    for turn in (1, 3, 6):
        engine, grammar = engine_of(pair, "model"), wanted.grammar()
        advance, calls = type(grammar).advance, iter(range(1000))

        def interrupted(self: Any, token: int, advance: Any = advance, calls: Any = calls, turn: int = turn) -> None:
            advance(self, token)
            if next(calls) == turn:
                raise KeyboardInterrupt

        handle = engine.submit(wanted.prompt, wanted.options, grammar=grammar)
        with monkeypatch.context() as patches:
            patches.setattr(type(grammar), "advance", interrupted)
            with pytest.raises(KeyboardInterrupt):
                tokens_of(handle)
        rest = tokens_of(handle)
        assert wanted.expected[-len(rest) :] == rest


@pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")
def test_where_blocks_run_out(tmp_path: Any) -> None:
    """Texts under grammars are put back and read again, and go on where they were."""
    from ipex_assist.checkpoints.open import open_checkpoint
    from ipex_assist.executors.kv_memory import KvMemory
    from ipex_assist.executors.load import load_model
    from ipex_assist.executors.load_request import LoadRequest

    tiny_models.save(tmp_path, "llama", max_position_embeddings=2048)
    large = tuple(tiny_models.model(tmp_path, "native", each) for each in ("int8", "int4"))
    memory = KvMemory(4 * sum(model.packed.block_bytes("bf16") for model in large))  # type: ignore[attr-defined]
    checkpoint = open_checkpoint(str(tmp_path))
    small = tuple(load_model(LoadRequest(checkpoint, each, "native", kv_memory=memory)) for each in ("int8", "int4"))
    engine = engine_of(small, "model", EngineLimits(requests=6))  # type: ignore[arg-type]
    chance = random.Random(3)
    every = []
    for _ in range(6):
        each = Wanted(chance, large, 0.0)  # type: ignore[arg-type]
        each.prompt = [chance.randrange(3, tiny_models.VOCAB) for _ in range(chance.randrange(200, 256))]
        each.options = GenerationOptions.of(each.options, max_new_tokens=80)
        plain = GenerationOptions.of(each.options, assisted=False)
        alone = engine_of(large, "nothing")  # type: ignore[arg-type]
        each.expected = tokens_of(alone.submit(each.prompt, plain, grammar=each.grammar()))
        every.append(each)
    handles = [engine.submit(each.prompt, each.options, grammar=each.grammar()) for each in every]
    assert [tokens_of(handle) for handle in handles] == [each.expected for each in every]
    assert engine.stats.preempted > 0


def test_the_end_may_not_be_ignored(pair: tuple[Any, Any]) -> None:
    """Behind a whole text there is nothing by its grammar, also where ends of texts are to be ignored."""
    options = GenerationOptions.of(max_new_tokens=60, ignore_eos=True)
    spec = GrammarSpec("choice", '["yes", "no"]')
    for draft in ("nothing", "model"):
        found = tokens_of(engine_of(pair, draft).submit([5, 6], options, grammar=GRAMMARS.grammar(spec)))
        assert found[-1] == EOS
        assert VOCABULARY.text(found) in ("yes", "no")


def test_logprobs_are_those_before_the_grammar(pair: tuple[Any, Any]) -> None:
    """As the option says: a token's probability among all."""
    options = GenerationOptions.of(max_new_tokens=6, logprobs=3, assisted=False)
    spec = GrammarSpec("choice", '["nothing"]')
    rounds = list(engine_of(pair, "nothing").submit([5, 6], options, grammar=GRAMMARS.grammar(spec)))
    choices = [choice for round_ in rounds for choice in round_.logprobs or ()]
    assert len(choices) == len(tokens_of(iter(rounds)))
    assert any(choice.token not in dict(choice.top) for choice in choices)
    assert all(choice.log_probability < -1e-3 for choice in choices)


def test_a_grammar_is_of_its_request(pair: tuple[Any, Any]) -> None:
    """Two texts of one grammar do not share a state."""
    spec, options = SPECS[0], GenerationOptions.of(max_new_tokens=50, do_sample=True, seed=1)
    engine = engine_of(pair, "model")
    handles = [engine.submit([5, n], options, grammar=GRAMMARS.grammar(spec)) for n in (6, 7)]
    alone = [
        tokens_of(engine_of(pair, "model").submit([5, n], options, grammar=GRAMMARS.grammar(spec))) for n in (6, 7)
    ]
    assert [tokens_of(handle) for handle in handles] == alone


def states(chance: random.Random) -> Iterator[tuple[GrammarSpec, LlguidanceGrammar]]:
    """States behind random texts that their grammar allows."""
    for spec in SPECS:
        state = GRAMMARS.grammar(spec)
        for _ in range(30):
            allowed = [int(token) for token in state.mask().nonzero()[0]]
            state.advance(chance.choice(allowed))
            if state.ended:
                break
        yield spec, state


def test_a_state_goes_back_and_is_copied() -> None:
    """At every length the same tokens may follow as in a state that was never further; a copy goes on by itself."""
    chance = random.Random(5)
    for spec, state in states(chance):
        tokens = list(state.tokens)
        for length in sorted({chance.randrange(len(tokens) + 1) for _ in range(4)} | {0, len(tokens)}, reverse=True):
            back, fresh = state.copy(), GRAMMARS.grammar(spec)
            back.truncate(length)
            for token in tokens[:length]:
                fresh.advance(token)
            assert list(back.tokens) == tokens[:length]
            assert back.ended == fresh.ended
            assert back.forced() == fresh.forced()
            if not back.ended:
                assert (back.mask() == fresh.mask()).all()
        assert list(state.tokens) == tokens


def test_errors_say_what_is_wrong() -> None:
    """Grammars that are none, and tokens that may not follow."""
    for kind, value in (
        ("regex", "(a"),
        ("json_schema", '{"not": {}}'),
        ("json_schema", "{"),
        ("lark", "x"),
        ("x", ""),
    ):
        with pytest.raises(GrammarError):
            GRAMMARS.grammar(GrammarSpec(kind, value))
    state = GRAMMARS.grammar(GrammarSpec("choice", '["yes"]'))
    with pytest.raises(IpexAssistError, match="not complete"):
        state.advance(EOS)
    with pytest.raises(IpexAssistError, match="after 0 tokens"):
        state.advance(5)


def test_calls_within_free_text(pair: tuple[Any, Any]) -> None:
    """A strict tool: the text is as without a grammar until the token that marks a call, behind which there is what the
    schema says. Drafts go on in both, and change nothing."""
    schema = {"type": "object", "properties": {"age": {"enum": [12, "no"]}}, "required": ["age"]}
    call = {"": {**schema, "additionalProperties": False}}
    marked = Dialect("marked", "", JsonArguments(), before_name="<s>")
    spec = optional_calls(marked, call, {1: "<s>"}, [0], several=False)
    prompt = [5, 9, 13, 5, 9, 13]
    length = 12
    free = {"do_sample": True, "seed": 3, "logit_bias": {0: -100, 1: -100, EOS: -100}, "max_new_tokens": length}
    alone = tokens_of(engine_of(pair, "nothing").submit(prompt, GenerationOptions.of(**free, assisted=False)))
    engine = engine_of(pair, "both")
    assert (
        tokens_of(engine.submit(prompt, GenerationOptions.of(**free), grammar=GRAMMARS.grammar(spec))) == alone[:length]
    )
    assert engine.stats.drafted > 0
    calling = {**free, "logit_bias": {0: -100, 1: 6, EOS: -100}, "max_new_tokens": 200}
    plain = GenerationOptions.of(**calling, assisted=False)
    text = tokens_of(engine_of(pair, "nothing").submit(prompt, plain, grammar=GRAMMARS.grammar(spec)))
    assert text[-1] == EOS
    assert json.loads(VOCABULARY.text(text[text.index(1) + 1 :])) in ({"age": 12}, {"age": "no"})
    engine = engine_of(pair, "both")
    assert tokens_of(engine.submit(prompt, GenerationOptions.of(**calling), grammar=GRAMMARS.grammar(spec))) == text
    assert engine.stats.accepted > 0
