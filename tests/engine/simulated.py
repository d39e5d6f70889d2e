"""An engine whose models take the time that costs say, and draft what a real pair drafted: texts of the recording."""

from __future__ import annotations

import json
import string
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_specs import fake_spec

from ipex_assist.engine.engine import Engine
from ipex_assist.engine.prefix_cache import NoPrefixes
from ipex_assist.engine.stats import EngineStats
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.interface import ANY_ROWS, DraftInput, HiddenRows, Model, Rows
from ipex_assist.executors.row_choice import RowChoice, SampledRows
from ipex_assist.models.draft_head import HeadSpec, Taps
from ipex_assist.native.rows import BLOCK
from ipex_assist.speculative.costs.acceptance import EDGES
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

RECORDED = Path(__file__).parent.parent / "speculative" / "recorded_drafts.json"
TEXTS: list[dict[str, Any]] = list(json.loads(RECORDED.read_text())["texts"].values())
FIRST = 10  # of the tokens that say which text it is
WRONG = 5  # a token that no text has
SPAN = 4096  # tokens of a text's own; those behind half of them are its tokens with an adapter
TEXT = 64  # the first of them
VOCABULARY = TEXT + len(TEXTS) * SPAN


POOL = BlockPool(1 << 20)  # of which nothing is ever taken


class Clock:
    """A clock whose time only passes take."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class CountingSequence:
    """A sequence that holds its tokens."""

    capacity: int
    tokens: list[int]
    adapter: Any = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def blocks(self) -> list[int]:
        return list(range(-(-len(self.tokens) // BLOCK)))

    def blocks_for(self, rows: int) -> int:
        return -(-(self.length + rows) // BLOCK) - len(self.blocks)

    def truncate(self, length: int) -> None:
        assert length <= self.length
        del self.tokens[length:]


class SimulatedModel(Model):
    """What target and assistant have in common: `seconds` says what a pass of so many rows takes."""

    def __init__(self, clock: Clock, seconds: Callable[[int], float]) -> None:
        self.clock, self.seconds = clock, seconds
        self.spec = fake_spec(VOCABULARY, layers=28)

    @property
    def exact_rows(self) -> int:
        return ANY_ROWS

    @property
    def blocks(self) -> BlockPool:
        return POOL

    def new_sequence(
        self, capacity: int, prompt_length: int | None = None, blocks: Any = (), state: Any = None, adapter: Any = None
    ) -> Any:
        return CountingSequence(capacity, [], adapter)

    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        raise AssertionError("greedy texts need no logits")

    def take(self, rows: int) -> None:
        """Let the time of a pass go by."""
        self.clock.now += self.seconds(rows)


def prompt(text: int, length: int) -> list[int]:
    """Return a prompt behind which the recording's text number `text` comes."""
    return [FIRST + text] * length


def first_token(text: int) -> int:
    """Return the first token of the recording's text with this number."""
    return TEXT + text % len(TEXTS) * SPAN


def place(tokens: list[int]) -> tuple[int, int]:
    """Return the number of the text that these tokens end with, prompt or text, and how many tokens of it there are."""
    last = tokens[-1]
    if last < TEXT:
        return last - FIRST, 0
    return (last - TEXT) // SPAN, (last - TEXT) % (SPAN // 2) + 1


class SimulatedTarget(SimulatedModel):
    """Its text is of successive tokens; with an adapter of others, which nothing drafts."""

    def sample(
        self, rows: abc.Sequence[Rows], choices: abc.Sequence[RowChoice], hidden: HiddenRows | None = None
    ) -> SampledRows:
        tokens, states = [], []
        for each in rows:
            each.sequence.tokens += each.tokens  # type: ignore[attr-defined]
            known: list[int] = each.sequence.tokens  # type: ignore[attr-defined]
            text, new = known[0] - FIRST, len(known) - known.count(known[0])
            first = first_token(text) + SPAN // 2 * (each.sequence.adapter is not None)  # type: ignore[attr-defined]
            tokens += [first + new - each.last + 1 + i for i in range(each.last)]
            count = each.last if hidden and hidden.of_logit_rows else len(each.tokens)
            states += [(known[0], new - count + 1 + i) for i in range(count)]
        if hidden is not None:
            hidden.rows = np.array(states, np.float32)
        self.take(sum(len(each.tokens) for each in rows))
        return SampledRows(tokens, [None] * len(tokens))


class SimulatedAssistant(SimulatedModel):
    """Drafts what was recorded, as often right and as sure."""

    def __init__(self, clock: Clock, seconds: Callable[[int], float], read_s: float) -> None:
        super().__init__(clock, seconds)
        self.read_s = read_s

    def draft(
        self, sequence: Any, tokens: Any, count: int, vocabulary: int | None = None, min_confidence: float = 0.0
    ) -> tuple[list[int], list[float]]:
        return self.draft_many([DraftInput(sequence, tokens, count, min_confidence)])[0]

    def draft_many(
        self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        drafts = [self._draft(request) for request in requests]
        unread = sum(len(request.tokens) for request in requests)
        if unread > 16 + len(requests):
            self.clock.now += (unread - len(requests)) * self.read_s
        else:
            self.clock.now += self.seconds(unread) - self.seconds(len(requests))
        for depth in range(max(len(tokens) for tokens, _ in drafts)):
            self.take(sum(len(tokens) > depth for tokens, _ in drafts))
        for request, (tokens, _) in zip(requests, drafts, strict=True):
            request.sequence.tokens += [*request.tokens, *tokens[:-1]]  # type: ignore[attr-defined]
        return drafts

    def _draft(self, request: DraftInput) -> tuple[list[int], list[float]]:
        known = request.sequence.tokens + list(request.tokens)  # type: ignore[attr-defined]
        return self.recorded(*place(known), request.count, request.min_confidence)

    def recorded(self, number: int, new: int, count: int, min_confidence: float) -> tuple[list[int], list[float]]:
        """What was drafted after `new` tokens of the text with this number."""
        text = TEXTS[number % len(TEXTS)]
        at = (new - 1) % len(text["right"])
        right = int(text["right"][at], 16)
        tokens: list[int] = []
        confidence: list[float] = []
        for i, letter in enumerate(text["confidence"][at][:count]):
            tokens.append(first_token(number) + new + i if i < right else WRONG)
            confidence.append(EDGES[string.ascii_lowercase.index(letter)] + 0.01)
            if confidence[-1] < min_confidence:
                break
        return tokens, confidence


class SimulatedHead(SimulatedAssistant):
    """A head that drafts what was recorded, or random tokens of which it is as sure; it reads prompts in `forward`."""

    def __init__(self, clock: Clock, true: Costs, *, random: bool) -> None:
        super().__init__(clock, lambda rows: true.draft * grown(true, rows), true.read)
        head = HeadSpec("dflash" if true.block else "mtp", Taps((1,)), 2, block_size=16 if true.block else 0)
        self.spec = replace(self.spec, head=head)
        self.true, self.random = true, random

    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        for each in rows:
            each.sequence.tokens += each.tokens  # type: ignore[attr-defined]
            self.clock.now += len(each.tokens) * self.read_s
        return torch.empty(0, VOCABULARY)

    def draft_many(
        self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        if not self.true.block:
            return super().draft_many(requests)
        drafts = [self._draft(request) for request in requests]
        self.clock.now += self.true.blocks(len(requests))
        for request in requests:
            assert request.hidden is not None
            self.clock.now += self.true.reading(len(request.hidden))
            request.sequence.tokens += [0] * len(request.hidden)  # type: ignore[attr-defined]
        return drafts

    def _draft(self, request: DraftInput) -> tuple[list[int], list[float]]:
        assert request.hidden is not None
        first, new = (int(number) for number in request.hidden[-1])
        tokens, confidence = self.recorded(first - FIRST, new + 1, request.count, request.min_confidence)
        return ([WRONG] * len(tokens) if self.random else tokens), confidence


@dataclass(frozen=True)
class Served:
    """What serving some texts took. rounds: drafted and accepted tokens of each pass of texts with each adapter."""

    tokens_per_s: float
    stats: EngineStats
    rounds: dict[str | None, list[tuple[int, int]]]


def serve(
    true: Costs,
    count: int,
    concurrency: int,
    *,
    assisted: bool = True,
    believed: Costs | None = None,
    limits: abc.Sequence[int] = (128, 90, 160, 110, 75, 140, 100),
    prompts: abc.Sequence[int] = (30, 300, 120, 60, 200),
    head: str | None = None,
    adapters: abc.Sequence[str | None] = (None,),
    drafting_of: Callable[[Clock], Drafting] | None = None,
) -> Served:
    """Serve `count` texts, `concurrency` of them at a time, where passes take what `true` says.

    believed: what calibration said. head: a draft head drafts, "recorded" or "random". adapters: of the texts in turn.
    drafting_of: makes what drafts.
    """
    clock = Clock()
    target = SimulatedTarget(clock, true.verifying)
    assistant: Model = SimulatedAssistant(clock, lambda rows: true.draft * grown(true, rows), true.read)
    if head is not None:
        assistant = SimulatedHead(clock, true, random=head == "random")
    drafting = Drafting(VOCABULARY, lambda: believed or true, assistant if assisted else None)
    if drafting_of is not None and assisted:
        drafting = drafting_of(clock)
    engine = Engine(target, drafting, clock=clock, prefixes=NoPrefixes())
    waiting = [
        (
            prompt(i, prompts[i % len(prompts)]),
            GenerationOptions.of(
                max_new_tokens=limits[i % len(limits)], ignore_eos=True, lora=adapters[i % len(adapters)]
            ),
        )
        for i in range(count)
    ]
    flying: list[Any] = []
    rounds: dict[str | None, list[tuple[int, int]]] = {adapter: [] for adapter in adapters}
    tokens = 0
    while waiting or flying:
        while waiting and len(flying) < concurrency:
            made, options = waiting.pop(0)
            flying.append((options.lora, engine.submit(made, options)))
        engine.step()
        for adapter, handle in list(flying):
            while handle.has_round:
                found = next(handle)
                tokens += len(found.tokens)
                rounds[adapter].append((found.drafted, found.accepted))
            if handle.ended:
                flying.remove((adapter, handle))
    return Served(tokens / clock.now, engine.stats, rounds)


def grown(true: Costs, rows: int) -> float:
    """Return how much longer than one of a row a pass of the draft takes."""
    known = len(true.rows)
    if rows <= known:
        return true.rows[rows - 1] / true.rows[0]
    slope = (true.rows[-1] / true.rows[0] - 1) / (known - 1)
    return true.rows[-1] / true.rows[0] + slope * (rows - known)
