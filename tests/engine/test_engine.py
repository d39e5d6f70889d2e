"""Many requests in the same passes: each has the tokens it has alone, whatever comes, goes or fails beside it."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from still_clock import still

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.request import RequestHandle
from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import LogitsError, Model
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.round import Round

pytestmark = pytest.mark.one_stack

CHEAP = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)  # drafting pays, whatever the machine does meanwhile
# Precisions of linears and, where they are others, of keys and values.
EXECUTORS = [("torch", "fp32"), *((("native", "int8"), ("native", "bf16+int8")) if HAS_NATIVE else ())]


@dataclass
class Pair:
    """A target and its assistant, and the texts that requests have alone."""

    target: Model
    assistant: Model
    known: dict[Any, list[int]] = field(default_factory=dict)

    def engine(self, draft: str = "model", limits: EngineLimits | None = None) -> Engine:
        """An engine whose texts are drafted by "model", "lookup", "both" or "none"."""
        drafting = Drafting(
            tiny_models.VOCAB,
            lambda: CHEAP,
            self.assistant if draft in ("model", "both") else None,
            lookup=draft in ("lookup", "both"),
        )
        return Engine(self.target, drafting, limits=limits or EngineLimits(), clock=still)

    def alone(self, prompt: tuple[int, ...], options: GenerationOptions) -> list[int]:
        """The text of a request that nothing runs beside, decoded plainly."""
        key = prompt, str(options)
        if key not in self.known:
            plain = GenerationOptions.of(options, assisted=False)
            self.known[key] = tokens_of(self.engine("none").submit(prompt, plain))
        return self.known[key]


def tokens_of(rounds: Iterator[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]


@pytest.fixture(scope="module", params=EXECUTORS, ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Of one executor; the assistant has the target's weights, coarser, so that some of its drafts are right."""
    folder = tmp_path_factory.mktemp("engine")
    executor, precision = request.param
    tiny_models.save(folder, "llama", max_position_embeddings=2048)
    draft = "int4" if executor == "native" else "bf16"
    precision, _, kv = precision.partition("+")
    target, assistant = (
        tiny_models.model(folder, executor, each, kv_precision=kv or None) for each in (precision, draft)
    )
    return Pair(target, assistant)


def prompt_of(chance: random.Random, most: int = 40) -> tuple[int, ...]:
    """A prompt; about half of them begin alike."""
    common = random.Random(7)
    start = [common.randrange(3, tiny_models.VOCAB) for _ in range(chance.choice((0, 0, 8, most // 2)))]
    return (*start, *(chance.randrange(3, tiny_models.VOCAB) for _ in range(chance.randrange(1, most))))


@dataclass
class Client:
    """One request of a random schedule: it comes at a step, reads now and then, and may go before its end."""

    prompt: tuple[int, ...]
    options: GenerationOptions
    comes: int
    goes: int | None
    handle: RequestHandle | None = None
    rounds: list[Round] = field(default_factory=list)


SAMPLED: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "temperature": 0.7, "top_p": 0.95},
    {"do_sample": True, "top_k": 0},
    {"do_sample": True, "presence_penalty": 0.5, "min_p": 0.02},
]


def options_of(chance: random.Random) -> GenerationOptions:
    """Greedy, or sampled by a seed; some come before others."""
    how = chance.choice(SAMPLED)
    seed = {"seed": chance.randrange(100)} if how else {}
    length, priority = chance.randrange(1, 24), chance.choice((-1, 0, 0, 2))
    return GenerationOptions.of(max_new_tokens=length, ignore_eos=True, priority=priority, **how, **seed)


def clients_of(chance: random.Random, most: int = 8, longest: int = 40, least: int = 1) -> list[Client]:
    return [
        Client(
            prompt_of(chance, longest),
            options_of(chance),
            chance.randrange(20),
            chance.randrange(1, 20) if chance.random() < 0.2 else None,
        )
        for _ in range(chance.randrange(least, most + 1))
    ]


def play(engine: Engine, clients: list[Client]) -> None:
    """Run a schedule to its end."""
    step = 0
    while step < 25 or not all(client.handle is not None and client.handle.ended for client in clients):
        for client in clients:
            if client.comes == step:
                client.handle = engine.submit(client.prompt, client.options)
            if client.goes is not None and client.handle is not None and step == client.comes + client.goes:
                client.handle.cancel()
        engine.step()
        step += 1
    for client in clients:
        assert client.handle is not None
        client.rounds = list(client.handle)


# Random schedules of each kind in a run of the tests; SCHEDULES=250 makes them a thousand for each executor.
SCHEDULES = int(os.environ.get("SCHEDULES", "6"))


def check(pair: Pair, clients: list[Client]) -> None:
    """Every text is the one it has alone; those that were cancelled have a beginning of it."""
    for client in clients:
        expected, found = pair.alone(client.prompt, client.options), tokens_of(iter(client.rounds))
        assert found == expected[: len(found)] if client.goes is not None else found == expected


@pytest.mark.parametrize("draft", ["none", "model", "lookup", "both"])
def test_every_text_is_as_alone(pair: Pair, draft: str) -> None:
    """Random requests, greedy and sampled, that come and go."""
    accepted = 0
    for seed in range(SCHEDULES):
        chance = random.Random(f"{seed} {draft}")
        clients = clients_of(chance)
        engine = pair.engine(draft, EngineLimits(requests=chance.randrange(1, 9), rows=chance.choice((17, 40, 512))))
        play(engine, clients)
        check(pair, clients)
        accepted += engine.stats.accepted
    assert accepted > 0 or draft in ("none", "lookup")  # which has nothing to copy in a short random text


@pytest.mark.skipif(not HAS_NATIVE, reason="blocks are the native core's")
@pytest.mark.parametrize(("precision", "kv"), [("int8", "int8"), ("bf16", "bf16")])
@pytest.mark.parametrize("draft", ["none", "both"])
def test_where_blocks_run_out(tmp_path: Path, precision: str, kv: str, draft: str) -> None:
    """16 to 24 requests in memory for five blocks: prefixes are found and given up, texts put back and read again."""
    tiny_models.save(tmp_path, "llama", max_position_embeddings=2048)
    checkpoint = open_checkpoint(str(tmp_path))
    large = Pair(*(tiny_models.model(tmp_path, "native", each, kv_precision=kv) for each in (precision, "int4")))
    found = EngineStats()
    for seed in range(max(4, SCHEDULES // 3)):
        # Room for both models' blocks: how many bytes a block has is theirs to say.
        bytes_of_five = 5 * sum(model.packed.block_bytes(kv) for model in (large.target, large.assistant))  # type: ignore[attr-defined]
        memory = KvMemory(bytes_of_five)
        target, assistant = (
            load_model(LoadRequest(checkpoint, each, "native", kv_memory=memory, kv_precision=kv))
            for each in (precision, "int4")
        )
        assert target.blocks is not None
        chance = random.Random(f"{seed} {precision} {draft}")
        clients = clients_of(chance, 24, 640, least=16)
        engine = Pair(target, assistant).engine(draft, EngineLimits(requests=12, rows=chance.choice((64, 512))))
        play(engine, clients)
        check(large, clients)
        found.preempted += engine.stats.preempted
        found.prefix_tokens += engine.stats.prefix_tokens
        engine.close()
        assert target.blocks.free == target.blocks.count
    assert found.preempted > 0
    assert found.prefix_tokens > 0


def test_requests_pass_together(pair: Pair) -> None:
    """Eight texts of 16 tokens take about as many passes as one, and drafts of all are verified in the same ones."""
    prompts = [prompt_of(random.Random(seed)) for seed in range(8)]
    options = GenerationOptions.of(max_new_tokens=16, ignore_eos=True)
    engine = pair.engine("none")
    handles = [engine.submit(prompt, options) for prompt in prompts]
    assert [tokens_of(handle) for handle in handles] == [pair.alone(prompt, options) for prompt in prompts]
    assert engine.stats.passes <= 18
    assert engine.stats.most_running == 8
    assert engine.stats.new_tokens == 8 * 16
    assert engine.stats.prompt_tokens + engine.stats.prefix_tokens == sum(map(len, prompts))


@pytest.mark.parametrize("draft", ["none", "both"])
def test_a_turn_reads_only_what_is_new(pair: Pair, draft: str) -> None:
    """Of what was read and written before nothing is read again, wherever a block ends; texts are those of no cache."""
    engine = pair.engine(draft)
    options = GenerationOptions.of(max_new_tokens=20, ignore_eos=True)
    talk: list[int] = list(range(3, 43))
    for question in ([], [50, 51, 52], [60] * 300, [70] * 7):
        before = engine.stats.prompt_tokens
        known = len(talk) - 1 if question else 0  # of the last token no keys and values were needed
        talk += question
        answer = tokens_of(engine.submit(tuple(talk), options))
        assert answer == pair.alone(tuple(talk), options)
        if pair.target.blocks is not None:
            assert engine.stats.prompt_tokens - before == len(talk) - known
        talk += answer


def test_whoever_asks_runs_the_passes_of_all(pair: Pair) -> None:
    """Threads that iterate their own request only, without a thread of the engine."""
    engine = pair.engine("model")
    options = GenerationOptions.of(max_new_tokens=12, ignore_eos=True)
    prompts = [prompt_of(random.Random(seed)) for seed in range(6)]
    found: dict[int, list[int]] = {}

    def read(number: int) -> None:
        found[number] = tokens_of(engine.submit(prompts[number], options))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(6)] == [pair.alone(prompt, options) for prompt in prompts]


def test_a_thread_of_its_own(pair: Pair) -> None:
    """Handles are awaited or iterated; `close` ends what is under way."""
    engine = pair.engine("model")
    engine.start()
    options = GenerationOptions.of(max_new_tokens=12, ignore_eos=True)
    prompts = [prompt_of(random.Random(seed)) for seed in range(6)]

    async def read(prompt: tuple[int, ...]) -> list[int]:
        return [token async for round_ in engine.submit(prompt, options) for token in round_.tokens]

    async def read_all() -> list[list[int]]:
        return await asyncio.gather(*map(read, prompts))

    assert asyncio.run(read_all()) == [pair.alone(prompt, options) for prompt in prompts]
    assert tokens_of(engine.submit(prompts[0], options)) == pair.alone(prompts[0], options)
    endless = engine.submit(prompts[0], GenerationOptions.of(max_new_tokens=1500, ignore_eos=True))
    assert next(endless).tokens
    engine.close()
    assert endless.ended
    assert not any(thread.name == "ipex-assist engine" for thread in threading.enumerate())


def test_a_loop_that_is_gone_ends_its_own_text_alone(pair: Pair) -> None:
    """Would catch a thread that ends with it, after which every later call waits for ever."""
    engine = pair.engine("model")
    engine.start()
    endless = GenerationOptions.of(max_new_tokens=1500, ignore_eos=True)
    options = GenerationOptions.of(max_new_tokens=6, ignore_eos=True)
    prompt = prompt_of(random.Random(1))
    left = engine.submit(prompt, endless)

    async def leave_early() -> None:
        async for _ in left:
            break

    asyncio.run(leave_early())
    deadline = time.monotonic() + 60
    while not left.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left.ended
    assert tokens_of(engine.submit(prompt, options)) == pair.alone(prompt, options)
    engine.close()


def test_a_listener_that_raises_ends_its_own_text_alone(pair: Pair) -> None:
    engine = pair.engine("model")
    endless = GenerationOptions.of(max_new_tokens=1500, ignore_eos=True)
    options = GenerationOptions.of(max_new_tokens=6, ignore_eos=True)
    prompt = prompt_of(random.Random(1))
    broken = engine.submit(prompt, endless)

    def listener() -> None:
        raise ValueError("broken")

    broken._request.outbox.listener = listener
    other = engine.submit(prompt, options)
    assert tokens_of(other) == pair.alone(prompt, options)
    assert broken.ended
    engine.close()


def test_a_failure_beside_the_passes_ends_the_requests(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = pair.engine("model")
    step = engine._scheduler.step
    failures = iter([RuntimeError("between passes")])

    def failing(meanwhile: Any = None) -> bool:
        for error in failures:
            raise error
        return step()

    monkeypatch.setattr(engine._scheduler, "step", failing)
    options = GenerationOptions.of(max_new_tokens=6, ignore_eos=True)
    prompt = prompt_of(random.Random(1))
    first = engine.submit(prompt, options)
    engine.start()
    with pytest.raises(RuntimeError, match="between passes"):
        tokens_of(first)
    assert tokens_of(engine.submit(prompt, options)) == pair.alone(prompt, options)
    engine.close()


def test_awaiting_needs_the_thread(pair: Pair) -> None:
    """Nobody would run a pass, and the coroutine wait for ever."""
    handle = pair.engine("model").submit(prompt_of(random.Random(1)), GenerationOptions())

    async def read() -> None:
        async for _ in handle:
            pass

    with pytest.raises(UsageError, match=r"call the model's start\(\) before it"):
        asyncio.run(read())


def test_a_fork_of_a_started_engine_says_so(pair: Pair) -> None:
    """It has none of the threads that would run its passes."""
    engine = pair.engine("model")
    engine.start()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            engine.submit((1, 2), GenerationOptions())
        except UsageError as error:
            os.write(write, str(error).encode())
        finally:
            engine.close()
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert b"forked from the one in which the model was started" in answer.read()
    os.waitpid(child, 0)
    engine.close()


def test_rounds_say_when_they_ended(pair: Pair) -> None:
    """Would catch speeds of thousands of tokens a second where a reader fetches late what was there long ago."""
    engine = pair.engine("model")
    options = GenerationOptions.of(max_new_tokens=8, ignore_eos=True)
    handles = [engine.submit(prompt_of(random.Random(seed)), options) for seed in range(2)]
    rounds = [list(handle) for handle in handles]
    ends = [[round_.ended for round_ in each] for each in rounds]
    assert all(a < b for each in ends for a, b in itertools.pairwise(each))
    assert ends[1][0] < ends[0][-1]  # the second's were there before they were fetched


def test_the_end_of_a_text(pair: Pair) -> None:
    """The end-of-text token ends it within the round, unless it is to be ignored."""
    options = GenerationOptions.of(max_new_tokens=20, ignore_eos=True)
    prompt = next(
        prompt for seed in range(50) if len(set(pair.alone(prompt := prompt_of(random.Random(seed)), options))) > 4
    )
    text = pair.alone(prompt, options)
    eos = text[9]
    engine = pair.engine("model")
    engine.eos = frozenset([eos])
    found = tokens_of(engine.submit(prompt, GenerationOptions.of(options, ignore_eos=False)))
    assert eos in found
    assert found == text[: len(found)]
    assert len(found) - found.index(eos) <= 16  # no further pass
    assert tokens_of(engine.submit(prompt, options)) == text


class Failing:
    """Computes no numbers for a text that holds the token 159, and cannot hold more than 30 tokens of another."""

    def __init__(self, target: Model) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name in ("choose", "sample"):  # tokens are chosen by the logits that `forward` gives
            raise AttributeError(name)
        return getattr(self._target, name)

    def forward(self, rows: Any, vocabulary: int | None = None) -> torch.Tensor:
        if any(158 in each.tokens for each in rows):
            raise IpexAssistError("out of something")
        logits = self._target.forward(rows, vocabulary).clone()
        place = 0
        for each in rows:
            if 159 in each.tokens:
                logits[place : place + each.last] = torch.nan
            place += each.last
        return logits


@pytest.mark.parametrize(("token", "error"), [(159, LogitsError), (158, IpexAssistError)])
def test_a_request_that_fails_does_so_alone(pair: Pair, token: int, error: type[Exception]) -> None:
    """Whether its logits are no numbers, or its part makes the whole pass fail."""
    options = GenerationOptions.of(max_new_tokens=12, ignore_eos=True)
    prompts = [prompt_of(random.Random(seed)) for seed in range(40)]
    prompts = [each for each in prompts if not {158, 159} & {*each, *pair.alone(each, options)}][:4]
    wanted = [pair.alone(prompt, options) for prompt in prompts]
    engine = Engine(Failing(pair.target), Drafting(tiny_models.VOCAB, lambda: CHEAP))  # type: ignore[arg-type]
    handles = [engine.submit(prompt, options) for prompt in prompts]
    bad = engine.submit([5, token, 6], options)
    assert [tokens_of(handle) for handle in handles] == wanted
    with pytest.raises(error):
        next(bad)
    assert bad.ended
    assert engine.stats.failed == 1


def interrupting(original: Any, calls: Iterator[int], turn: int) -> Any:
    """A method of a model that is interrupted at its end, the `turn`-th time that any such method runs."""

    def interrupted(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        if next(calls) == turn:
            raise KeyboardInterrupt
        return result

    return interrupted


def run_until_interrupted(engine: Engine) -> None:
    while engine.step():
        pass


@pytest.mark.parametrize("turn", range(12))
def test_an_interrupted_pass_goes_on(pair: Pair, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C anywhere in a pass: whoever asks again gets the same text, of every request."""
    options = GenerationOptions.of(max_new_tokens=16, ignore_eos=True)
    prompts = [prompt_of(random.Random(seed)) for seed in range(3)]
    wanted = [pair.alone(prompt, options) for prompt in prompts]
    engine, calls = pair.engine("model"), iter(range(1000))
    handles = [engine.submit(prompt, options) for prompt in prompts]
    with monkeypatch.context() as patches:
        for model in (pair.target, pair.assistant):
            for name in ("forward", "choose", "sample", "draft", "draft_many"):
                if hasattr(model, name):
                    patches.setattr(model, name, interrupting(getattr(model, name), calls, turn))
        with pytest.raises(KeyboardInterrupt):
            run_until_interrupted(engine)
    assert [tokens_of(handle) for handle in handles] == wanted


def test_a_handle_nobody_keeps(pair: Pair) -> None:
    """Its request ends, also where the handle is collected in the midst of a pass."""
    engine = pair.engine("model")
    options = GenerationOptions.of(max_new_tokens=40, ignore_eos=True)
    prompt = prompt_of(random.Random(0))
    handle = engine.submit(prompt, options)
    next(handle)
    other = engine.submit(prompt, options)
    del handle
    gc.collect()
    assert engine.stats.cancelled == 1
    assert tokens_of(other) == pair.alone(prompt, options)
    assert not engine.step()
