"""A draft head and a small model in turn, in the engine: no text changes, whoever drafts, and neither misses a token.

Both are fakes whose guesses need every token before them: a head that is given a wrong row fails (fake_heads.py), and a
small model whose cache lacks a token, or has one that the target refused, guesses wrong.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simulated
import tiny_models
import torch
from conftest import HAS_NATIVE
from drafts import InTurn
from fake_heads import VOCAB, FakeHead, FakeTarget, SamplingTarget, logits_of
from test_engine import (
    CHEAP,
    SAMPLED,
    SCHEDULES,
    Pair,
    check,
    clients_of,
    interrupting,
    run_until_interrupted,
    tokens_of,
)
from test_engine import play as play_alone
from test_heads import BLOCK, KINDS, SMALL, pausing_clients, plain, play, prompt_of, save_head

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.stats import EngineStats
from ipex_assist.executors.interface import HiddenRows, Model
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_head, load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.models.draft_head import HeadKind
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

pytestmark = pytest.mark.one_stack

RANDOM_SCHEDULES = max(5, SCHEDULES)  # of each kind, with lookup and without: 40 at least


class FakeModel(FakeTarget):
    """A small model that guesses as the target does, and errs after tokens with these digests."""

    def __init__(self, wrong: Callable[[int], bool] = lambda digest: False, count: int = 4096) -> None:
        super().__init__(count)
        self.wrong = wrong

    def forward(self, rows: Any, vocabulary: int | None = None, hidden: HiddenRows | None = None) -> torch.Tensor:
        digests = self._append(rows, hidden)
        return torch.stack([torch.from_numpy(logits_of(digest, self.wrong(digest))) for digest in digests])[
            :, :vocabulary
        ]


def drafting_of(head: Model, model: Model, lookup: bool = False) -> Drafting:
    block = head.spec.head is not None and head.spec.head.block_size
    second = Drafting(VOCAB, lambda: CHEAP, model)
    return Drafting(VOCAB, lambda: BLOCK if block else CHEAP, head, lookup, second=second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lookup", [False, True])
def test_every_text_is_as_alone(kind: HeadKind, lookup: bool) -> None:
    """Prompts in chunks, cached prefixes, requests that pause, are preempted for memory, or go; greedy and sampled."""
    found = EngineStats()
    for seed in range(RANDOM_SCHEDULES):
        chance = random.Random(f"{seed} {kind} {lookup}")
        count = chance.choice((SMALL, 4096))
        target = FakeTarget(count)
        head = FakeHead(kind, lambda digest: digest % 3 == 0, count)
        model = FakeModel(lambda digest: digest % 4 == 0, count)
        limits = EngineLimits(requests=chance.randrange(1, 9), rows=chance.choice((17, 40, 512)))
        engine = Engine(target, drafting_of(head, model, lookup), limits=limits)
        play(engine, pausing_clients(chance))
        for name in ("accepted", "preempted", "prefix_tokens"):
            setattr(found, name, getattr(found, name) + getattr(engine.stats, name))
        found.drafted_by.update(engine.stats.drafted_by)
        assert sum(engine.stats.drafted_by.values()) == engine.stats.drafted
        assert sum(engine.stats.accepted_by.values()) == engine.stats.accepted
        engine.close()
        assert target.blocks.free == head.blocks.free == model.blocks.free == count, "blocks that nobody holds"
    assert found.accepted > 0
    assert found.preempted > 0
    assert found.prefix_tokens > 0
    assert found.drafted_by[kind] > 0
    assert found.drafted_by["model"] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", SAMPLED)
def test_neither_misses_what_the_other_drafted(kind: HeadKind, how: dict[str, Any]) -> None:
    """Two that are always right, in turn by chance, for several texts at once: all that is drafted is accepted.

    Catches a cache that keeps a token of the other's draft, or lacks one, and a rollback that is told to the wrong one.
    """
    options = GenerationOptions.of(max_new_tokens=60, ignore_eos=True, **how, **({"seed": 3} if how else {}))
    engine = Engine(SamplingTarget() if not how else FakeTarget(), drafting_of(FakeHead(kind), FakeModel()))
    prompts = [prompt_of(random.Random(seed), 60) for seed in range(4)]
    schedules = [InTurn(seed) for seed in range(4)]
    handles = [
        engine.submit(prompt, options, schedule=schedule) for prompt, schedule in zip(prompts, schedules, strict=True)
    ]
    assert [tokens_of(handle) for handle in handles] == [plain(prompt, options) for prompt in prompts]
    assert all({0, 1} == set(schedule.drafters) for schedule in schedules)
    assert engine.stats.accepted_by["model"] == engine.stats.drafted_by["model"] > 40
    samples = kind in ("mtp", "eagle3") or not how  # the others draft greedily
    assert engine.stats.accepted_by[kind] == engine.stats.drafted_by[kind] * samples or not samples
    assert engine.stats.drafted_by[kind] > 40


@pytest.mark.parametrize("kind", ["mtp", "dflash"])
@pytest.mark.parametrize("turn", range(0, 24, 3))
def test_an_interrupted_pass_goes_on(kind: HeadKind, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C anywhere, in either one's passes as well: whoever asks again gets the same text, and all is accepted."""
    options = GenerationOptions.of(max_new_tokens=24, ignore_eos=True)
    prompts = [prompt_of(random.Random(seed), most) for seed, most in ((0, 900), (1, 20), (2, 600))]
    target, head, model = FakeTarget(), FakeHead(kind), FakeModel()
    engine, calls = Engine(target, drafting_of(head, model), limits=EngineLimits(rows=300)), iter(range(1000))
    handles = [engine.submit(prompt, options, schedule=InTurn(i)) for i, prompt in enumerate(prompts)]
    with monkeypatch.context() as patches:
        for each in (target, head, model):
            for name in ("forward", "draft_many"):
                if hasattr(each, name):
                    patches.setattr(each, name, interrupting(getattr(each, name), calls, turn))
        with pytest.raises(KeyboardInterrupt):
            run_until_interrupted(engine)
    assert [tokens_of(handle) for handle in handles] == [plain(prompt, options) for prompt in prompts]
    assert engine.stats.accepted == engine.stats.drafted > 0


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core's precisions")
@pytest.mark.parametrize("precision", ["int8", "bf16", "int4"])
@pytest.mark.parametrize("name", ["mtp", "dflash"])
def test_two_that_compute(name: str, precision: str, tmp_path: Path) -> None:
    """Random schedules with the native core's models: every text is the one that the target has alone."""
    head_folder = save_head(tmp_path, name)
    import draft_heads

    target, head = draft_heads.load(tmp_path, head_folder, "native", precision)
    model = tiny_models.model(tmp_path, "native", "int4")
    pair, found = Pair(target, head), EngineStats()
    costs = BLOCK if name == "dflash" else CHEAP
    for seed in range(max(3, SCHEDULES // 2)):
        chance = random.Random(f"{seed} {name}")
        clients = clients_of(chance)
        drafting = Drafting(
            tiny_models.VOCAB, lambda: costs, head, chance.random() < 0.3,
            second=Drafting(tiny_models.VOCAB, lambda: CHEAP, model),
        )  # fmt: skip
        limits = EngineLimits(requests=chance.randrange(1, 9), rows=chance.choice((17, 512)))
        engine = Engine(target, drafting, limits=limits)
        play_alone(engine, clients)
        check(pair, clients)
        found.drafted_by.update(engine.stats.drafted_by)
        found.accepted += engine.stats.accepted
        engine.close()
        assert target.blocks is not None
        assert target.blocks.free == target.blocks.count
    assert found.accepted > 0
    assert min(found.drafted_by[each] for each in ("model", name)) > 0


@pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")
@pytest.mark.parametrize("name", ["mtp", "dflash"])
@pytest.mark.parametrize("lookup", [False, True])
def test_under_grammars(name: str, lookup: bool, tmp_path: Path) -> None:
    """Texts with grammars and without, where blocks run out: each as alone, whoever drafts. One text in four goes.

    Both assistants and what cuts their drafts share one state of the grammar: one that a refused draft of the other
    left further on, and a mask for one of them only, would show.
    """
    pytest.importorskip("llguidance")
    from grammars import EOS
    from test_grammars import Wanted, fits_its_grammar

    head_folder = save_head(tmp_path, name)
    checkpoint = open_checkpoint(str(tmp_path))
    large, small = tiny_models.model(tmp_path, "native", "int8"), KvMemory(None)
    target, model = (load_model(LoadRequest(checkpoint, each, "native", kv_memory=small)) for each in ("int8", "int4"))
    head_checkpoint = None if head_folder is None else open_checkpoint(str(head_folder))
    head = load_head(checkpoint, target, head_checkpoint, "int8", "native", kv_memory=small)
    every: tuple[Any, ...] = (target, head, model)
    small.limit = 4 * sum(each.block_bytes for each in every)
    found, ended = EngineStats(), 0
    for seed in range(max(4, SCHEDULES // 2)):
        chance = random.Random(f"{seed} {name} {lookup}")
        second = Drafting(tiny_models.VOCAB, lambda: CHEAP, model)
        costs = BLOCK if name == "dflash" else CHEAP
        drafting = Drafting(tiny_models.VOCAB, lambda costs=costs: costs, head, lookup, second=second)
        limits = EngineLimits(requests=8, rows=chance.choice((17, 64, 512)))
        engine = Engine(target, drafting, frozenset([EOS]), limits=limits)
        lengths = ((1, 40), (225, 256), (225, 256))  # most of them grow into a second block
        wanted = [Wanted(chance, (large, None), lengths=chance.choice(lengths)) for _ in range(10)]
        handles = []
        for each in wanted:
            schedule = InTurn(seed) if chance.random() < 0.4 else None
            handles.append(engine.submit(each.prompt, each.options, schedule=schedule, grammar=each.grammar()))
            for _ in range(chance.randrange(4)):
                engine.step()
        going = {n: chance.randrange(12) for n in range(10) if chance.random() < 0.25}
        for step in range(12):
            for n in (n for n, at in going.items() if at == step):
                handles[n].cancel()
            engine.step()
        for n, (each, handle) in enumerate(zip(wanted, handles, strict=True)):
            text = tokens_of(handle)
            if n in going:
                assert text[: len(each.expected)] == each.expected[: len(text)]
                continue
            # Without a grammar, tokens may follow the end of the text within a round.
            assert (text if each.spec else text[: len(each.expected)]) == each.expected
            ended += fits_its_grammar(each, text)
        for count in ("accepted", "preempted"):
            setattr(found, count, getattr(found, count) + getattr(engine.stats, count))
        found.drafted_by.update(engine.stats.drafted_by)
        found.accepted_by.update(engine.stats.accepted_by)
        engine.close()
        assert all(each.blocks.free == each.blocks.count for each in every), "blocks that nobody holds"
    assert ended > 3
    assert found.preempted > 0
    drafting_by = ["model", name] if name == "mtp" else ["model", name, "grammar"]  # which mtp's drafts go on after
    assert min(found.drafted_by[each] for each in drafting_by) > 0, found.drafted_by
    assert found.accepted_by["model"] > 0


# ---- which of the two, by simulated costs: a pass takes some 50 ms, and a recorded pair's drafts are right as often

PASSES = tuple(0.05 + 0.0008 * i for i in range(64))
HEAD = Costs(PASSES, 0.004, tuple(0.004 + 0.0003 * i for i in range(16)), 0.0003)
MODEL = Costs(PASSES, 0.011, tuple(0.011 + 0.0006 * i for i in range(16)), 0.0006)


class HalfRightModel(simulated.SimulatedAssistant):
    """A small model that drafts what was recorded, or wrong tokens only, of which it is as sure.

    It knows from the last token where in the text it is, so that it may start with a part of it.
    """

    def __init__(self, clock: simulated.Clock, costs: Costs, wrong: Callable[[int], bool]) -> None:
        super().__init__(clock, lambda rows: costs.draft * simulated.grown(costs, rows), costs.read)
        self.wrong = wrong

    def recorded(self, first: int, new: int, count: int, min_confidence: float) -> tuple[list[int], list[float]]:
        tokens, confidence = super().recorded(first, new, count, min_confidence)
        return ([simulated.WRONG] * len(tokens) if self.wrong(new) else tokens), confidence


class HalfRightHead(simulated.SimulatedHead):
    """The same of a head."""

    def __init__(self, clock: simulated.Clock, costs: Costs, wrong: Callable[[int], bool]) -> None:
        super().__init__(clock, costs, random=False)
        self.wrong = wrong

    def recorded(self, first: int, new: int, count: int, min_confidence: float) -> tuple[list[int], list[float]]:
        tokens, confidence = super().recorded(first, new, count, min_confidence)
        return ([simulated.WRONG] * len(tokens) if self.wrong(new) else tokens), confidence


def drafting_simulated(
    head_wrong: Callable[[int], bool], model_wrong: Callable[[int], bool]
) -> Callable[[simulated.Clock], Drafting]:
    def made(clock: simulated.Clock) -> Drafting:
        second = Drafting(simulated.VOCABULARY, lambda: MODEL, HalfRightModel(clock, MODEL, model_wrong))
        return Drafting(simulated.VOCABULARY, lambda: HEAD, HalfRightHead(clock, HEAD, head_wrong), second=second)

    return made


def only(which: int, wrong: Callable[[int], bool]) -> Callable[[simulated.Clock], Drafting]:
    def made(clock: simulated.Clock) -> Drafting:
        costs = (HEAD, MODEL)[which]
        drafts: Model = (HalfRightHead, HalfRightModel)[which](clock, costs, wrong)
        return Drafting(simulated.VOCABULARY, lambda: costs, drafts)

    return made


def never(new: int) -> bool:
    return True


@pytest.mark.parametrize("at_a_time", [1, 2, 4, 16])
def test_two_that_never_help_cost_three_percent(at_a_time: int) -> None:
    """In total, prompts and their reading included: one budget for both, in one text and in many."""
    true = dataclasses.replace(HEAD, verify=tuple(0.05 + 0.0008 * i for i in range(600)))
    texts = 4 * max(4, at_a_time)
    plainly = simulated.serve(true, texts, at_a_time, assisted=False)
    served = simulated.serve(true, texts, at_a_time, drafting_of=drafting_simulated(never, never))
    assert served.stats.drafted_by["mtp"] > 0
    assert served.stats.drafted_by["model"] > 0
    assert not served.stats.accepted
    assert served.tokens_per_s >= 0.97 * plainly.tokens_per_s


@pytest.mark.parametrize("at_a_time", [1, 2, 4, 8])
def test_the_better_one_drafts(at_a_time: int) -> None:
    """Where only one of them is ever right, it drafts nearly alone, and nearly as fast as if there were no other; where
    each is right in one half of a text that is alone, both together are faster than either."""
    true = dataclasses.replace(HEAD, verify=tuple(0.05 + 0.0008 * i for i in range(600)))

    def right(new: int) -> bool:
        return False

    def first_half(new: int) -> bool:
        return new >= 100

    def second_half(new: int) -> bool:
        return new < 100

    def speed(made: Callable[[simulated.Clock], Drafting]) -> tuple[float, EngineStats]:
        served = simulated.serve(true, 8 * at_a_time, at_a_time, drafting_of=made, limits=(200,), prompts=(60,))
        return served.tokens_per_s, served.stats

    for which, wrongs in enumerate(((right, never), (never, right))):
        both, stats = speed(drafting_simulated(*wrongs))
        alone, _ = speed(only(which, right))
        names = ("mtp", "model") if which == 0 else ("model", "mtp")
        assert stats.accepted_by[names[0]] > 20 * stats.accepted_by[names[1]]
        assert both > 0.93 * alone
    if at_a_time > 1:  # texts that share passes share what is known of acceptance, and are in either half
        return
    both, stats = speed(drafting_simulated(first_half, second_half))
    assert both > 1.1 * max(speed(only(0, first_half))[0], speed(only(1, second_half))[0])
    assert min(stats.accepted_by.values()) > 0.2 * stats.accepted
