"""Models with states in the engine: they are found again, taken back and given up, and no text changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny_models
from conftest import HAS_NATIVE
from test_engine import SCHEDULES, Client, Pair, check, clients_of, options_of, play, prompt_of, tokens_of

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.state_prefixes import LEAST_TOKENS
from ipex_assist.engine.stats import EngineStats
from ipex_assist.executors.interface import LogitsError
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.speculative.options import GenerationOptions

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="blocks and slots are the native core's"),
]

OPTIONS = GenerationOptions.of(max_new_tokens=20, ignore_eos=True)


VARIANTS = tiny_models.known("qwen3.5", "kimi-linear", "jamba", "recurrent-gemma", "deepseek-v4")
# Drafts of each kind come and go alike: the quick part has all of them with the first, with the others both at once.
DRAFTS = [
    pytest.param(variant, draft, marks=pytest.mark.full if variant != "qwen3.5" and draft != "both" else ())
    for variant in VARIANTS
    for draft in ("none", "model", "lookup", "both")
]


@pytest.fixture(scope="module", params=VARIANTS)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    path = tmp_path_factory.mktemp("recurrent")
    tiny_models.save(path, request.param, max_position_embeddings=2048)
    return path


def loaded(folder: Path, memory: KvMemory | None = None, target: str = "int8", kv: str | None = None) -> Pair:
    """A target and the same weights in int4, both recurrent, that share a memory. kv: of keys and values."""
    checkpoint = open_checkpoint(str(folder))
    memory = memory or KvMemory(1 << 28)
    requests = (LoadRequest(checkpoint, each, "native", kv_memory=memory, kv_precision=kv) for each in (target, "int4"))
    return Pair(*map(load_model, requests))


def scarce_memory() -> KvMemory:
    """Memory for twelve blocks and states of each model: texts are put back, and some prefixes are found."""
    memory = KvMemory(1 << 28)
    memory._counts = 12, 12
    return memory


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return loaded(folder)


def turns(chance: random.Random, clients: list[Client]) -> list[Client]:
    """Each client with an answer asks on."""
    texts = [(client, tokens_of(iter(client.rounds))) for client in clients]
    return [
        Client((*client.prompt, *text, *prompt_of(chance, 20)), options_of(chance), chance.randrange(20), None)
        for client, text in texts
    ]


def play_turns(engine: Engine, pair: Pair, chance: random.Random, clients: list[Client]) -> None:
    """Two turns of each client; every text is the one it has alone."""
    play(engine, clients)
    check(pair, clients)
    again = turns(chance, clients)
    play(engine, again)
    check(pair, again)


@pytest.mark.parametrize(("folder", "draft"), DRAFTS, indirect=["folder"])
def test_every_text_is_as_alone(pair: Pair, draft: str) -> None:
    """Random requests that come and go, share beginnings, and are drafted for by a recurrent model."""
    found = EngineStats()
    for seed in range(SCHEDULES):
        chance = random.Random(f"{seed} {draft}")
        clients = clients_of(chance, 24, chance.choice((40, 200)))
        engine = pair.engine(draft, EngineLimits(requests=chance.randrange(1, 25), rows=chance.choice((17, 40, 512))))
        play_turns(engine, pair, chance, clients)
        found.accepted += engine.stats.accepted
        found.prefix_tokens += engine.stats.prefix_tokens
        engine.close()
    assert found.accepted > 0 or draft in ("none", "lookup")
    assert found.prefix_tokens > 0


# Other kinds of states, and latents, those of int8 as well; states beside keys and values, chunks, and keys and values
# that layers share. SCHEDULES=216 makes them a thousand for seven families: granite-hybrid-moe, bamba, lfm2-moe,
# kimi-linear, nemotron-h-moe, deepseek-v3 and gemma4.
OTHERS = [
    *tiny_models.known("qwen3-next", "lfm2-moe", "granite-hybrid-moe", "nemotron-h-moe", "mamba2", "deepseek-v2"),
    *(f"{variant}+int8" for variant in tiny_models.known("glm4-moe-lite")),
    *tiny_models.known("falcon-h1", "zamba2", "llama4", "bamba", "kimi-linear", "deepseek-v3", "gemma4"),
    *tiny_models.known("mamba", "falcon-mamba"),
    *(
        f"{variant}{kv}"
        for variant in tiny_models.known(
            *("deepseek-v32", "glm-moe-dsa", "hy-v4", "axk2", "gemma3n", "deepseek-v4"),
            *("mimo-v2-flash", "axk1", "longcat-flash"),
            *("bailing-hybrid", "mistral-large4", "glm5-next", "minimax-m3", "qwen4-exp", "zamba2-adapted"),
        )
        for kv in ("", "+int8")
    ),
    *tiny_models.known("step3p7", "laguna", "apertus1p5-text"),
]


@pytest.mark.full
@pytest.mark.parametrize("draft", ["none", "both"])
@pytest.mark.parametrize("variant", OTHERS)
def test_every_text_is_as_alone_in_other_families(variant: str, draft: str, tmp_path: Path) -> None:
    """Two turns of random requests with less memory than they ask for."""
    variant, _, kv = variant.partition("+")
    tiny_models.save(tmp_path, variant, **({} if "mamba" in variant else {"max_position_embeddings": 2048}))
    large, found = loaded(tmp_path, kv=kv or None), EngineStats()
    for seed in range(max(2, SCHEDULES // 3)):
        chance = random.Random(f"{seed} {variant} {draft}")
        scarce = loaded(tmp_path, scarce_memory(), kv=kv or None)
        clients = clients_of(chance, 24, chance.choice((200, 640)))
        engine = scarce.engine(draft, EngineLimits(requests=chance.randrange(1, 25), rows=chance.choice((17, 64, 512))))
        play_turns(engine, large, chance, clients)
        found.accepted += engine.stats.accepted
        found.prefix_tokens += engine.stats.prefix_tokens
        found.failed += engine.stats.failed
        engine.close()
    assert found.failed == 0
    assert found.prefix_tokens > 0
    assert found.accepted > 0 or draft == "none"


@pytest.mark.parametrize(
    ("folder", "draft"), [each for each in DRAFTS if each.values[1] in ("none", "both")], indirect=["folder"]
)
def test_where_states_run_out(folder: Path, draft: str, pair: Pair) -> None:
    """16 to 24 requests in memory for a few states and blocks: texts wait, are put back, and prefixes are given up."""
    found = EngineStats()
    for seed in range(max(2, SCHEDULES // 3)):
        scarce = loaded(folder, scarce_memory())
        states, blocks = scarce.target.states, scarce.target.blocks
        assert states is not None
        assert blocks is not None
        chance = random.Random(f"{seed} {draft}")
        clients = clients_of(chance, 24, 640, least=16)
        engine = scarce.engine(draft, EngineLimits(requests=12, rows=chance.choice((64, 512))))
        play_turns(engine, pair, chance, clients)
        found.preempted += engine.stats.preempted
        found.prefix_tokens += engine.stats.prefix_tokens
        found.failed += engine.stats.failed
        engine.close()
        del engine, clients
        assert blocks.free == blocks.count
        assert states.free == states.count
    assert found.failed == 0
    assert found.preempted > 0
    assert found.prefix_tokens > 0


@pytest.mark.parametrize("draft", ["none", "both"])
def test_a_turn_reads_only_what_is_new(pair: Pair, draft: str) -> None:
    """Of a conversation nothing is read again, wherever a block ends; texts are those of no cache."""
    engine = pair.engine(draft)
    talk = list(range(3, 3 + LEAST_TOKENS))
    for question in ([], [50, 51, 52], [60] * 300, [70] * 7):
        before = engine.stats.prompt_tokens
        known = len(talk) - 1 if question else 0  # the last token was never read
        talk += question
        answer = tokens_of(engine.submit(tuple(talk), OPTIONS))
        assert answer == pair.alone(tuple(talk), OPTIONS)
        assert engine.stats.prompt_tokens - before == len(talk) - known
        talk += answer


@pytest.mark.parametrize("variant", tiny_models.known("qwen3.5", "granite-hybrid-moe", "kimi-linear"))
def test_a_tenth_turn_of_a_whole_hybrid(variant: str, tmp_path: Path) -> None:
    """After 2,000 tokens of a conversation its tenth question reads at most 0.15 of the rows that reading all takes:
    states, and keys and values beside them, of every turn before are found; texts are those of no cache.
    """
    tiny_models.save(tmp_path, variant, max_position_embeddings=4096)
    pair, chance = loaded(tmp_path), random.Random(variant)
    engine = pair.engine("none")
    options = GenerationOptions.of(max_new_tokens=8, ignore_eos=True)
    talk = [chance.randrange(3, tiny_models.VOCAB) for _ in range(1600)]
    costs = []
    for _ in range(10):
        before = engine.stats.rows
        talk += [chance.randrange(3, tiny_models.VOCAB) for _ in range(40)]
        answer = tokens_of(engine.submit(tuple(talk), options))
        costs.append(engine.stats.rows - before)
        asked, talk = tuple(talk), talk + answer
    assert len(asked) > 2000
    alone = pair.engine("none")
    assert answer == tokens_of(alone.submit(asked, options))
    assert costs[0] == 1640 + 7  # the last token of an answer is not read
    assert max(costs[1:]) <= 40 + 8
    assert costs[-1] <= 0.15 * alone.stats.rows


def test_the_same_prompt_again(pair: Pair) -> None:
    """All of it is known but its last token."""
    engine = pair.engine("none")
    prompt = (*range(3, 153), *range(20, 70))
    texts = [tokens_of(engine.submit(prompt, OPTIONS)) for _ in range(3)]
    assert texts == [pair.alone(prompt, OPTIONS)] * 3
    assert engine.stats.prompt_tokens == len(prompt) + 2


def test_a_beginning_that_is_asked_for_again(pair: Pair) -> None:
    """The second request with a common beginning reads it, and keeps the state there; the third reads its own part."""
    engine = pair.engine("none")
    common, read = (*range(3, 153), *range(20, 70)), list[int]()
    for own in range(4):
        prompt = (*common, *([10 + own] * 50))
        before = engine.stats.prompt_tokens
        assert tokens_of(engine.submit(prompt, OPTIONS)) == pair.alone(prompt, OPTIONS)
        read.append(engine.stats.prompt_tokens - before)
    assert read == [250, 250, 50, 50]


def test_the_oldest_prefix_goes_first(folder: Path, pair: Pair) -> None:
    """With slots for a few, the prompt that was used last is still known."""
    least = sum(
        8 * model.packed.block_bytes(model.kv_precision) + 4 * model.packed.state_bytes(model.kv_precision)  # type: ignore[attr-defined]
        for model in (pair.target, pair.assistant)
    )
    scarce = loaded(folder, KvMemory(least))
    engine = scarce.engine("none")
    assert scarce.target.states is not None
    prompts = [tuple(chance.randrange(3, 60) for _ in range(100)) for chance in map(random.Random, range(9))]
    for prompt in prompts:
        tokens_of(engine.submit(prompt, OPTIONS))
    before = engine.stats.prefix_tokens
    assert tokens_of(engine.submit(prompts[-1], OPTIONS)) == pair.alone(prompts[-1], OPTIONS)
    assert engine.stats.prefix_tokens == before + 99
    tokens_of(engine.submit(prompts[0], OPTIONS))
    assert engine.stats.prefix_tokens == before + 99


@pytest.mark.parametrize("schedule", ["constant", "heuristic"])
def test_long_drafts_can_be_taken_back(pair: Pair, schedule: str) -> None:
    """More drafted tokens than a state forgets again: the request would fail."""
    options = GenerationOptions.of(
        max_new_tokens=40, ignore_eos=True, num_assistant_tokens=40, num_assistant_tokens_schedule=schedule
    )
    engine = pair.engine("model")
    found = tokens_of(engine.submit(list(range(40)), options))
    plain = tokens_of(pair.engine("none").submit(list(range(40)), options))
    assert found == plain


def test_a_pass_that_a_signal_ends_moves_no_state(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python handles a signal when the core returns: its states have moved on, and no sequence knows."""
    target, tokens = pair.target, list(range(40))
    whole = target.new_sequence(96)
    target.extend(whole, tokens[:20])
    expected = target.extend(whole, tokens[20:]).clone()
    sequence = target.new_sequence(96)
    target.extend(sequence, tokens[:20])
    sequence.truncate(20)

    def ends(status: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(target.packed, "check", ends)  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            target.extend(sequence, tokens[20:])
    assert target.extend(sequence, tokens[sequence.length :]).equal(expected)


def test_little_memory_has_room_for_a_block() -> None:
    """Small states beside large blocks: half of the memory in states would leave no block."""
    memory = KvMemory(100)
    memory.join(64, 4096)
    memory.join(3, 4096, 0, 2)
    blocks, states = memory._divided(100)
    assert blocks == 1
    assert states >= 2


def test_there_are_no_more_states_than_blocks() -> None:
    """States that are smaller than blocks: half of the memory in them would leave few texts room to be found again."""
    memory = KvMemory(1200)
    memory.join(75, 4096, 0, 25)
    assert memory._divided(1200) == (12, 12)
    memory = KvMemory(1200)
    memory.join(25, 4096, 0, 75)
    assert memory._divided(1200) == (24, 8)


def test_invalid_logits_behind_many_rows_are_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the draft cannot be taken back: that is no reason to hide what was wrong."""
    target = pair.target
    sequence = target.new_sequence(96)
    target.extend(sequence, [1, 2, 3])
    real = target.draft_many  # type: ignore[attr-defined]
    monkeypatch.setattr(target, "draft_many", lambda *given: [([*d[:-1], -1], p) for d, p in real(*given)])
    with pytest.raises(LogitsError):
        target.draft(sequence, list(range(40)), 4)  # type: ignore[attr-defined]
