"""Runs one text of a tiny model through an engine."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from ipex_assist.engine.engine import Engine
from ipex_assist.executors.interface import Model
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions, SamplingOptions
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import ConstantSchedule, Schedule
from ipex_assist.speculative.sources.draft_source import DraftSource

PROMPT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31, 90, 55, 2, 71, 118, 29]


GREEDY = Sampling()


NEW = 24


def run(
    target: Model,
    draft: DraftSource | None = None,
    k: int = 0,
    prompt: Sequence[int] = PROMPT,
    new: int = NEW,
    sampling: Sampling = GREEDY,
    schedule: Schedule | None = None,
    each: Callable[[Round], None] = lambda round_: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Round]:
    """Return all rounds of one generation; `each` hears of them as they come."""
    engine = Engine(target, Drafting(target.spec.vocab_size, lambda: Costs((1.0,))), clock=clock)
    names = {field.name for field in dataclasses.fields(SamplingOptions)}
    options = GenerationOptions.of(
        max_new_tokens=new, **{name: getattr(sampling, name) for name in names}, assisted=draft is not None
    )
    rounds = []
    for round_ in engine.submit(prompt, options, draft=draft, schedule=schedule or ConstantSchedule(k)):
        rounds.append(round_)
        each(round_)
    return rounds


def tokens_of(rounds: list[Round]) -> list[int]:
    """Return the tokens of `rounds`."""
    return [token for round_ in rounds for token in round_.tokens]
