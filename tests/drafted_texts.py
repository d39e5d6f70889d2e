"""Texts decoded where chance says which drafted tokens are right, and costs say what everything takes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from planned import PlannedText, RoundResult, record, state_of

from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.schedule import Schedule

# Whether a drafted token is right, and the confidence the draft has in it.
Draft = Callable[[random.Random], tuple[bool, float]]


def costs(draft: float = 0.2, row: float = 0.03, reading: float = 0.1) -> Costs:
    """Costs in passes of one row: a draft step, what each further row adds to a target's pass and to a draft's."""
    verify = tuple(1 + row * i for i in range(16))
    return Costs(verify, draft, tuple(draft * (1 + reading * i) for i in range(16)), draft * reading)


def known(right: float, rounds: int = 100) -> Acceptance:
    """Return what is known of a source that is always sure, and right so often."""
    acceptance = Acceptance()
    for i in range(rounds):
        acceptance.observe([0.99], 1, int(i * right) != int((i + 1) * right))
    return acceptance


def steady(rate: float) -> Draft:
    """Right with one probability, and no wiser about itself."""
    return lambda generator: (generator.random() < rate, 0.99)


def honest(generator: random.Random) -> tuple[bool, float]:
    """Half of the tokens are easy, and the draft knows which."""
    confidence = 0.99 if generator.random() < 0.6 else 0.3
    return generator.random() < confidence, confidence


@dataclass
class Run:
    """A simulated text: seconds it took, and drafted tokens."""

    seconds: float
    drafted: int
    tokens: int


def simulate(
    schedule: PlannedText | Schedule,
    draft: Draft,
    true: Costs,
    *,
    tokens: int = 128,
    prompt: int = 20,
    seed: int = 0,
    limit: int | None = None,
    part: Draft | None = None,
) -> Run:
    """Decode `tokens` tokens behind a prompt; `true` are the costs of this world, `limit` what the text might get.

    part: how it drafts from a part of the context, if not the same.
    """
    generator = random.Random(seed)
    run, length, read, skipped = Run(0.0, 0, 0), prompt, 0, False
    while run.tokens < tokens:
        remaining = (limit or tokens) - run.tokens
        now = state_of(length, remaining, length - read)
        drafted = accepted = 0
        confidence: list[float] = []
        draft_s = 0.0
        if remaining > 1:
            plan = schedule.plan(now)
            assert plan.k >= 0
            k, right = min(plan.k, remaining - 1), True
            behind = length - read
            unread = behind if plan.context is None else min(behind, plan.context)
            if k and plan.context is None and skipped:
                unread, skipped = length, False
            elif k and unread < behind:
                skipped = True
            while drafted < k and (not confidence or confidence[-1] >= plan.min_confidence):
                hit, sure = part(generator) if part and skipped else draft(generator)
                confidence.append(sure)
                drafted += 1
                right = right and hit
                accepted += right
            if drafted:
                draft_s = true.reading(unread) + drafted * true.draft
                read = length + min(accepted, drafted - 1)
        target_s = true.verifying(drafted + 1)
        run.seconds += draft_s + target_s
        run.tokens += accepted + 1
        run.drafted += drafted
        length += accepted + 1
        if remaining > 1:
            record(schedule, RoundResult(drafted, accepted, confidence, draft_s, target_s))
    return run
