"""Draft heads in the engine: whatever comes and goes, they get the hidden states of their tokens, and no text changes.

The fake head fails where a row is that of another token or position; see fake_heads.py.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import deepseek_v4_drafts
import draft_heads
import pytest
import qwen4_drafts
import tiny_models
from conftest import HAS_NATIVE
from fake_heads import BLOCK_SIZE, VOCAB, FakeHead, FakeTarget, SamplingTarget
from still_clock import still
from test_engine import (
    CHEAP,
    SAMPLED,
    SCHEDULES,
    Client,
    Pair,
    check,
    clients_of,
    interrupting,
    options_of,
    run_until_interrupted,
    tokens_of,
)
from test_engine import play as play_alone

from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.stats import EngineStats
from ipex_assist.executors.interface import Model
from ipex_assist.models.draft_head import HeadKind
from ipex_assist.speculative.account import LOST_SHARE
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import ConstantSchedule
from ipex_assist.speculative.sources.head_assistant import HeadAssistant

pytestmark = pytest.mark.one_stack

KINDS: list[HeadKind] = ["mtp", "eagle3", "dflash", "shared_kv"]
BLOCK = dataclasses.replace(CHEAP, draft=0.0, block=(1e-6,) * 8)
SMALL = 60  # blocks of 16 positions: for a few requests of the schedules


def sometimes(digest: int) -> bool:
    """A head that errs after one token in three."""
    return digest % 3 == 0


def pair_of(kind: HeadKind, count: int = 4096, wrong: Any = sometimes, target: type = FakeTarget) -> tuple[Any, Any]:
    return target(count), FakeHead(kind, wrong, count)


def engine_of(target: Model, head: Model | None, limits: EngineLimits | None = None, lookup: bool = False) -> Engine:
    block = head is not None and head.spec.head is not None and head.spec.head.block_size
    return Engine(target, Drafting(VOCAB, lambda: BLOCK if block else CHEAP, head, lookup), limits=limits, clock=still)


def plain(prompt: tuple[int, ...], options: GenerationOptions) -> list[int]:
    """The text that the target has alone."""
    return tokens_of(engine_of(FakeTarget(), None).submit(prompt, GenerationOptions.of(options, assisted=False)))


def prompt_of(chance: random.Random, most: int) -> tuple[int, ...]:
    common = random.Random(7)
    start = [common.randrange(3, VOCAB) for _ in range(chance.choice((0, 0, 8, most // 2)))]
    return (*start, *(chance.randrange(3, VOCAB) for _ in range(chance.randrange(1, most))))


@dataclasses.dataclass
class Pausing(Client):
    """A client that pauses at a step, and goes on a few steps later."""

    pauses: int | None = None


def pausing_clients(chance: random.Random) -> list[Pausing]:
    return [
        Pausing(
            prompt_of(chance, chance.choice((20, 200, 600))),
            options_of(chance),
            chance.randrange(20),
            chance.randrange(1, 20) if chance.random() < 0.2 else None,
            pauses=chance.randrange(2, 12) if chance.random() < 0.3 else None,
        )
        for _ in range(chance.randrange(1, 8))
    ]


def play(engine: Engine, clients: list[Pausing]) -> None:
    """Run a schedule to its end."""
    step = 0
    while step < 40 or not all(client.handle is not None and client.handle.ended for client in clients):
        for client in clients:
            if client.comes == step:
                client.handle = engine.submit(client.prompt, client.options)
            elif client.handle is None:
                continue
            elif step - client.comes == client.goes:
                client.handle.cancel()
            elif client.pauses is not None and step - client.comes in (client.pauses, client.pauses + 5):
                engine.pause(client.handle._request, step - client.comes == client.pauses)
        engine.step()
        step += 1
        assert step < 5000
    for client in clients:
        assert client.handle is not None
        text, expected = tokens_of(client.handle), plain(client.prompt, client.options)
        assert text == (expected[: len(text)] if client.goes is not None else expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lookup", [False, True])
def test_every_text_is_as_alone(kind: HeadKind, lookup: bool) -> None:
    """Prompts in chunks, cached prefixes, requests that pause, are preempted for memory, or go; greedy and sampled."""
    found = EngineStats()
    for seed in range(2 * SCHEDULES):
        chance = random.Random(f"{seed} {kind} {lookup}")
        count = chance.choice((SMALL, 4096))
        target, head = pair_of(kind, count)
        limits = EngineLimits(requests=chance.randrange(1, 9), rows=chance.choice((17, 40, 512)))
        engine = engine_of(target, head, limits, lookup)
        play(engine, pausing_clients(chance))
        for name in ("accepted", "preempted", "prefix_tokens"):
            setattr(found, name, getattr(found, name) + getattr(engine.stats, name))
        engine.close()
        assert target.blocks.free == head.blocks.free == count, "blocks that nobody holds"
    assert found.accepted > 0
    assert found.preempted > 0
    assert found.prefix_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_is_always_right(kind: HeadKind) -> None:
    """All it drafts is accepted: rows that are off by one fail in the fake, and a wrong last row would err here."""
    options = GenerationOptions.of(max_new_tokens=60, ignore_eos=True)
    for target in (FakeTarget(), SamplingTarget()):
        engine = engine_of(target, FakeHead(kind))
        prompts = [prompt_of(random.Random(seed), 40) for seed in range(4)]
        handles = [engine.submit(prompt, options) for prompt in prompts]
        assert [tokens_of(handle) for handle in handles] == [plain(prompt, options) for prompt in prompts]
        assert engine.stats.drafted == engine.stats.accepted > 100


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
@pytest.mark.parametrize("how", SAMPLED[1:])
def test_sampled_drafts_have_the_same_noise(kind: HeadKind, how: dict[str, Any]) -> None:
    """A head whose logits are the target's samples what the target samples, token for token, with every penalty."""
    options = GenerationOptions.of(max_new_tokens=60, ignore_eos=True, seed=3, **how)
    target, head = pair_of(kind, wrong=lambda digest: False)
    engine = engine_of(target, head)
    prompts = [prompt_of(random.Random(seed), 40) for seed in range(3)]
    handles = [engine.submit(prompt, options) for prompt in prompts]
    assert [tokens_of(handle) for handle in handles] == [plain(prompt, options) for prompt in prompts]
    assert engine.stats.drafted == engine.stats.accepted > 60


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", range(0, 24, 3))
def test_an_interrupted_pass_goes_on(kind: HeadKind, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C anywhere, in the head's reading of a prompt as well: whoever asks again gets the same text."""
    options = GenerationOptions.of(max_new_tokens=24, ignore_eos=True)
    prompts = [prompt_of(random.Random(seed), most) for seed, most in ((0, 900), (1, 20), (2, 600))]
    target, head = pair_of(kind)
    engine, calls = engine_of(target, head, EngineLimits(rows=300)), iter(range(1000))
    handles = [engine.submit(prompt, options) for prompt in prompts]
    with monkeypatch.context() as patches:
        for model in (target, head):
            for name in ("forward", "draft_many"):
                if hasattr(model, name):
                    patches.setattr(model, name, interrupting(getattr(model, name), calls, turn))
        with pytest.raises(KeyboardInterrupt):
            run_until_interrupted(engine)
    assert [tokens_of(handle) for handle in handles] == [plain(prompt, options) for prompt in prompts]


def reads_of(head: FakeHead, prompt: tuple[int, ...], costs: Costs, known: Acceptance | None = None) -> int:
    """How many rows of a prompt a head has read when the second token comes."""
    drafting = Drafting(VOCAB, lambda: costs, head, model_acceptance=known or Acceptance())
    engine = Engine(FakeTarget(), drafting, limits=EngineLimits(rows=300))
    handle = engine.submit(prompt, GenerationOptions.of(max_new_tokens=100, ignore_eos=True))
    next(handle)
    source = handle._request.head
    assert isinstance(source, HeadAssistant)
    return source._held - source._start


def test_a_prompt_is_read_where_drafts_should_repay_it() -> None:
    """A cheap head reads all chunks but what its first draft will; one that costs too much reads none of them."""
    prompt = prompt_of(random.Random(3), 3000)
    assert len(prompt) > 1000
    dear = Costs((1e-3,) * 16, 1e-3, (1e-3,) * 16, 1e-3)
    assert reads_of(FakeHead(), prompt, CHEAP) >= len(prompt) - 300
    assert reads_of(FakeHead(), prompt, dear) == 0


def test_hidden_states_behind_the_last_layer_are_charged() -> None:
    """For them it computes all rows of a prompt, where it otherwise computes one: a layer's share of the pass."""
    target, now = SamplingTarget(), [0.0]
    sample = target.sample

    def sampled(rows: Any, choices: Any, hidden: Any = None) -> Any:
        now[0] += 0.9
        return sample(rows, choices, hidden)

    target.sample = sampled  # type: ignore[method-assign]
    dear = Costs((1.0,) * 16, 1.0, (1.0,) * 16, 1.0)
    engine = Engine(target, Drafting(VOCAB, lambda: dear, FakeHead()), clock=lambda: now[0])
    handle = engine.submit(prompt_of(random.Random(3), 20), GenerationOptions.of(max_new_tokens=4000, ignore_eos=True))
    next(handle)
    planner = handle._request.planner
    assert planner is not None
    beyond_share = 0.9 * (1 / target.spec.num_hidden_layers - LOST_SHARE)
    assert planner.account.earned_s == pytest.approx(-beyond_share)
    handle.cancel()


def test_a_cached_prefix_has_no_hidden_states() -> None:
    """The head begins where the target does, at its first position, and drafts as well as before."""
    target, head = pair_of("mtp", wrong=lambda digest: False)
    engine = engine_of(target, head)
    options = GenerationOptions.of(max_new_tokens=30, ignore_eos=True)
    prompt = prompt_of(random.Random(5), 400)
    text = tokens_of(engine.submit(prompt, options))
    longer = (*prompt, *text, 5, 6, 7)
    before = engine.stats.drafted
    handle = engine.submit(longer, options)
    next(handle)
    next(handle)
    assert engine.stats.prefix_tokens >= len(prompt)
    source = handle._request.head
    assert isinstance(source, HeadAssistant)
    assert source._start >= len(prompt)
    assert tokens_of(handle)
    assert engine.stats.drafted == engine.stats.accepted > before


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_rejected_draft_comes_the_next(kind: HeadKind) -> None:
    """Hidden states of rejected tokens are not kept: every pass after the prompt's verifies as much as it is told."""
    target, head = pair_of(kind)
    handle = engine_of(target, head).submit(
        prompt_of(random.Random(1), 30), GenerationOptions.of(max_new_tokens=40), schedule=ConstantSchedule(3)
    )
    rounds = list(handle)
    assert 0 < sum(round_.accepted for round_ in rounds) < sum(round_.drafted for round_ in rounds)
    assert {round_.drafted for round_ in rounds[1:-2]} == {3}


def test_a_block_is_no_longer_than_its_head_was_made_for() -> None:
    engine = engine_of(*pair_of("dflash", wrong=lambda digest: False))
    options = GenerationOptions.of(max_new_tokens=40, ignore_eos=True)
    rounds = list(engine.submit(prompt_of(random.Random(1), 30), options))
    assert max(round_.drafted for round_ in rounds) == BLOCK_SIZE - 1


def save_head(folder: Path, name: str) -> Path | None:
    """A target and its head of random weights, the MTP layer's such that it is often right; the head's folder."""
    if name == "mtp-layers":
        draft_heads.save_mtp(folder, "glm4-moe", {}, 3, max_position_embeddings=2048)
        return None
    if name == "mtp-mimo-v2-flash":
        draft_heads.save_mtp(
            *(folder, "mimo-v2-flash", {}, 2), max_position_embeddings=2048, **draft_heads.kinds_of("mimo-v2-flash", 2)
        )
        return None
    if name == "shared_kv":
        with draft_heads.all_layers_share():
            draft_heads.save_assistant(folder, folder / "head", "gemma4", {"max_position_embeddings": 2048})
        return folder / "head"
    if name in STREAMS:
        STREAMS[name](folder, max_position_embeddings=2048)
        return None
    if name in ("mtp", *COLLAPSED):
        variant = name.removeprefix("mtp").removeprefix("-") or "glm4-moe"
        draft_heads.save_mtp_often_right(folder, variant, max_position_embeddings=2048)
        return None
    draft_heads.save_target(folder, max_position_embeddings=2048)
    draft_heads.save_recorded(folder / "head", name)
    return folder / "head"


READING = ["shared_kv"] if tiny_models.known("gemma4") else []  # keys and values of its target
STREAMS = {
    "mtp-deepseek-v4": deepseek_v4_drafts.save_mtp_often_right,
    "dspark-deepseek-v4": deepseek_v4_drafts.save_dspark_often_right,
    "mtp-qwen4-exp": qwen4_drafts.save_mtp_often_right,
}
STREAMS = {name: save for name, save in STREAMS.items() if tiny_models.known(name.partition("-")[2])}
BEFORE_NORM = [f"mtp-{variant}" for variant in tiny_models.known("mimo-v2-flash")]
COLLAPSED = [f"mtp-{variant}" for variant in tiny_models.known("glm5-next", "hy-v4")]  # several streams but in the head


@pytest.mark.parametrize(
    "name", ["mtp", "mtp-layers", "eagle3-llama", "dflash", "dflash2", *READING, *STREAMS, *BEFORE_NORM, *COLLAPSED]
)
@pytest.mark.parametrize(
    ("executor", "precision", "kv_precision"),
    [("torch", "fp32", None), *([("native", "int8", "int8"), ("native", "bf16", None)] if HAS_NATIVE else [])],
)
def test_heads_that_compute(name: str, executor: str, precision: str, kv_precision: str | None, tmp_path: Path) -> None:
    """Random schedules with the executors' heads: every text is the one that the target has alone."""
    pair = Pair(*draft_heads.load(tmp_path, save_head(tmp_path, name), executor, precision, kv_precision))
    accepted = 0
    for seed in range(SCHEDULES):
        chance = random.Random(f"{seed} {name}")
        clients = clients_of(chance)
        engine = pair.engine(
            chance.choice(("model", "both")),
            EngineLimits(requests=chance.randrange(1, 9), rows=chance.choice((17, 512))),
        )
        play_alone(engine, clients)
        check(pair, clients)
        accepted += engine.stats.accepted
        engine.close()
    assert accepted > 0 or name not in ("mtp", *STREAMS)


@pytest.mark.parametrize("lookup", [False, True], ids=["head", "lookup+head"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_is_never_right_is_left_alone(
    kind: HeadKind, lookup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In long pauses the target's passes give no hidden states. Before a draft they do: wrong rows fail in the fake.

    In the next text they give none of the prompt either, and it costs half as much.
    """
    target, head, now, tapped = SamplingTarget(), FakeHead(kind, lambda digest: True), [0.0], list[bool]()
    block = head.spec.head.block_size
    believed = Costs(
        *(tuple(1 + 0.1 * i for i in range(16)), 0.0 if block else 0.5, (0.5,) * 16, 0.05),
        block=(0.5,) * 8 * bool(block),
    )
    sample, draft_many = target.sample, head.draft_many

    def sampled(rows: Any, choices: Any, hidden: Any = None) -> Any:
        tapped.append(hidden is not None)
        now[0] += believed.verifying(sum(len(each.tokens) for each in rows))
        return sample(rows, choices, hidden)

    def drafted(requests: Any, vocabulary: Any = None) -> Any:
        now[0] += 0.5 * (1 if block else max(each.count for each in requests))
        return draft_many(requests, vocabulary)

    monkeypatch.setattr(target, "sample", sampled)
    monkeypatch.setattr(head, "draft_many", drafted)
    engine = Engine(target, Drafting(VOCAB, lambda: believed, head, lookup), clock=lambda: now[0])
    options = GenerationOptions.of(max_new_tokens=500, ignore_eos=True)
    prompt = prompt_of(random.Random(3), 20)
    assert tokens_of(engine.submit(prompt, options)) == plain(prompt, options)
    assert engine.stats.drafted > 5
    if lookup:  # this text repeats itself, and is copied during pauses of the head as well
        assert engine.stats.accepted > 100
        assert tapped.count(False) > 30
        return
    assert tapped.count(False) > 120
    assert not engine.stats.accepted
    assert now[0] <= 1.03 * 500 + believed.verifying(20)
    tapped.clear()
    drafted_before, now[0] = engine.stats.drafted, 0.0
    longer = (*prompt_of(random.Random(4), 20), *prompt)
    assert tokens_of(engine.submit(longer, options)) == plain(longer, options)
    assert not tapped[0]
    assert engine.stats.drafted > drafted_before
    assert now[0] <= 1.02 * 500 + believed.verifying(40)


@pytest.mark.parametrize("kind", ["mtp", "dflash"])
def test_several_texts_pause_together(kind: HeadKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the planner drafts nothing for some passes, it is not asked; and a newcomer ends the pause."""
    target, head, now, plans = SamplingTarget(), FakeHead(kind, lambda digest: True), [0.0], [0]
    block = (0.5,) * 8 if kind == "dflash" else ()
    believed = Costs(tuple(1 + 0.1 * i for i in range(16)), 0.0 if block else 0.5, (0.5,) * 16, 0.05, block=block)
    sample, plan = target.sample, Planner.plan

    def sampled(rows: Any, choices: Any, hidden: Any = None) -> Any:
        now[0] += believed.verifying(sum(len(each.tokens) for each in rows))
        return sample(rows, choices, hidden)

    def planned(self: Planner, *args: Any) -> Any:
        plans[0] += 1
        return plan(self, *args)

    monkeypatch.setattr(target, "sample", sampled)
    monkeypatch.setattr(Planner, "plan", planned)
    engine = Engine(target, Drafting(VOCAB, lambda: believed, head), clock=lambda: now[0])
    options = GenerationOptions.of(max_new_tokens=300, ignore_eos=True)
    prompts = [prompt_of(random.Random(seed), 20) for seed in range(4)]
    handles = [engine.submit(prompt, options) for prompt in prompts[:3]]
    for _ in range(100):
        engine.step()
    handles.append(engine.submit(prompts[3], options))
    assert [tokens_of(handle) for handle in handles] == [plain(prompt, options) for prompt in prompts]
    assert engine.stats.drafted > 0
    assert not engine.stats.accepted
    assert plans[0] < engine.stats.passes / 3
