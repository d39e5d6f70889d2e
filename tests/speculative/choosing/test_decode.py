"""Greedy assisted output equals greedy plain output, token by token, whatever the draft does."""

from __future__ import annotations

import random
from collections import abc
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import PRECISIONS, some_quick
from decoding import GREEDY, NEW, PROMPT, run, tokens_of
from drafts import SCRIPTS, ScriptedDraft

from ipex_assist.executors.interface import Model, Rows, Sequence
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.costs.calibration import calibrate
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import HeuristicSchedule
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.partial_vocabulary import PartialVocabularyAssistant
from ipex_assist.speculative.sources.suffix_lookup import LookupWithFallback, SuffixLookup

QUICK = ("opt-350m", "mistral-window")


@pytest.mark.parametrize(
    ("variant", "executor", "precision"),
    [
        # Kernels know no families: two show what rows need of each precision, and the native core runs all in one.
        pytest.param(variant, *kind, marks=[] if kind == ("native", "fp32") or variant in QUICK else pytest.mark.full)
        for kind in PRECISIONS
        for variant in ("llama", "opt-350m", "gpt-bigcode", "qwen3", "mistral-window", "llama-dynamic")
    ],
)
def test_assisted_equals_plain(variant: str, executor: str, precision: str, tmp_path: Path) -> None:
    """Every script and a second random model, k from 1 to 8: a wrong rollback or a row that feels its neighbours."""
    tiny_models.save(tmp_path / "target", variant)
    tiny_models.save(tmp_path / "assistant", variant, seed=1)
    target = tiny_models.model(tmp_path / "target", executor, precision)
    assistant = tiny_models.model(tmp_path / "assistant", executor, precision, exact=False)
    plain = tokens_of(run(target))
    for k in range(1, 9):
        for name in list(SCRIPTS)[k % 2 :: 2]:  # two of the four scripts for each k, all four for each parity
            draft = ScriptedDraft(PROMPT + plain, SCRIPTS[name], tiny_models.VOCAB)
            assert tokens_of(run(target, draft, k)) == plain, (name, k)
        draft = AssistantModel(assistant, GREEDY, tiny_models.VOCAB)
        assert tokens_of(run(target, draft, k)) == plain, ("another model", k)


# Drafts are cheap here, so that adaptive drafts much; expensive, so that it mostly only tries.
CHEAP = Costs(tuple(1e-3 * (1 + 0.01 * i) for i in range(16)), 1e-5, (1e-5,) * 16, 1e-5)
DEAR = Costs(tuple(1e-3 * (1 + 0.3 * i) for i in range(16)), 3e-4, tuple(3e-4 + 1e-5 * i for i in range(16)), 1e-5)


@pytest.mark.parametrize("variant", some_quick(["llama", "opt-350m", "mistral-window"], {"opt-350m"}))
@pytest.mark.parametrize(("executor", "precision"), PRECISIONS)
def test_every_source_and_schedule_equals_plain(variant: str, executor: str, precision: str, tmp_path: Path) -> None:
    """Texts that repeat, so that copies are proposed; drafts of several lengths, thresholds, windows and pauses."""
    tiny_models.save(tmp_path / "target", variant)
    tiny_models.save(tmp_path / "assistant", variant, seed=1)
    target = tiny_models.model(tmp_path / "target", executor, precision)
    assistant = tiny_models.model(tmp_path / "assistant", executor, precision, exact=False)
    prompt = (PROMPT[:7] * 4)[:26]
    plain = tokens_of(run(target, prompt=prompt, new=60))

    def model(vocabulary: int | None = None) -> AssistantModel:
        return AssistantModel(assistant, GREEDY, tiny_models.VOCAB, vocabulary)

    sources = {
        "model": model,
        "lookup": SuffixLookup,
        "lookup+model": lambda: LookupWithFallback(SuffixLookup(), model(), 0.9),
        "narrow": lambda: model(100),
        "half right": lambda: ScriptedDraft(prompt + plain, lambda i: i % 4 == 0, tiny_models.VOCAB),
    }
    schedules = {
        "cheap": lambda: Planner([KnownAssistant(CHEAP)]),
        "dear": lambda: Planner([KnownAssistant(DEAR)]),
        "heuristic": lambda: HeuristicSchedule(1),
    }
    for source, make in sources.items():
        for name, schedule in schedules.items():
            rounds = run(target, make(), prompt=prompt, new=60, schedule=schedule())
            assert tokens_of(rounds) == plain, (source, name)


def test_a_model_assists_itself_without_a_miss(tmp_path: Path) -> None:
    """Its own copy as the draft is always right: every round brings k + 1 tokens, so no cached row was wrong."""
    tiny_models.save(tmp_path, "llama")
    target, copy = tiny_models.model(tmp_path), tiny_models.model(tmp_path)
    draft = AssistantModel(copy, GREEDY, tiny_models.VOCAB)
    rounds = run(target, draft, k=4, new=41)
    assert [round_.accepted for round_ in rounds[1:]] == [4] * 8
    assert tokens_of(rounds) == tokens_of(run(target, new=41))


def test_round_counts_what_was_accepted(tmp_path: Path) -> None:
    """Accepted counts come from the verification, and the draft hears the same numbers."""
    tiny_models.save(tmp_path, "llama")
    target = tiny_models.model(tmp_path)
    plain = tokens_of(run(target))
    draft = ScriptedDraft(PROMPT + plain, lambda i: i == len(PROMPT) + 3, tiny_models.VOCAB)
    rounds = run(target, draft, k=4)
    # The prompt brings token 0; tokens 1 and 2 are right, token 3 is not: the target's own replaces it.
    assert [(r.drafted, r.accepted) for r in rounds[:3]] == [(0, 0), (4, 2), (4, 4)]
    assert draft.accepted == [r.accepted for r in rounds if r.drafted]


@pytest.mark.parametrize("new", [1, 2, 3, 7])
def test_never_more_than_max_new_tokens(new: int, tmp_path: Path) -> None:
    """The limit falls inside a round: exactly so many tokens, and the same as plain."""
    tiny_models.save(tmp_path, "llama")
    target = tiny_models.model(tmp_path)
    plain = tokens_of(run(target))
    draft = ScriptedDraft(PROMPT + plain, SCRIPTS["always right"], tiny_models.VOCAB)
    assert tokens_of(run(target, draft, k=5, new=new)) == plain[:new]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17])
def test_short_prompts(length: int, tmp_path: Path) -> None:
    """A prompt of one token, and lengths around the row count where the prompt path begins."""
    tiny_models.save(tmp_path, "llama")
    target = tiny_models.model(tmp_path)
    prompt = PROMPT[:length]
    plain = tokens_of(run(target, prompt=prompt))
    draft = ScriptedDraft(prompt + plain, SCRIPTS["wrong every third"], tiny_models.VOCAB)
    assert tokens_of(run(target, draft, k=3, prompt=prompt)) == plain


@pytest.mark.parametrize("variant", ["opt", "llama"])
def test_context_to_its_last_position(variant: str, tmp_path: Path) -> None:
    """Padding rows beyond the last position must neither crash a learned table nor change a row."""
    tiny_models.save(tmp_path, variant)
    target = tiny_models.model(tmp_path)
    new = target.spec.context_length - len(PROMPT)
    plain = tokens_of(run(target, new=new))
    assert len(plain) == new
    draft = ScriptedDraft(PROMPT + plain, SCRIPTS["wrong every fifth"], tiny_models.VOCAB)
    assert tokens_of(run(target, draft, k=6, new=new)) == plain


def test_a_draft_with_a_shorter_context_stops_drafting(tmp_path: Path) -> None:
    """Past the assistant's context the target goes on alone."""
    tiny_models.save(tmp_path / "target", "opt")
    tiny_models.save(tmp_path / "assistant", "opt", seed=1, max_position_embeddings=32)
    target = tiny_models.model(tmp_path / "target")
    assistant = tiny_models.model(tmp_path / "assistant")
    plain = tokens_of(run(target))
    rounds = run(target, AssistantModel(assistant, GREEDY, tiny_models.VOCAB), k=4)
    assert tokens_of(rounds) == plain
    assert rounds[1].drafted == 4
    assert rounds[-1].drafted == 0


@pytest.mark.parametrize(
    "penalty",
    [
        Sampling(repetition_penalty=1.8),
        Sampling(presence_penalty=2.0, frequency_penalty=1.0, prompt_length=len(PROMPT)),
        Sampling(logit_bias={7: 4.0, 9: -4.0}),
    ],
    ids=["repetition", "presence and frequency", "bias"],
)
def test_penalties_see_drafted_tokens(penalty: Sampling, tmp_path: Path) -> None:
    """Each verified row is penalised for the drafted tokens before it, as plain decoding would have been."""
    tiny_models.save(tmp_path, "llama")
    target, copy = tiny_models.model(tmp_path), tiny_models.model(tmp_path)
    plain = tokens_of(run(target, sampling=penalty))
    assert plain != tokens_of(run(target)), "the penalty changes nothing here, so nothing is tested"
    draft = AssistantModel(copy, penalty, tiny_models.VOCAB)
    rounds = run(target, draft, k=4, sampling=penalty)
    assert tokens_of(rounds) == plain
    assert sum(r.accepted for r in rounds) == sum(r.drafted for r in rounds)


def test_a_token_the_assistant_has_no_row_for(tmp_path: Path) -> None:
    """Targets pad their vocabulary further than assistants do; such a token must not crash the draft."""
    tiny_models.save(tmp_path / "target", "llama")
    tiny_models.save(tmp_path / "assistant", "llama", seed=1, vocab_size=tiny_models.VOCAB - 20)
    target = tiny_models.model(tmp_path / "target")
    assistant = tiny_models.model(tmp_path / "assistant", exact=False)
    assert max(PROMPT) >= tiny_models.VOCAB - 20
    plain = tokens_of(run(target))
    for sampling in (GREEDY, Sampling(do_sample=True, seed=0)):
        model = AssistantModel(assistant, sampling, tiny_models.VOCAB)
        rounds = run(target, PartialVocabularyAssistant(model, frozenset()), k=3, sampling=sampling)
        assert len(tokens_of(rounds)) == NEW
        assert sampling.do_sample or tokens_of(rounds) == plain


class Clock:
    """A clock whose time only passes take."""

    def __init__(self) -> None:
        self.now = self.undisturbed = 0.0

    def perf_counter(self) -> float:
        return self.now


class Timed(Model):
    """A model whose passes take a given time, so that costs are known on any machine."""

    def __init__(self, model: Model, clock: Clock, seconds: float, row: float) -> None:
        self.model, self.clock, self.seconds, self.row = model, clock, seconds, row
        self.spec = model.spec
        self.slower: Callable[[], float] = lambda: 1.0

    @property
    def exact_rows(self) -> int:
        return self.model.exact_rows

    def new_sequence(self, capacity: int) -> Sequence:
        return self.model.new_sequence(capacity)

    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        seconds = self.seconds + self.row * sum(len(each.tokens) for each in rows)
        self.clock.undisturbed += seconds
        self.clock.now += seconds * self.slower()
        return self.model.forward(rows, vocabulary)


@pytest.mark.parametrize("step", [0.0005, 0.002, 0.006])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_an_assistant_that_is_always_wrong_costs_three_percent(tmp_path: Path, step: float, noise: float) -> None:
    """Calibration, reading the prompt, and trials included: another random model, whose tokens the target never takes.

    noise: passes of the text take up to so much longer, one by one, which must not make the schedule bolder. What is
    compared are the same passes without it, as one text's luck is not the schedule's.
    """
    clock, generator = Clock(), random.Random(0)
    tiny_models.save(tmp_path / "target", "llama")
    tiny_models.save(tmp_path / "assistant", "llama", seed=1)
    target = Timed(tiny_models.model(tmp_path / "target"), clock, 0.008, 0.0002)
    assistant = Timed(tiny_models.model(tmp_path / "assistant", exact=False), clock, step, 0.0002)
    costs = calibrate(target, assistant, clock=clock.perf_counter)
    for model in (target, assistant):
        model.slower = lambda: 1 + noise * generator.random()

    def seconds(assisted: bool) -> float:
        draft = AssistantModel(assistant, GREEDY, tiny_models.VOCAB) if assisted else None
        before = clock.undisturbed
        schedule = Planner([KnownAssistant(costs)]) if assisted else None
        rounds = run(target, draft, new=100, schedule=schedule, clock=clock.perf_counter)
        assert any(round_.drafted for round_ in rounds) == assisted
        assert sum(round_.accepted for round_ in rounds) <= 5
        return clock.undisturbed - before - (target.seconds + target.row * len(PROMPT))

    ratios = [seconds(True) / seconds(False) for _ in range(4)]
    assert sum(ratios) / 4 <= 1.03, ratios
