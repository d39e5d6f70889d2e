"""Two assistants of one text, by costs and drafts that are simulated: the better one drafts, and both share one budget.

A plain pass takes 1 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ipex_assist.speculative.adaptive_schedule import AdaptiveSchedule
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.schedule import RoundResult, RoundState
from ipex_assist.speculative.sources.proposal import Proposal
from ipex_assist.speculative.two_assistants_schedule import TwoAssistantsSchedule

pytestmark = pytest.mark.one_stack

TOKENS = 600
VERIFY = tuple(1 + 0.03 * i for i in range(16))
HEAD = Costs(VERIFY, 0.08, tuple(0.08 + 0.004 * i for i in range(16)), 0.004)
MODEL = Costs(VERIFY, 0.2, tuple(0.2 + 0.02 * i for i in range(16)), 0.02)
BLOCK = Costs(VERIFY, 0.0, tuple(0.2 + 0.004 * i for i in range(16)), 0.004, block=(0.2,) * 8)

Rate = Callable[[int], float]  # how often a drafted token is right, by its place in the text


@dataclass
class Text:
    """A text that was decoded: its seconds, and the places where each assistant drafted."""

    seconds: float = 0.0
    tokens: int = 0
    asked: int = 0
    drafted: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def rounds(self, assistant: int, first: int = 0, end: int = TOKENS) -> int:
        """Rounds between two places in which an assistant drafted."""
        return sum(first <= place < end for place in self.drafted[assistant])


def decode(
    schedule: AdaptiveSchedule,
    true: tuple[Costs, Costs],
    rates: tuple[Rate, Rate],
    *,
    prompt: int = 40,
    overhead: float = 0.0,
    seed: int = 1,
    tokens: int = TOKENS,
) -> Text:
    """Decode a text; each round with a plan takes `overhead` seconds beside the passes, which is charged."""
    text, chance, charged = Text(), random.Random(seed), 0.0
    read = [prompt - 16, 0]  # a head starts with the last tokens
    while text.tokens < tokens:
        length, remaining = prompt + text.tokens, tokens - text.tokens
        if schedule.pause:
            target_s = VERIFY[0] * chance.uniform(0.98, 1.02)
            schedule.rest(target_s)
            text.seconds, text.tokens = text.seconds + target_s, text.tokens + 1
            continue
        second = RoundState(length, remaining, length - read[1])
        plan = schedule.plan(RoundState(length, remaining, max(1, length - 1 - read[0]), False, second))
        text.asked += 1
        number, k = plan.assistant, min(plan.k, remaining - 1)
        costs, draft_s, accepted, confidence = true[number], 0.0, 0, []
        if k:
            unread = length - read[number]
            unread = unread if plan.context is None else min(unread, plan.context)
            while len(confidence) < k and (not confidence or confidence[-1] >= plan.min_confidence):
                confidence.append(0.99)
            draft_s = costs.reading(unread) + costs.drafting(len(confidence))
            kept = schedule.trim(Proposal([7] * len(confidence), confidence, unread))
            k = len(kept.tokens)
            while accepted < k and chance.random() < rates[number](text.tokens + accepted):
                accepted += 1
            text.drafted[number].append(text.tokens)
            read[number] = length + (min(accepted, k - 1) if number else 0)
        target_s = VERIFY[k] * chance.uniform(0.98, 1.02)
        schedule.observe(RoundResult(k, accepted, confidence, draft_s, target_s, overhead_s=charged))
        charged = overhead
        text.seconds += draft_s + target_s + overhead
        text.tokens += accepted + 1
    return text


def both(
    costs: tuple[Costs, Costs] = (HEAD, MODEL), tokens: int = TOKENS, **known: Acceptance
) -> TwoAssistantsSchedule:
    return TwoAssistantsSchedule(costs[0], tokens, second_costs=costs[1], **known)


def steady(rate: float) -> Rate:
    return lambda place: rate


def known(right: float) -> Acceptance:
    """What earlier texts told of an assistant that is right so often."""
    acceptance = Acceptance()
    for i in range(100):
        acceptance.observe([0.99], 1, int(i * right) != int((i + 1) * right))
    return acceptance.for_next_text()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("better", [0, 1])
def test_the_choice_follows_the_text(seed: int, better: int) -> None:
    """One is right in the first half of a text, the other in the second: each drafts nearly all of its half.

    Catches a schedule that stays with whom it began, one that forgets to try the other while the first still gains a
    little, and costs that are looked up with the wrong assistant.
    """
    half = TOKENS // 2
    rates: list[Rate] = [lambda place: 0.9 if place < half else 0.3, lambda place: 0.3 if place < half else 0.9]
    if better:
        rates.reverse()
    text = decode(both((HEAD, HEAD)), (HEAD, HEAD), (rates[0], rates[1]), seed=seed)
    other = 1 - better
    assert text.rounds(better, 0, half) > 5 * text.rounds(other, 0, half)
    assert text.rounds(other, half + 100) > 2 * text.rounds(better, half + 100)
    alone = [decode(AdaptiveSchedule(HEAD, TOKENS), (HEAD, HEAD), (rate, rate), seed=seed).seconds for rate in rates]
    assert text.seconds < 0.75 * min(alone)


@pytest.mark.parametrize("seed", range(4))
def test_the_dearer_one_drafts_where_it_is_right_more_often(seed: int) -> None:
    """By seconds a token, not by acceptance or by costs alone: a small model at 0.9 gains more than a head at 0.5, and
    one at 0.7 less than a head at 0.65."""
    text = decode(both(), (HEAD, MODEL), (steady(0.5), steady(0.93)), seed=seed)
    assert text.rounds(1, 60) > 4 * text.rounds(0, 60)
    text = decode(both(), (HEAD, MODEL), (steady(0.65), steady(0.7)), seed=seed)
    assert text.rounds(0, 60) > 4 * text.rounds(1, 60)


@pytest.mark.parametrize("rates", [(0.9, 0.0), (0.0, 0.95), (0.8, 0.8), (0.6, 0.9)])
def test_two_are_nearly_as_fast_as_the_better_one_alone(rates: tuple[float, float]) -> None:
    """Trying the other may cost 2 % of the time, beside what the first tries of an unknown one take."""
    spent = [0.0, 0.0, 0.0]
    for seed in range(4):
        of = steady(rates[0]), steady(rates[1])
        spent[2] += decode(both(), (HEAD, MODEL), of, seed=seed).seconds
        for number, costs in enumerate((HEAD, MODEL)):
            spent[number] += decode(AdaptiveSchedule(costs, TOKENS), (costs,) * 2, (of[number],) * 2, seed=seed).seconds
    assert spent[2] < 1.06 * min(spent[:2])


@pytest.mark.parametrize(
    "costs", [(HEAD, MODEL), (HEAD, HEAD), (BLOCK, MODEL), (HEAD, Costs(VERIFY, 0.6, (0.6,) * 16))]
)
@pytest.mark.parametrize("overhead", [0.0, 0.05])
@pytest.mark.parametrize("tokens", [128, TOKENS])
@pytest.mark.parametrize("trusted", [False, True])
def test_two_that_are_never_right_cost_three_percent(
    costs: tuple[Costs, Costs], overhead: float, tokens: int, trusted: bool
) -> None:
    """Together, as one alone: a budget of each would be twice that. What is planned or kept beside passes is charged.

    Those that did well in earlier texts may lose as much as one that did: 6.5 %, once for both.
    """
    earlier = {"model_acceptance": known(0.9), "second_acceptance": known(0.9)} if trusted else {}
    text = decode(both(costs, tokens, **earlier), costs, (steady(0.0),) * 2, overhead=overhead, tokens=tokens)
    assert text.rounds(0)
    assert text.rounds(1) or trusted or tokens == 128, "the second one was never tried"
    assert text.seconds <= (1.075 if trusted else 1.03) * tokens
    assert overhead == 0 or text.asked < tokens / 2


def test_a_small_model_that_did_not_read_the_prompt_has_its_reading_in_the_price() -> None:
    """What it would take to read 4000 tokens is more than 64 tokens gain, so that the head goes on."""
    of = steady(0.8), steady(0.85)
    short, long = (decode(both(), (HEAD, MODEL), of, prompt=length, tokens=200) for length in (40, 4000))
    assert long.rounds(1) <= short.rounds(1)
    assert long.rounds(0) > 3 * long.rounds(1)
    alone = decode(AdaptiveSchedule(HEAD, 200), (HEAD,) * 2, (of[0],) * 2, prompt=4000, tokens=200)
    assert long.seconds < 1.1 * alone.seconds


def test_both_learn_what_a_pass_of_the_target_takes() -> None:
    """The first drafts while the machine becomes twice as slow: the second's costs of passes are the same at once."""
    schedule = both()
    for _ in range(60):
        schedule.plan(RoundState(50, 100, 1, False, RoundState(50, 100, 1)))
        schedule.chosen = 0
        schedule.observe(RoundResult(1, 1, [0.99], 0.16, 2 * VERIFY[1]))
    assert schedule.plain_s == pytest.approx(2.0, rel=0.1)
    assert schedule.second.plain_s == schedule.plain_s
    assert schedule.second.round.costs.draft == pytest.approx(0.4, rel=0.15)
    assert schedule.second.budget.account.tokens == schedule.budget.account.tokens == 120
    schedule.second.budget.account.balance -= 3
    assert schedule.second.budget.account.balance == schedule.budget.account.balance
    assert schedule.second.findings().before == MODEL


def test_copies_are_of_neither() -> None:
    """Where the text is copied no assistant would draft; the round counts as one of lookup."""
    schedule = both()
    plan = schedule.plan(RoundState(50, 100, 0, True))
    assert (plan.k > 0, plan.assistant) == (True, 0)
    schedule.observe(RoundResult(plan.k, plan.k, [0.99] * plan.k, 0.0, VERIFY[plan.k]))
    assert schedule.lookup_acceptance.seen == plan.k
    assert schedule.model_acceptance.seen == schedule.second_acceptance.seen == 0
    assert schedule.budget.account.tokens == plan.k + 1
