"""Nobody waits for a long prompt: first tokens of chats beside an agent, by a clock that passes alone move."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from simulated import VOCABULARY, Clock, SimulatedTarget, prompt

from ipex_assist.engine.engine import Engine
from ipex_assist.engine.prefix_cache import NoPrefixes
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

pytestmark = pytest.mark.one_stack

# Of a pass: whatever it holds, reading the weights once, and by row and by position before it.
FIXED_S, PASS_S, ROW_S, POSITION_S = 0.001, 0.02, 0.0004, 2e-8
LONG, SHORT, WORDS = 30_000, 200, 40
Clients = dict[str, tuple[int, int, float]]  # by name: tokens of the prompt, of the answer, seconds until the next one


class Target(SimulatedTarget):
    """A pass takes what its rows take, each longer the more tokens are before it."""

    def sample(self, rows: Any, choices: Any, hidden: Any = None) -> Any:
        prompts = [each for each in rows if len(each.tokens) > 1]
        positions = sum(len(each.tokens) * each.sequence.length for each in prompts)
        self.clock.now += positions * POSITION_S
        return super().sample(rows, choices, hidden)


def engine_of(clock: Clock) -> Engine:
    target = Target(clock, lambda rows: FIXED_S + max(PASS_S, ROW_S * rows))
    return Engine(target, Drafting(VOCABULARY, lambda: None, None), clock=clock, prefixes=NoPrefixes())  # type: ignore[arg-type, return-value]


def first_tokens(clients: Clients, seconds: float, seed: int = 0, **options: Any) -> dict[str, list[float]]:
    """Seconds to the first token of each request, by the client's name; each client asks again after its answer."""
    clock, chance = Clock(), np.random.default_rng(seed)
    engine, found = engine_of(clock), {name: [] for name in clients}  # type: dict[str, list[float]]
    due = [(chance.uniform(0, pause), name) for name, (_, _, pause) in clients.items()]
    heapq.heapify(due)
    flying: dict[str, tuple[float, Any]] = {}
    while clock.now < seconds:
        while due and due[0][0] <= clock.now:
            at, name = heapq.heappop(due)
            count, words, _ = clients[name]
            asked = GenerationOptions.of(max_new_tokens=words, ignore_eos=True, **options.get(name.split()[0], {}))
            flying[name] = (at, engine.submit(prompt(0, count), asked))
        if not engine.step():
            clock.now = max(clock.now, due[0][0])
        for name, (at, handle) in list(flying.items()):
            while handle.has_round:
                if next(handle).prompt:
                    found[name].append(clock.now - at)
            if handle.ended:
                del flying[name]
                heapq.heappush(due, (clock.now + chance.exponential(clients[name][2]), name))
    return found


def test_chats_beside_an_agent() -> None:
    """One that sends 30,000 tokens again and again, and ten people who chat: the oldest prompt took all room of a pass,
    and a chat waited for a minute."""
    chats: Clients = {f"chat {number}": (SHORT, WORDS, 60.0) for number in range(10)}
    agent: Clients = {"agent": (LONG, 20, 0.0)}
    alone = len(first_tokens(agent, 3000)["agent"])
    idle = FIXED_S + ROW_S * SHORT
    found = first_tokens(agent | chats, 3000)
    waits = [wait for name, times in found.items() if name != "agent" for wait in times]
    assert len(waits) > 300
    assert np.quantile(waits, 0.99) <= 3 * idle, np.quantile(waits, [0.5, 0.9, 0.99, 1])
    assert len(found["agent"]) >= 0.9 * alone, (len(found["agent"]), alone)


def test_nobody_starves() -> None:
    """Short prompts without end, one after the other: a long one is read beside them."""
    crowd: Clients = {f"short {number}": (400, 1, 0.0) for number in range(8)}
    found = first_tokens(crowd | {"long": (8000, 1, 0.0)}, 600)
    rows_s = 8000 * ROW_S
    assert len(found["long"]) >= 3
    assert max(found["long"]) < 12 * rows_s


def test_many_requests_of_one_key_are_not_many_shares() -> None:
    """One key sends eight long prompts at a time, another sends one: it gets a half, not a ninth."""
    clients: Clients = {f"many {number}": (6000, 1, 0.0) for number in range(8)} | {"one": (6000, 1, 0.0)}
    shared = first_tokens(clients, 1500, many={"share": "a"}, one={"share": "b"})
    without = first_tokens(clients, 1500)
    assert np.mean(shared["one"]) < 0.5 * np.mean(without["one"])


def test_priorities() -> None:
    """A lower number comes first, with most of the room; the others are read in the rest."""
    clients: Clients = {"low": (3000, 1, 0.0), "high": (3000, 1, 0.0)}
    found = first_tokens(clients, 600, high={"priority": -1}, low={"priority": 1})
    assert 1.5 * np.mean(found["high"]) < np.mean(found["low"])
    assert found["low"]


def longest_and_passes(streamed: int) -> tuple[float, int]:
    """Sixteen prompts at once; streamed: how many answers are. Seconds of the longest pass beside an answer, and passes
    until all ended."""
    clock = Clock()
    engine, longest = engine_of(clock), 0.0
    handles = [
        engine.submit(
            prompt(number, 300), GenerationOptions.of(max_new_tokens=128, ignore_eos=True, streamed=number < streamed)
        )
        for number in range(16)
    ]
    begun = False
    while not all(handle.ended for handle in handles):
        before = clock.now
        engine.step()
        longest = max(longest, clock.now - before if begun else 0.0)
        begun = begun or any(handle.has_round for handle in handles)
    return longest, engine.stats.passes


def test_nobody_waits_for_tokens_that_nobody_reads_as_they_come() -> None:
    """A batch reads prompts in passes as large as they are fast; one stream among it keeps its passes short."""
    (short, many), (also_short, _), (long, few) = (longest_and_passes(streamed) for streamed in (16, 1, 0))
    assert few < many
    assert also_short == pytest.approx(short, rel=0.2)
    assert long > 1.2 * short
